"""Records in flight: the table of the docstring, the limits, the locks, ranges, and a model."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.delivery import in_flight
from broker.delivery.in_flight import InFlight, Owner, Record
from tests.loops import loop_over

FIRST, WEIGHT = 5, 3


class Case:
    """A record in a table, and its possible events."""

    def __init__(self, state: str) -> None:
        self.table = InFlight(failures_max=2, lock_s=10.0)
        self.owner = Owner()
        if state == "AVAILABLE":
            self.table.add(FIRST, WEIGHT)
        elif state == "ACQUIRED":
            self.table.acquire(self.owner, FIRST, WEIGHT)

    @property
    def record(self) -> Record:
        return self.table.records[FIRST]

    @property
    def state(self) -> str:
        record = self.table.records.get(FIRST)
        held = self.owner.held.get(FIRST)
        assert held is None or held is record
        assert self.table.unacked == self.owner.unacked == (held.weight if held else 0)
        assert (self.table.next_expiry() is None) == (held is None)
        return "-" if record is None else "AVAILABLE" if held is None else "ACQUIRED"

    def last_fail(self) -> None:
        self.record.failures = 1
        assert not self.table.fail(self.record)

    def fail(self) -> None:
        assert self.table.fail(self.record)
        assert 1 == self.record.failures

    def release(self) -> None:
        self.table.release(self.record)
        assert 0 == self.record.failures


EVENTS: dict[str, Callable[[Case], object]] = {
    "add": lambda case: case.table.add(FIRST, WEIGHT),
    "acquire": lambda case: case.table.acquire(case.owner, FIRST, WEIGHT),
    "lower": lambda case: case.table.lower(case.record, 2),
    "renew": lambda case: case.table.renew(case.record, 5.0),
    "release": Case.release,
    "fail": Case.fail,
    "the last fail": Case.last_fail,
    "remove": lambda case: case.table.remove(case.record),
}
ROWS = re.findall(r"^\| (-|[A-Z]+) \| ([a-z ]+) \| (-|[A-Z]+) \|", in_flight.__doc__ or "", re.MULTILINE)


@loop_over("state", ["-", "AVAILABLE", "ACQUIRED"])
@loop_over("event", list(EVENTS))
def test_every_event_in_every_state_follows_its_row(state: str, event: str) -> None:
    following = [next for from_state, name, next in ROWS if (from_state, name) == (state, event)]
    case = Case(state)
    if following:
        EVENTS[event](case)
        assert following == [case.state]
    else:
        with pytest.raises((AssertionError, KeyError)):
            EVENTS[event](case)


def test_table_knows_no_other_events() -> None:
    assert set(EVENTS) == {event for _, event, _ in ROWS}


# -- limits -----------------------------------------------------------------------------------------------------------


def test_owner_at_limit_is_blocked_down_to_half() -> None:
    table, owner = InFlight(owner_max=4), Owner()
    records = [table.acquire(owner, offset, 1) for offset in range(4)]
    assert owner.blocked
    assert 0 == table.room(owner)
    table.remove(records[0])
    assert owner.blocked
    table.remove(records[1])
    assert not owner.blocked


def test_owner_that_hands_record_back_is_unblocked() -> None:
    table, owner = InFlight(owner_max=4), Owner()
    records = [table.acquire(owner, offset, 1) for offset in range(4)]
    table.fail(records[0])
    assert not owner.blocked
    table.acquire(owner, 0, 1)
    assert owner.blocked


def test_oversized_record_passes_and_blocks_until_its_end() -> None:
    """Pulsar's issue 22657: blocked with less than the limit to come, for ever."""
    table, owner = InFlight(owner_max=10, total_max=10), Owner()
    record = table.acquire(owner, 0, 100)
    assert owner.blocked and table.blocked
    table.lower(record, 94)
    assert owner.blocked and table.blocked
    table.lower(record, 1)
    assert not owner.blocked and not table.blocked


def test_limit_of_one_does_not_block_for_ever() -> None:
    table, owner = InFlight(owner_max=1, total_max=1), Owner()
    record = table.acquire(owner, 0, 1)
    assert owner.blocked and table.blocked
    table.remove(record)
    assert not owner.blocked and not table.blocked


# -- locks ------------------------------------------------------------------------------------------------------------


def test_locks_end_in_the_order_of_their_start() -> None:
    table, owner = InFlight(lock_s=10.0), Owner()
    for offset, now in ((1, 0.0), (2, 1.0), (3, 2.0)):
        table.acquire(owner, offset, 1, now=now)
    table.renew(table.records[1], 3.0)
    assert 11.0 == table.next_expiry()
    assert [] == table.expired(10.9, 10)
    assert [2, 3] == [record.first for record in table.expired(12.5, 10)]
    assert [2] == [record.first for record in table.expired(12.5, 1)]
    for record in table.expired(12.5, 10):
        table.fail(record)
    assert 13.0 == table.next_expiry()


def test_without_locks_nothing_expires() -> None:
    table = InFlight()
    table.acquire(Owner(), 1, 1)
    assert table.next_expiry() is None
    assert [] == table.expired(1e9, 10)


# -- ranges -----------------------------------------------------------------------------------------------------------


