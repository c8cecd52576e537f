"""Plans: the same for the same seed, within what the test allows, and of use as code."""

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from broker.client import Broker
from broker.client.chaos.plan import DEFAULT, FAULTS_MAX, Template, as_code, check, plan_of
from broker.errors import ConfigError
from broker.faults.fault import Fault, Vocabularies
from broker.faults.faults import Faults
from broker.kafka.faulting.faulting import vocabulary

KAFKA = vocabulary()
WORDS = Vocabularies({"kafka": KAFKA})
seeds = st.integers(-(2**31), 2**31)
apis = st.sampled_from(KAFKA.apis)
errors = st.sampled_from(KAFKA.errors)


@st.composite
def templates(draw: st.DrawFn) -> Template:
    kind = draw(st.sampled_from(sorted(WORDS.kinds)))
    fields: dict[str, Any] = {"kind": kind}
    if not WORDS.kinds[kind].changes and draw(st.booleans()):
        fields["api"] = draw(st.one_of(apis, st.lists(apis, min_size=1, max_size=3)))
    if "error" in WORDS.kinds[kind].fields and draw(st.booleans()):
        fields["error"] = draw(st.one_of(errors, st.lists(errors, min_size=1, max_size=3)))
    for name in draw(st.sets(st.sampled_from(["topic", "group", "client_id"]))):
        fields[name] = draw(st.text(max_size=5))
    template = draw(st.sampled_from([kind, fields]))
    try:
        check([template], WORDS)
    except ConfigError:
        reject()  # such as a heartbeat with a topic
    return template


def allows(template: Template, fault: Fault) -> bool:
    fields = {"kind": template} if isinstance(template, str) else template
    return all(
        getattr(fault, name) in value if isinstance(value, list) else getattr(fault, name) == value
        for name, value in fields.items()
    )


@given(seeds, st.lists(templates(), min_size=1, max_size=4))
def test_plan_is_of_the_seed_and_within_the_templates(seed: int, chosen: list[Template]) -> None:
    check(chosen, WORDS)
    plan = plan_of(seed, chosen, WORDS)
    assert plan == plan_of(seed, chosen, WORDS)
    assert 1 <= len(plan) <= FAULTS_MAX
    for fault in plan:
        assert fault == WORDS.checked(fault)
        assert fault.count is not None and fault.count >= 1
        assert any(allows(template, fault) for template in chosen)


@given(seeds)
def test_code_adds_the_same_fault(seed: int) -> None:
    for fault in plan_of(seed, [*DEFAULT, {"kind": "lost", "topic": 'it\'s "ä"\\', "api": "PRODUCE"}], WORDS):
        faults = Faults(lambda: {"kafka": vocabulary()})
        handle = eval(as_code(fault), {"broker": SimpleNamespace(faults=faults)})
        assert fault == handle.fault


def test_default_reaches_every_kind_and_what_clients_ask_for() -> None:
    drawn = [fault for seed in range(300) for fault in plan_of(seed, DEFAULT, WORDS)]
    assert set(DEFAULT) == {fault.kind for fault in drawn}
    assert {"PRODUCE", "FETCH", "OFFSET_COMMIT", "JOIN_GROUP", "HEARTBEAT", "FIND_COORDINATOR", "METADATA"} < {
        fault.api for fault in drawn
    }
    assert {"ADD_PARTITIONS_TO_TXN", "END_TXN", "INIT_PRODUCER_ID"} < {fault.api for fault in drawn}
    assert 200 < len({plan_of(seed, DEFAULT, WORDS) for seed in range(300)})


def test_what_is_left_open_is_drawn_to_suit() -> None:
    for seed in range(50):
        for fault in plan_of(seed, [{"kind": "error", "error": "CONCURRENT_TRANSACTIONS"}], WORDS):
            assert fault.api in ("ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN", "END_TXN")
        for fault in plan_of(seed, [{"kind": "error", "api": "OffsetCommit"}], WORDS):
            assert fault.error in ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")


