"""The common parts of the newer groups. Unsaved rows against a model in which each change of a row has a number."""

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.kafka.groups.coordinated import (
    RELEASE_MAX,
    ParkedMembers,
    ParkedRequest,
    Subscriptions,
    UnsavedRows,
    partitions_of,
    runs_of,
)
from broker.kafka.groups.share.members import Subscription
from protocol.kafka.errors import ErrorCode

rows = st.sampled_from(["", "a", "b", "c"])


class UnsavedRowsMachine(RuleBasedStateMachine):
    """Saves end in the order in which they began, as the catalogue's writer does it."""

    def __init__(self) -> None:
        super().__init__()
        self.unsaved = UnsavedRows()
        self.changes: dict[str, int] = {}  # by row: how often it has changed
        self.durable: dict[str, int] = {}
        self.saves: list[tuple[int, list[str], dict[str, int]]] = []

    @rule(row=rows)
    def change(self, row: str) -> None:
        self.changes[row] = self.changes.get(row, 0) + 1
        self.unsaved.add(row)

    @precondition(lambda self: self.unsaved.changed)
    @rule()
    def save(self) -> None:
        taken = self.unsaved.take()
        self.saves.append((self.unsaved.number, taken, {row: self.changes[row] for row in taken}))

    @precondition(lambda self: self.saves)
    @rule(failed=st.booleans())
    def end_save(self, failed: bool) -> None:
        number, taken, contents = self.saves.pop(0)
        self.unsaved.saved(number, taken, failed=failed)
        if not failed:
            self.durable |= contents

    @invariant()
    def a_row_is_unsaved_if_its_last_change_is_not_durable(self) -> None:
        for row, count in self.changes.items():
            assert (row in self.unsaved) == (self.durable.get(row, 0) < count)

    @invariant()
    def nothing_is_forgotten_that_is_not_being_saved(self) -> None:
        saving = {row: count for _, _, contents in self.saves for row, count in contents.items()}
        left = {row for row, count in self.changes.items() if max(self.durable.get(row, 0), saving.get(row, 0)) < count}
        assert self.unsaved.changed.keys() == left


TestUnsavedRowsMachine = UnsavedRowsMachine.TestCase
TestUnsavedRowsMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_equal_subscriptions_are_counted_once() -> None:
    subscriptions: Subscriptions[Subscription] = Subscriptions()
    first, same, other = Subscription.to(["b", "a"]), Subscription.to(["a", "b", "a"]), Subscription.to(["c"])
    for each in (first, same, other):
        subscriptions.count(each, 1)
    assert subscriptions.intern(same) is first
    assert [(first, 2), (other, 1)] == list(subscriptions.items())
    assert first.size_bytes + other.size_bytes == subscriptions.size_bytes
    assert {"a", "b", "c"} == subscriptions.names
    for each in (first, other):
        subscriptions.count(each, -1)
    assert same in subscriptions
    assert {"a", "b"} == subscriptions.names
    subscriptions.count(same, -1)
    assert [] == list(subscriptions)
    assert (0, frozenset()) == (subscriptions.size_bytes, subscriptions.names)


def parked(members: ParkedMembers, answers: dict[str, ErrorCode], epoch: int, *member_ids: str) -> None:
    def finish(member_id: str, error: ErrorCode, now: float) -> None:
        answers[member_id] = error

    for member_id in member_ids:
        members.park(member_id, ParkedRequest(partial(finish, member_id), epoch))


def test_newer_request_supersedes_the_parked_one() -> None:
    members, answers = ParkedMembers(), dict[str, ErrorCode]()
    assert not members.supersede("a", 0.0)
    parked(members, answers, 1, "a", "b")
    assert members.supersede("a", 0.0)
    assert ["b"] == list(members)
    members.refuse_all(ErrorCode.not_coordinator, 0.0)
    assert {"a": ErrorCode.coordinator_not_available, "b": ErrorCode.not_coordinator} == answers


def test_parked_requests_are_released_in_portions() -> None:
    members, answers = ParkedMembers(), dict[str, ErrorCode]()
    parked(members, answers, 1, *map(str, range(RELEASE_MAX + 1)))
    parked(members, answers, 2, "later")
    assert members.release(1, 0.0)
    assert RELEASE_MAX == len(answers)
    assert not members.release(1, 0.0)
    assert ["later"] == list(members)
    assert {ErrorCode.none} == set(answers.values())


@given(st.sets(st.integers(0, 50)).map(sorted))
def test_runs_are_the_partitions(partitions: list[int]) -> None:
    runs = runs_of(partitions)
    assert partitions == list(partitions_of(runs))
    assert len(runs) <= 2 * len(partitions)
