"""The checker finds nothing wrong with transactions that ran one after the other, and finds each anomaly that is put in."""

from collections.abc import Sequence
from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.elle import ABORTED, COMMITTED, KAFKA, UNKNOWN, Anomaly, Append, Read, Txn, anomalies, components

KEYS = "xyz"


@attrs.define
class Serial:
    """A history of transactions that ran one after the other, on lists."""

    txns: list[Txn]
    final: dict[str, list[int]]


@st.composite
def serial(draw: st.DrawFn, least: int = 0) -> Serial:
    state: dict[str, list[int]] = {key: [] for key in KEYS}
    txns = []
    element = 0
    for number in range(draw(st.integers(least, 12))):
        mine = {key: list(elements) for key, elements in state.items()}
        operations: list[Append | Read] = []
        for key, writes in draw(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=5)):
            if writes:
                element += 1
                mine[key].append(element)
                operations.append(Append(key, element))
            else:
                operations.append(Read(key, tuple(mine[key])))
        fate = draw(st.sampled_from((COMMITTED, COMMITTED, COMMITTED, ABORTED, UNKNOWN)))
        if fate == COMMITTED or (fate == UNKNOWN and draw(st.booleans())):
            state = mine
        txns.append(Txn(f"T{number}", fate, operations))
    return Serial(txns, state)


def kinds(found: Sequence[Anomaly]) -> set[str]:
    return {each.kind for each in found}


@given(serial(), st.randoms(use_true_random=False))
def test_nothing_is_wrong_with_transactions_one_after_the_other(history: Serial, rng: Random) -> None:
    rng.shuffle(history.txns)  # nobody has to know the order
    assert [] == anomalies(history.txns, history.final)
    assert [] == anomalies(history.txns)


@given(serial(), st.sampled_from(KEYS))
def test_a_read_of_an_aborted_element_is_found(history: Serial, key: str) -> None:
    state = tuple(history.final[key])
    history.txns.append(Txn("aborted", ABORTED, [Append(key, 1000)]))
    history.txns.append(Txn("reader", COMMITTED, [Read(key, (*state, 1000))]))
    assert "G1a" in kinds(anomalies(history.txns))
    assert "G1a" in kinds(anomalies(history.txns[:-1], history.final | {key: [*state, 1000]}))


@given(serial(), st.sampled_from(KEYS))
def test_a_read_in_the_middle_of_a_transaction_is_found(history: Serial, key: str) -> None:
    state = tuple(history.final[key])
    history.txns.append(Txn("writer", COMMITTED, [Append(key, 1000), Append(key, 1001)]))
    history.txns.append(Txn("reader", COMMITTED, [Read(key, (*state, 1000))]))
    assert "G1b" in kinds(anomalies(history.txns, history.final | {key: [*state, 1000, 1001]}))


@given(serial(), st.sampled_from(KEYS))
def test_a_lost_append_is_found(history: Serial, key: str) -> None:
    history.txns.append(Txn("writer", COMMITTED, [Append(key, 1000)]))
    assert {"lost append"} == kinds(anomalies(history.txns, history.final))


@given(serial(), st.sampled_from(KEYS))
def test_a_part_of_an_unheard_transaction_is_found_missing(history: Serial, key: str) -> None:
    other = next(each for each in KEYS if each != key)
    history.txns.append(Txn("writer", UNKNOWN, [Append(key, 1000), Append(other, 1001)]))
    assert [] == anomalies(history.txns, history.final)
    seen = history.final | {key: [*history.final[key], 1000]}
    assert {"lost append"} == kinds(anomalies(history.txns, seen))


@given(serial(), st.sampled_from(KEYS))
def test_a_lost_update_is_found(history: Serial, key: str) -> None:
    state = tuple(history.final[key])
    for number in (1000, 1001):
        history.txns.append(Txn(f"writer {number}", COMMITTED, [Read(key, state), Append(key, number)]))
    found = kinds(anomalies(history.txns, history.final | {key: [*state, 1000, 1001]}))
    assert "lost update" in found
    assert "lost update" in kinds(anomalies(history.txns, model=KAFKA))


@given(serial(least=1), st.data())
def test_elements_twice_out_of_order_and_of_nobody_are_found(history: Serial, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(KEYS))
    state = history.final[key]
    assert "unknown element" in kinds(anomalies(history.txns, history.final | {key: [*state, 1000]}))
    if state:
        again = data.draw(st.sampled_from(state))
        assert "duplicate" in kinds(anomalies(history.txns, history.final | {key: [*state, again]}))
    if len(state) > 1:
        history.txns.append(Txn("reader", COMMITTED, [Read(key, tuple(reversed(state)))]))
        assert "incompatible order" in kinds(anomalies(history.txns, history.final))


@given(serial())
def test_a_write_cycle_is_found(history: Serial) -> None:
    x, y = history.final["x"], history.final["y"]
    history.txns.append(Txn("one", COMMITTED, [Append("x", 1000), Append("y", 1001)]))
    history.txns.append(Txn("two", COMMITTED, [Append("x", 1002), Append("y", 1003)]))
    final = history.final | {"x": [*x, 1000, 1002], "y": [*y, 1003, 1001]}
    assert {"G0"} == kinds(anomalies(history.txns, final))
    assert [] == anomalies(history.txns, final, model=KAFKA)


@given(serial())
def test_a_circular_flow_of_information_is_found(history: Serial) -> None:
    x, y = tuple(history.final["x"]), tuple(history.final["y"])
    history.txns.append(Txn("one", COMMITTED, [Append("x", 1000), Read("y", (*y, 1001))]))
    history.txns.append(Txn("two", COMMITTED, [Append("y", 1001), Read("x", (*x, 1000))]))
    final = history.final | {"x": [*x, 1000], "y": [*y, 1001]}
    assert {"G1c"} == kinds(anomalies(history.txns, final))
    assert {"G1c"} == kinds(anomalies(history.txns, model=KAFKA))


@given(serial())
def test_two_transactions_that_miss_each_other_are_found(history: Serial) -> None:
    x, y = tuple(history.final["x"]), tuple(history.final["y"])
    history.txns.append(Txn("one", COMMITTED, [Read("y", y), Append("x", 1000)]))
    history.txns.append(Txn("two", COMMITTED, [Read("x", x), Append("y", 1001)]))
    final = history.final | {"x": [*x, 1000], "y": [*y, 1001]}
    assert {"G2"} == kinds(anomalies(history.txns, final))
    assert [] == anomalies(history.txns, final, model=KAFKA)


@pytest.mark.parametrize(
    "operations",
    [
        [Append("x", 1), Read("x", ())],
        [Read("x", ()), Append("x", 1), Read("x", ())],
        [Read("x", ()), Read("x", (2,))],
    ],
)
def test_a_transaction_that_does_not_see_itself_is_found(operations: list[Append | Read]) -> None:
    txns = [Txn("one", COMMITTED, operations), Txn("two", COMMITTED, [Append("x", 2)])]
    assert "internal" in kinds(anomalies(txns))
    assert "internal" not in kinds(anomalies(txns, model=KAFKA))


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef"))))
def test_components_are_those_that_reach_each_other(edges: dict[str, set[str]]) -> None:
    graph = {node: edges.get(node, set()) for node in "abcdef"}
    reached = {node: {node} for node in graph}
    for _ in graph:
        reached = {node: there.union(*(graph[other] for other in there)) for node, there in reached.items()}
    expected = {frozenset(other for other in reached[node] if node in reached[other]) for node in graph}
    assert expected == {frozenset(component) for component in components(graph)}