def test_changes_happen_when_clients_ask_about_what_is_changed() -> None:
    changes = [name for name, kind in WORDS.kinds.items() if kind.changes]
    check(changes, WORDS)
    drawn = {(fault.kind, fault.api) for seed in range(200) for fault in plan_of(seed, changes, WORDS)}
    assert set(changes) == {kind for kind, _ in drawn}
    assert {"OFFSET_COMMIT", "HEARTBEAT"} < {api for kind, api in drawn if kind == "rebalance"}
    assert {"ADD_PARTITIONS_TO_TXN", "END_TXN"} < {api for kind, api in drawn if kind == "producer_fenced"}
    assert {"PRODUCE", "FETCH"} < {api for kind, api in drawn if kind == "topic_deleted"}


def test_api_is_one_that_names_what_the_fault_is_about() -> None:
    of_topic = [fault for seed in range(100) for fault in plan_of(seed, [{"kind": "lost", "topic": "orders"}], WORDS)]
    assert {"PRODUCE", "FETCH", "OFFSET_COMMIT"} < {fault.api for fault in of_topic}
    assert not {"HEARTBEAT", "JOIN_GROUP", "END_TXN"} & {fault.api for fault in of_topic}
    of_group = [fault for seed in range(100) for fault in plan_of(seed, [{"kind": "error", "group": "billing"}], WORDS)]
    assert {"OFFSET_COMMIT", "HEARTBEAT"} < {fault.api for fault in of_group}
    assert not {"PRODUCE", "FETCH"} & {fault.api for fault in of_group}


def test_kinds_of_the_machine_are_drawn_by_name() -> None:
    words = Broker().faults.vocabulary
    machine = ["restart", "disk_full", "slow_fsync", "clock_jump"]
    check(machine, words)
    drawn = {fault.kind: fault for seed in range(50) for fault in plan_of(seed, machine, words)}
    assert set(machine) == drawn.keys()
    assert drawn["restart"].api is not None
    assert drawn["clock_jump"].jump_ms and drawn["slow_fsync"].delay_ms


def test_nobody_waits_five_minutes_unless_told_to() -> None:
    drawn = [fault for seed in range(300) for fault in plan_of(seed, ["lost"], WORDS)]
    assert "JOIN_GROUP" not in {fault.api for fault in drawn}
    for seed in range(300):
        assert all(fault.api != "METADATA" for fault in plan_of(seed, ["error", "error_after"], WORDS))
    assert all(fault.api == "JOIN_GROUP" for fault in plan_of(1, [{"kind": "lost", "api": "JOIN_GROUP"}], WORDS))


def test_code_says_what_comes_first() -> None:
    fault = attrs.evolve(
        Fault(kind="error", api="FETCH", error="UNKNOWN_SERVER_ERROR"), skip=2, topic="orders", when=allows
    )
    assert (
        'broker.faults.add("error", api="FETCH", error="UNKNOWN_SERVER_ERROR", topic="orders", skip=2, when=allows)'
        == as_code(fault)
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("lost", "Give faults as a list"),
        ([], "Give faults as a list"),
        ([7], "the name of a kind or a mapping, not int"),
        (["lost", "lots"], "There is no kind 'lots'. Did you mean lost?"),
        ([{"kind": ["lost", "error"], "api": "PRODUCT"}], "There is no api 'PRODUCT'"),
        ([{"kind": "lost", "api": ["FETCH", "FETSH"]}], "There is no api 'FETSH'"),
        ([{"kind": "lost", "api": []}], "Give api of a fault of a plan at least one value"),
        ([{"kind": "lost", "error": "NOT_COORDINATOR"}], "Leave out error"),
        ([{"api": "FETCH"}], "Give the kind"),
        ([{"kind": "lost", "api": ["PRODUCE", "HEARTBEAT"], "topic": "orders"}], "Leave out topic"),
    ],
)
def test_templates_that_are_none_are_refused(wrong: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        check(wrong, WORDS)
