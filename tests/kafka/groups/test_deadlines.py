"""Deadlines against a plain dictionary, their cost, and the wake-ups of a group's schedule."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.groups.deadlines import Deadlines, Schedule

KEYS = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("remove"), KEYS, st.just(0)),
        st.tuples(st.just("rename"), KEYS, KEYS),
    ),
    max_size=60,
)


@given(STEPS)
def test_first_deadline_is_the_smallest(steps: list[tuple[str, str, int | str]]) -> None:
    deadlines, model = Deadlines(), dict[str, float]()
    for action, key, value in steps:
        if action == "set":
            model[key] = float(value)
            deadlines.set(key, float(value))
        elif action == "remove":
            model.pop(key, None)
            deadlines.remove(key)
        elif value not in model and key in model:
            model[str(value)] = model.pop(key)
            deadlines.rename(key, str(value))
        first = deadlines.first_key()
        assert (len(deadlines), deadlines.first()) == (len(model), min(model.values(), default=inf))
        assert first is None if not model else first is not None and model[first] == min(model.values())


def test_equal_deadlines_come_in_the_order_of_setting() -> None:
    deadlines = Deadlines()
    for key in "cab":
        deadlines.set(key, 1.0)
    order = []
    while (key := deadlines.first_key()) is not None:
        order.append(key)
        deadlines.remove(key)
    assert order == ["c", "a", "b"]


def test_many_moved_or_removed_deadlines_keep_heap_small() -> None:
    deadlines = Deadlines()
    for n in range(5_000):
        deadlines.set("heartbeat", float(n))
        deadlines.set("sooner", float(10_000 - n))
        deadlines.set(str(n), 1e9)
        deadlines.remove(str(n))
        assert len(deadlines._heap) <= 2 * len(deadlines) + 64
    assert len(deadlines) == 2


# The schedule of a classic group ---------------------------------------------------------------------------------


def test_without_deadlines_there_is_nothing_to_wake_for() -> None:
    schedule = Schedule()
    assert (schedule.next(), schedule.wake) == (inf, inf)


def test_first_of_all_kinds_counts() -> None:
    schedule = Schedule()
    schedule.set_sync(30.0)
    schedule.set_join(20.0)
    schedule.set_member("m", 10.0)
    assert (schedule.next(), schedule.wake) == (10.0, 10.0)
    schedule.members.remove("m")
    assert schedule.next() == 20.0
    schedule.join_deadline = None
    assert schedule.next() == 30.0


def test_later_deadline_does_not_move_the_wake_time() -> None:
    schedule = Schedule()
    schedule.set_member("m", 10.0)
    schedule.set_member("m", 15.0)
    assert (schedule.next(), schedule.wake) == (15.0, 10.0)


def test_cleared_schedule_is_as_new() -> None:
    schedule = Schedule()
    schedule.set_join(20.0)
    schedule.set_member("m", 10.0)
    schedule.clear()
    assert (schedule.next(), schedule.wake, len(schedule.members)) == (inf, inf, 0)