@given(
    weights=st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans()), max_size=8),
    bounds=st.sets(st.integers(0, 60), max_size=6),
)
def test_ranges_are_cut_out_of_the_records(weights: list[tuple[int, bool, bool]], bounds: set[int]) -> None:
    table, owner = InFlight(lock_s=10.0), Owner()
    offset = 0
    state = {}
    for number, (weight, present, acquired) in enumerate(weights):
        if present:
            if acquired:
                table.acquire(owner, offset, weight, tag=number, now=float(number))
            else:
                table.add(offset, weight, tag=number)
            state.update(dict.fromkeys(range(offset, offset + weight), (number, acquired)))
        offset += weight
    edges = sorted(bounds)
    ranges = [(first, last - 1) for first, last in zip(edges[::2], edges[1::2], strict=False)]
    records = table.cut(ranges)
    wanted = {offset for first, last in ranges for offset in range(first, last + 1)}
    assert sorted(wanted & set(state)) == [
        offset for record in records for offset in range(record.first, record.first + record.weight)
    ]
    after = {
        offset: (record.tag, record.owner is owner)
        for record in table.records.values()
        for offset in range(record.first, record.first + record.weight)
    }
    assert state == after
    assert owner.unacked == table.unacked == sum(record.weight for record in owner.held.values())
    assert owner.held == {first: record for first, record in table.records.items() if record.owner is owner}
    ends = [record.until for record in table.expired(1e9, 100)]
    assert ends == sorted(ends)
    assert len(ends) == len(owner.held)


# -- a model ----------------------------------------------------------------------------------------------------------


class InFlightMachine(RuleBasedStateMachine):
    """Against a dictionary: offset -> [owner or None, weight, failures, lock]."""

    @initialize(
        owner_max=st.sampled_from([0, 1, 5]), total_max=st.sampled_from([0, 1, 8]), failures_max=st.sampled_from([0, 2])
    )
    def start(self, owner_max: int, total_max: int, failures_max: int) -> None:
        self.owner_max, self.total_max, self.failures_max = owner_max, total_max, failures_max
        self.table = InFlight(owner_max=owner_max, total_max=total_max, failures_max=failures_max, lock_s=3.0)
        self.owners = [Owner(), Owner()]
        self.model: dict[int, list[int | None]] = {}
        self.now = 0
        self.offset = 0

    def pick(self, which: int, *, acquired: bool | None) -> tuple[int, Record] | None:
        offsets = [offset for offset, row in self.model.items() if acquired is None or (row[0] is not None) == acquired]
        offset = offsets[which % len(offsets)] if offsets else None
        return None if offset is None else (offset, self.table.records[offset])

    @rule(weight=st.integers(1, 6), owner=st.integers(0, 1), passed=st.booleans())
    def acquire_new(self, weight: int, owner: int, passed: bool) -> None:
        self.now += passed
        self.table.acquire(self.owners[owner], self.offset, weight, now=self.now)
        self.model[self.offset] = [owner, weight, 0, self.now]
        self.offset += weight

    @rule(which=st.integers(0, 20), owner=st.integers(0, 1))
    def acquire_again(self, which: int, owner: int) -> None:
        if picked := self.pick(which, acquired=False):
            offset, record = picked
            row = self.model[offset]
            assert record is self.table.acquire(self.owners[owner], offset, record.weight, now=self.now)
            self.model[offset] = [owner, row[1], row[2], self.now]

    @rule(which=st.integers(0, 20))
    def remove(self, which: int) -> None:
        if picked := self.pick(which, acquired=None):
            offset, record = picked
            owner = self.model.pop(offset)[0]
            assert self.table.remove(record) is (None if owner is None else self.owners[owner])

    @rule(which=st.integers(0, 20))
    def lower(self, which: int) -> None:
        picked = self.pick(which, acquired=None)
        if picked and picked[1].weight > 1:
            self.table.lower(picked[1], 1)
            row = self.model[picked[0]]
            row[1] = (row[1] or 0) - 1

    @rule(which=st.integers(0, 20))
    def release(self, which: int) -> None:
        if picked := self.pick(which, acquired=True):
            self.table.release(picked[1])
            self.model[picked[0]][0] = None

    def fail_one(self, offset: int, record: Record) -> None:
        row = self.model[offset]
        row[0], row[2] = None, (row[2] or 0) + 1
        assert self.table.fail(record) == (row[2] != self.failures_max)
        if row[2] == self.failures_max:
            del self.model[offset]

    @rule(which=st.integers(0, 20))
    def fail(self, which: int) -> None:
        if picked := self.pick(which, acquired=True):
            self.fail_one(*picked)

    @rule(seconds=st.integers(0, 2))
    def locks_end(self, seconds: int) -> None:
        self.now += seconds
        records = self.table.expired(self.now, 100)
        expected = {
            offset for offset, row in self.model.items() if row[0] is not None and (row[3] or 0) + 3 <= self.now
        }
        assert expected == {record.first for record in records}
        for record in records:
            self.fail_one(record.first, record)

    @rule(offset=st.integers(0, 60))
    def before(self, offset: int) -> None:
        assert {first for first in self.model if first < offset} == {r.first for r in self.table.before(offset)}

    @precondition(lambda self: self.offset > 40)
    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.model.clear()
        self.owners = [Owner(), Owner()]

    @invariant()
    def it_is_as_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        index = {id(owner): number for number, owner in enumerate(self.owners)}
        actual = {
            offset: (None if record.owner is None else index[id(record.owner)], record.weight, record.failures)
            for offset, record in self.table.records.items()
        }
        assert {offset: tuple(row[:3]) for offset, row in self.model.items()} == actual
        total = 0
        for number, owner in enumerate(self.owners):
            weight = sum(row[1] or 0 for row in self.model.values() if row[0] == number)
            total += weight
            assert weight == owner.unacked
            if not self.owner_max or weight <= self.owner_max // 2:
                assert not owner.blocked
        assert total == self.table.unacked
        if not self.total_max or total <= self.total_max // 2:
            assert not self.table.blocked
        if self.total_max and total >= self.total_max:
            assert self.table.blocked


TestInFlight = InFlightMachine.TestCase
TestInFlight.settings = settings(stateful_step_count=60, deadline=None)
