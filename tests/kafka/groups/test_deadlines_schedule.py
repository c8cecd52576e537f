"""Which of a group's deadlines is the first, and when the group has to be woken for it."""

from math import inf

from broker.kafka.groups.deadlines import Schedule


def test_without_deadlines_there_is_nothing_to_wake_for() -> None:
    schedule = Schedule()
    assert (schedule.next(), schedule.wake) == (inf, inf)


def test_the_first_of_all_kinds_counts() -> None:
    schedule = Schedule()
    schedule.set_sync(30.0)
    schedule.set_join(20.0)
    schedule.set_member("m", 10.0)
    assert (schedule.next(), schedule.wake) == (10.0, 10.0)
    schedule.members.remove("m")
    assert schedule.next() == 20.0
    schedule.join_deadline = None
    assert schedule.next() == 30.0


def test_a_deadline_that_moves_back_does_not_move_the_time_to_wake() -> None:
    schedule = Schedule()
    schedule.set_member("m", 10.0)
    schedule.set_member("m", 15.0)
    assert (schedule.next(), schedule.wake) == (15.0, 10.0)


def test_a_cleared_schedule_is_as_new() -> None:
    schedule = Schedule()
    schedule.set_join(20.0)
    schedule.set_member("m", 10.0)
    schedule.clear()
    assert (schedule.next(), schedule.wake, len(schedule.members)) == (inf, inf, 0)
