"""Series for the busiest, and one for the others."""

from hypothesis import given
from hypothesis import strategies as st

from broker.metrics.names import OTHER
from broker.metrics.registry import BoundedCounter, Chosen, summed


def test_all_things_are_chosen_while_few() -> None:
    assert {"a", "b"} == Chosen(2).choose({"a": 0.0, "b": 5.0}, 0.0)


def test_the_busiest_are_chosen() -> None:
    assert {"b", "c"} == Chosen(2).choose({"a": 1.0, "b": 5.0, "c": 4.0}, 0.0)


def test_chosen_thing_stays_unless_another_is_much_busier() -> None:
    chosen = Chosen(1)
    chosen.choose({"a": 10.0, "b": 0.0}, 0.0)
    assert {"a"} == chosen.choose({"a": 20.0, "b": 15.0}, 100.0)
    # Not before the next review.
    assert {"a"} == chosen.choose({"a": 20.0, "b": 1000.0}, 101.0)
    assert {"b"} == chosen.choose({"a": 20.0, "b": 1000.0}, 200.0)


def test_place_of_a_removed_thing_is_free() -> None:
    chosen = Chosen(1)
    chosen.choose({"a": 10.0, "b": 5.0, "c": 1.0}, 0.0)
    assert {"b"} == chosen.choose({"b": 5.0, "c": 1.0}, 1.0)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), max_size=4), st.sets(st.sampled_from("abcd"))
        ),
        max_size=8,
    )
)
def test_sum_of_others_never_falls_or_counts_twice(
    steps: list[tuple[dict[str, int], set[str]]],
) -> None:
    counter, others, counted = BoundedCounter(), 0.0, 0
    last: dict[str, int] = {}
    totals: dict[str, int] = {}
    for growth, chosen in steps:
        totals = {name: totals.get(name, 0) + grown for name, grown in growth.items()}  # what is not named is deleted
        counted += sum(
            total - (last.get(name, 0) if total >= last.get(name, 0) else 0) for name, total in totals.items()
        )
        shown = counter.split(totals, frozenset(chosen))
        assert shown.get(OTHER, 0.0) >= others
        others = shown.get(OTHER, 0.0)
        assert others <= counted
        assert {name: total for name, total in totals.items() if name in chosen} == {
            name: value for name, value in shown.items() if name != OTHER
        }
        last = totals


def test_gauges_of_the_others_are_summed() -> None:
    assert {"a": 1.0, OTHER: 5.0} == summed({"a": 1.0, "b": 2.0, "c": 3.0}, frozenset("a"))
