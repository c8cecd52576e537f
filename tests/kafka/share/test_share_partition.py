"""A share partition: the table of the docstring, refusals, bounds, and a model of everything together."""

import re
from collections.abc import Callable, Sequence

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.errors import RequestError
from broker.kafka.share import share_partition
from broker.kafka.share.reading import BATCH_OPTIMIZED, RECORD_LIMIT, Acquisition
from broker.kafka.share.share_partition import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Finished,
    SharePartition,
    ShareSettings,
)
from broker.kafka.share.share_store import decode, restored, state_of
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import AcknowledgementBatch, AcquiredRecords
from tests.loops import loop_over

SETTINGS = ShareSettings(delivery_count_limit=2, max_record_locks=20, record_lock_duration_ms=10_000)
FOREVER = 1e9


def acquire(
    partition: SharePartition,
    member: str,
    *batches: tuple[int, int],
    now: float = 0.0,
    max_records: int = 1000,
    mode: int = BATCH_OPTIMIZED,
    batch_size: int = 0,
) -> list[AcquiredRecords]:
    """The member reads these batches, first and last offset of each."""
    offset = partition.next_offset()
    if offset is None:
        return []
    acquisition = Acquisition(partition, member, offset, now, max_records=max_records, mode=mode, batch_size=batch_size)
    for first, last in batches:
        if last >= offset and not acquisition.full:
            acquisition.take(first, last)
    return acquisition.finish()


def batch(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first, last, bytes(types))


def states(partition: SharePartition) -> dict[int, tuple[str | None, int]]:
    """Holder and failures of each offset in flight."""
    return {
        offset: (holder, failures)
        for first, last, holder, failures in partition.in_flight()
        for offset in range(first, last + 1)
    }


# -- the table --------------------------------------------------------------------------------------------------------------

ROWS = re.findall(r"^\| ([A-Z]+) \| ([a-z ]+) \| ([A-Z]+) \| ([a-z ]+) \|", share_partition.__doc__ or "", re.MULTILINE)


class Case:
    """A record at offset 0, and others behind it."""

    def __init__(self, state: str, *, at_the_limit: bool = False) -> None:
        self.partition = SharePartition(0, SETTINGS)
        if state != "NEW":
            acquire(self.partition, "m", (0, 0), (1, 3))
            if at_the_limit:
                self.partition.acknowledge("m", [batch(0, 0, RELEASE)], 0.0)
                acquire(self.partition, "m", (0, 0))
        if state == "AVAILABLE":
            self.partition.member_left("m")
        self.finished: Sequence[Finished] = ()
        if state == "ACKNOWLEDGED":
            self.finished = self.partition.acknowledge("m", [batch(0, 0, ACCEPT)], 0.0).finished
        self.version = self.partition.version

    def acknowledge(self, kind: int) -> None:
        self.partition.acknowledge("m", [batch(0, 0, kind)], 1.0, may_renew=True)

    @property
    def state(self) -> str:
        if self.partition.start > 0:
            return "DONE"
        found = states(self.partition).get(0)
        return "NEW" if found is None else "AVAILABLE" if found[0] is None else "ACQUIRED"


EVENTS: dict[str, Callable[[Case], object]] = {
    "acquire": lambda case: acquire(case.partition, "m", (0, 0)),
    "absent": lambda case: case.partition.absent(0, 1),
    "start moves": lambda case: case.partition.move_start(1),
    "accept": lambda case: case.acknowledge(ACCEPT),
    "reject": lambda case: case.acknowledge(REJECT),
    "gap": lambda case: case.acknowledge(GAP),
    "release": lambda case: case.acknowledge(RELEASE),
    "release at the limit": lambda case: case.acknowledge(RELEASE),
    "renew": lambda case: case.acknowledge(RENEW),
    "lock ends": lambda case: case.partition.expire(10.0, 100),
    "lock ends at the limit": lambda case: case.partition.expire(10.0, 100),
    "not stored": lambda case: case.partition.not_stored("m", 0, case.finished, 1.0),
    "member leaves": lambda case: case.partition.member_left("m"),
}
# An event that is durable, before the answer or soon, raises the version.
OF_ACKNOWLEDGEMENTS = {"accept", "reject", "gap", "release", "release at the limit", "renew"}


@pytest.mark.parametrize(("state", "event", "following", "durable"), ROWS)
def test_every_event_follows_its_row(state: str, event: str, following: str, durable: str) -> None:
    case = Case(state, at_the_limit=event.endswith("at the limit"))
    EVENTS[event](case)
    assert {"ACKNOWLEDGED": "DONE", "ARCHIVED": "DONE"}.get(following, following) == case.state
    if durable != "no":
        assert case.partition.version > case.version


@loop_over("state", ["NEW", "AVAILABLE", "ACQUIRED"])
@loop_over("event", list(EVENTS))
def test_every_other_event_changes_nothing(state: str, event: str) -> None:
    if event.endswith("at the limit") or (state, event) in [row[:2] for row in ROWS]:
        return
    if (state, event) == ("NEW", "start moves"):
        return  # nobody has had the record, and nobody will
    case = Case(state)
    if event in OF_ACKNOWLEDGEMENTS:
        with pytest.raises(RequestError) as caught:
            EVENTS[event](case)
        assert ErrorCode.invalid_record_state == caught.value.code
    else:
        EVENTS[event](case)
    assert state == case.state


def test_table_knows_no_other_events() -> None:
    assert set(EVENTS) == {event for _, event, _, _ in ROWS}


# -- refusals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([batch(-1, 3, ACCEPT)], ErrorCode.invalid_request),
        ([batch(3, 2, ACCEPT)], ErrorCode.invalid_request),
        ([batch(0, 3)], ErrorCode.invalid_request),
        ([batch(0, 3, ACCEPT, ACCEPT)], ErrorCode.invalid_request),
        ([batch(0, 3, 5)], ErrorCode.invalid_request),
        ([batch(0, 3, 255)], ErrorCode.invalid_request),
        ([batch(0, 3, RENEW)], ErrorCode.invalid_request),
        ([batch(0, 3, ACCEPT), batch(3, 5, ACCEPT)], ErrorCode.invalid_request),
        ([batch(3, 4, ACCEPT), batch(0, 2, ACCEPT)], ErrorCode.invalid_request),
        ([batch(0, 2**62, ACCEPT)], ErrorCode.invalid_request),
        ([batch(0, 10, ACCEPT)], ErrorCode.invalid_request),
        ([batch(10, 10, ACCEPT)], ErrorCode.invalid_record_state),
        ([batch(2**62, 2**63 - 1, ACCEPT)], ErrorCode.invalid_record_state),
        ([batch(0, 0, ACCEPT), batch(2, 9, ACCEPT)], ErrorCode.invalid_record_state),
    ],
)
def test_invalid_acknowledgement_is_refused_as_a_whole(batches: list[AcknowledgementBatch], code: int) -> None:
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 9))
    partition.acknowledge("m", [batch(5, 5, ACCEPT)], 0.0)
    before = state_of(partition), states(partition)
    with pytest.raises(RequestError) as caught:
        partition.acknowledge("m", batches, 0.0)
    assert code == caught.value.code
    assert before == (state_of(partition), states(partition))


def test_another_member_s_records_are_not_acknowledged() -> None:
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 3))
    acquire(partition, "n", (4, 7))
    for member, first, last in (("n", 0, 3), ("m", 0, 7), ("stranger", 0, 0)):
        with pytest.raises(RequestError) as caught:
            partition.acknowledge(member, [batch(first, last, ACCEPT)], 0.0)
        assert ErrorCode.invalid_record_state == caught.value.code


def test_records_removed_by_retention_may_be_acknowledged() -> None:
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 9))
    partition.move_start(5)
    assert 5 == partition.start
    partition.acknowledge("m", [batch(0, 3, ACCEPT), batch(4, 6, RELEASE, REJECT, RELEASE)], 0.0)
    assert {6: (None, 1)} | dict.fromkeys(range(7, 10), ("m", 0)) == states(partition)


def test_record_that_straddles_new_start_keeps_its_rest() -> None:
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 9))
    partition.member_left("m")
    partition.move_start(4)
    assert dict.fromkeys(range(4, 10), (None, 0)) == states(partition)
    assert [AcquiredRecords(4, 9, 1)] == acquire(partition, "n", (0, 9))


# -- acquiring --------------------------------------------------------------------------------------------------------------


def test_nobody_acquires_beyond_the_bound() -> None:
    partition = SharePartition(0, SETTINGS)
    assert [AcquiredRecords(0, 19, 1)] == acquire(partition, "m", (0, 2**31))
    assert partition.next_offset() is None
    assert not partition.can_acquire(2**31)
    partition.acknowledge("m", [batch(1, 19, ACCEPT)], 0.0)
    assert not partition.can_acquire(2**31), "the oldest is still held"
    partition.acknowledge("m", [batch(0, 0, ACCEPT)], 0.0)
    assert [AcquiredRecords(20, 39, 1)] == acquire(partition, "n", (0, 2**31))


def test_released_records_come_before_new_records() -> None:
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 4), (5, 9))
    partition.acknowledge("m", [batch(2, 3, RELEASE), batch(7, 7, ACCEPT)], 0.0)
    assert 2 == partition.next_offset()
    assert [AcquiredRecords(2, 3, 2), AcquiredRecords(10, 12, 1)] == acquire(partition, "n", (0, 4), (5, 9), (10, 12))


def test_batches_are_whole_unless_client_limits_records() -> None:
    partition = SharePartition(0, SETTINGS)
    assert [AcquiredRecords(0, 7, 1)] == acquire(partition, "m", (0, 3), (4, 7), (8, 11), max_records=5)
    partition = SharePartition(0, SETTINGS)
    wanted = acquire(partition, "m", (0, 3), (4, 7), (8, 11), max_records=5, mode=RECORD_LIMIT)
    assert [AcquiredRecords(0, 4, 1)] == wanted
    partition.member_left("m")
    assert [AcquiredRecords(0, 2, 1)] == acquire(partition, "n", (0, 3), max_records=3, mode=RECORD_LIMIT)
    assert {3: (None, 0), 4: (None, 0)}.items() <= states(partition).items()


def test_acquired_ranges_have_the_clients_batch_size() -> None:
    partition = SharePartition(0, SETTINGS)
    acquired = acquire(partition, "m", (0, 2), (3, 5), (6, 8), (9, 11), batch_size=5)
    assert [AcquiredRecords(0, 5, 1), AcquiredRecords(6, 11, 1)] == acquired


def test_offsets_absent_from_log_are_passed_over() -> None:
    """Compaction has removed 0 to 4 and 8 to 9 before anybody has had them, and 5 while it was available."""
    partition = SharePartition(0, SETTINGS)
    assert [AcquiredRecords(5, 7, 1), AcquiredRecords(10, 12, 1)] == acquire(partition, "m", (5, 7), (10, 12))
    assert (5, 13) == (partition.start, partition.end)
    partition.member_left("m")
    assert [AcquiredRecords(6, 7, 1), AcquiredRecords(10, 12, 1)] == acquire(partition, "n", (6, 7), (10, 12))
    assert 6 == partition.start


def test_marker_is_passed_over() -> None:
    partition = SharePartition(0, SETTINGS)
    acquisition = Acquisition(partition, "m", 0, 0.0, max_records=100)
    assert acquisition.take(0, 2)
    assert not acquisition.take(3, 3, visible=False)
    assert acquisition.take(4, 5)
    assert [AcquiredRecords(0, 2, 1), AcquiredRecords(4, 5, 1)] == acquisition.finish()
    assert [(3, 4)] == list(partition.done())


def test_unsent_records_do_not_count() -> None:
    partition = SharePartition(0, SETTINGS)
    acquired = acquire(partition, "m", (0, 2), (3, 5), batch_size=1)
    partition.undo("m", acquired[1:])
    assert dict.fromkeys(range(3), ("m", 0)) | dict.fromkeys(range(3, 6), (None, 0)) == states(partition)
    assert [AcquiredRecords(3, 5, 1)] == acquire(partition, "n", (3, 5))


def test_leaving_member_costs_its_records_no_delivery() -> None:
    partition = SharePartition(0, SETTINGS)
    for _ in range(5):
        assert [AcquiredRecords(0, 3, 1)] == acquire(partition, "m", (0, 3))
        partition.member_left("m")


def test_record_is_delivered_up_to_the_limit() -> None:
    partition = SharePartition(0, SETTINGS)
    for count in (1, 2):
        assert [AcquiredRecords(0, 3, count)] == acquire(partition, "m", (0, 3), now=20.0 * count)
        partition.expire(20.0 * count + 10.0, 100)
    assert (4, 4) == (partition.start, partition.end)


def test_lower_limit_is_in_force_at_once() -> None:
    partition = SharePartition(0, attrs.evolve(SETTINGS, delivery_count_limit=5))
    for _ in range(3):
        acquire(partition, "m", (0, 3))
        partition.acknowledge("m", [batch(0, 3, RELEASE)], 0.0)
    partition.configure(SETTINGS)
    assert [AcquiredRecords(0, 3, 4)] == acquire(partition, "m", (0, 3))
    partition.acknowledge("m", [batch(0, 3, RELEASE)], 0.0)
    assert 4 == partition.start


def test_lock_that_was_renewed_ends_later() -> None:
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 3), now=0.0)
    partition.acknowledge("m", [batch(2, 2, RENEW)], 5.0, may_renew=True)
    partition.expire(10.0, 100)
    assert {2: ("m", 0), 0: (None, 1), 1: (None, 1), 3: (None, 1)} == states(partition)
    assert 15.0 == partition.next_expiry()


def test_thousands_of_ranges_of_one_record_are_bounded() -> None:
    partition = SharePartition(0, ShareSettings())
    acquire(partition, "m", (0, 10_000))
    every_other = [batch(offset, offset, ACCEPT) for offset in range(1, 2000, 2)]
    partition.acknowledge("m", every_other, 0.0)
    assert len(state_of(partition).encode()) < 10_000
    for offset in range(0, 2000, 2):
        partition.acknowledge("m", [batch(offset, offset, RELEASE)], 0.0)
    assert len(state_of(partition).encode()) < 12_000


# -- the state --------------------------------------------------------------------------------------------------------------


def test_records_lost_by_the_log_are_forgotten() -> None:
    """The machine failed, and the end of the log was not durable. Other records get the same offsets."""
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 9))
    partition.acknowledge("m", [batch(2, 8, ACCEPT)], 0.0)
    again = restored(decode(state_of(partition).encode()), SETTINGS, 5)
    assert (0, 5, [(2, 5)]) == (again.start, again.end, list(again.done()))
    partition.acknowledge("m", [batch(0, 1, ACCEPT)], 0.0)
    again = restored(decode(state_of(partition).encode()), SETTINGS, 5)
    assert (5, 5, []) == (again.start, again.end, list(again.done()))


def test_unstored_acknowledgement_restores_the_former_state() -> None:
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 9))
    partition.acknowledge("m", [batch(2, 5, RELEASE)], 0.0)
    acquire(partition, "m", (2, 5))
    before = states(partition)
    lost = partition.acknowledge("m", [batch(0, 3, ACCEPT), batch(5, 6, ACCEPT, REJECT), batch(8, 8, GAP)], 0.0)
    partition.acknowledge("m", [batch(4, 4, ACCEPT), batch(9, 9, ACCEPT)], 0.0)
    assert 7 == partition.start
    partition.not_stored("m", 0, lost.finished, 0.0)
    partition.check()
    assert 0 == partition.start
    assert {offset: state for offset, state in before.items() if offset not in (4, 9)} == states(partition)
    partition.acknowledge("m", [batch(0, 3, ACCEPT), batch(5, 8, ACCEPT)], 0.0)
    assert 10 == partition.start == partition.end


def test_administrator_sets_the_start() -> None:
    partition = SharePartition(0, SETTINGS)
    acquire(partition, "m", (0, 9))
    partition.reset(3)
    assert (3, 3, 1) == (partition.start, partition.end, partition.state_epoch)
    assert {} == states(partition)
    with pytest.raises(RequestError):
        partition.acknowledge("m", [batch(4, 4, ACCEPT)], 0.0)


# -- a model ----------------------------------------------------------------------------------------------------------------


@attrs.define
class Model:
    """The history of a record."""

    state: str = "NEW"  # NEW, AVAILABLE, ACQUIRED, DONE
    holder: str = ""
    failures: int = 0
    until: float = 0.0


class SharePartitionMachine(RuleBasedStateMachine):
    """A model by offset. The log has batches of one to five records, and gaps."""

    MEMBERS = ("a", "b", "c")

    @initialize(locks=st.sampled_from([6, 15, 40]), limit=st.sampled_from([2, 3]))
    def start(self, locks: int, limit: int) -> None:
        self.settings = ShareSettings(delivery_count_limit=limit, max_record_locks=locks, record_lock_duration_ms=3_000)
        self.partition = SharePartition(0, self.settings)
        self.records: dict[int, Model] = {}
        self.batches: list[tuple[int, int]] = []
        self.end = 0
        self.now = 0.0
        self.log_start = 0
        self.accepted: set[int] = set()
        self.unstored: list[tuple[str, Sequence[Finished]]] = []
        self.is_bounded = True  # by the locks

    @rule(size=st.integers(1, 5), gap=st.integers(0, 2))
    def append(self, size: int, gap: int) -> None:
        first = self.end + gap
        self.batches.append((first, first + size - 1))
        self.records.update({offset: Model("DONE") for offset in range(self.end, first)})
        self.records.update({offset: Model() for offset in range(first, first + size)})
        self.end = first + size

    @rule(
        member=st.sampled_from(MEMBERS),
        most=st.integers(1, 12),
        mode=st.sampled_from([BATCH_OPTIMIZED, RECORD_LIMIT]),
        batch_size=st.integers(0, 6),
        read=st.integers(1, 10),
    )
    def fetch(self, member: str, most: int, mode: int, batch_size: int, read: int) -> None:
        offset = self.partition.next_offset()
        if offset is None or offset >= self.end:
            return
        batches = [batch for batch in self.batches if batch[1] >= offset][:read]
        acquired = acquire(
            self.partition, member, *batches, now=self.now, max_records=most, mode=mode, batch_size=batch_size
        )
        count = 0
        before = -1
        for first, last, delivery_count in acquired:
            assert before < first <= last
            before = last
            for number in range(first, last + 1):
                count += 1
                record = self.records[number]
                assert record.state in ("NEW", "AVAILABLE"), f"{number} is delivered although it is {record.state}"
                assert number not in self.accepted
                assert delivery_count == record.failures + 1 <= self.settings.delivery_count_limit
                self.records[number] = Model("ACQUIRED", member, record.failures, self.now + 3)
        if mode == RECORD_LIMIT:
            assert count <= most
        else:
            assert count <= most + 4
        if read >= 10 and batches and acquired == []:
            assert not self.partition.can_acquire(self.end) or self.partition.room <= 0

    @rule(
        member=st.sampled_from(MEMBERS),
        kinds=st.lists(st.integers(0, 4), min_size=1, max_size=5),
        skip=st.integers(0, 5),
        single=st.booleans(),
    )
    def acknowledge(self, member: str, kinds: list[int], skip: int, single: bool) -> None:
        held = [
            number for number, record in self.records.items() if (record.state, record.holder) == ("ACQUIRED", member)
        ]
        held = held[skip:]
        if not held:
            return
        first = last = held[0]
        while last + 1 in held and last - first + 1 < len(kinds):
            last += 1
        kinds = kinds[: last - first + 1]
        types = kinds[:1] if single or len(kinds) == 1 else kinds
        outcome = self.partition.acknowledge(member, [batch(first, last, *types)], self.now, may_renew=True)
        self.unstored.append((member, outcome.finished))
        for number in range(first, last + 1):
            record = self.records[number]
            kind = types[0] if len(types) == 1 else types[number - first]
            if kind == RENEW:
                record.until = self.now + 3
            elif kind == RELEASE:
                self.fail(record)
            else:
                record.state = "DONE"
                if kind == ACCEPT:
                    self.accepted.add(number)

    @rule(which=st.integers(0, 5))
    def not_stored(self, which: int) -> None:
        """Acknowledge, and perhaps fail to store an earlier acknowledgement."""
        if which >= len(self.unstored):
            return
        member, finished = self.unstored.pop(-1 - which)
        self.partition.not_stored(member, 0, finished, self.now)
        self.partition.move_start(self.log_start)
        for piece in finished:
            for number in range(max(self.log_start, piece.first), piece.end):
                failures = self.records[number].failures
                assert failures == piece.failures
                self.records[number] = Model("ACQUIRED", member, failures, self.now + 3)
                self.accepted.discard(number)
        self.is_bounded = False

    @rule()
    def stored(self) -> None:
        self.unstored.clear()

    def fail(self, record: Model) -> None:
        record.failures += 1
        record.state = "DONE" if record.failures >= self.settings.delivery_count_limit else "AVAILABLE"

    @rule(member=st.sampled_from(MEMBERS), first=st.integers(-2, 60), length=st.integers(1, 9))
    def acknowledge_what_it_may_not(self, member: str, first: int, length: int) -> None:
        numbers = range(first, first + length)
        if (
            all(
                number in self.records
                and (self.records[number].state, self.records[number].holder) == ("ACQUIRED", member)
                for number in numbers
                if number >= self.partition.start
            )
            and first >= 0
        ):
            return
        before = states(self.partition), state_of(self.partition)
        with pytest.raises(RequestError):
            self.partition.acknowledge(member, [batch(first, first + length - 1, ACCEPT)], self.now)
        assert before == (states(self.partition), state_of(self.partition))

    @rule(seconds=st.integers(0, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        while self.partition.expire(self.now, 2).available:
            pass
        for record in self.records.values():
            if record.state == "ACQUIRED" and record.until <= self.now:
                self.fail(record)

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        self.partition.member_left(member)
        for record in self.records.values():
            if (record.state, record.holder) == ("ACQUIRED", member):
                record.state = "AVAILABLE"

    @rule(by=st.integers(1, 4))
    def trim(self, by: int) -> None:
        self.log_start = min(self.end, self.log_start + by)
        self.partition.move_start(self.log_start)
        for number, record in self.records.items():
            if number < self.log_start:
                record.state = "DONE"

    @rule()
    def restart(self) -> None:
        """Held records are available again, with their former delivery counts."""
        self.unstored.clear()
        self.partition = restored(decode(state_of(self.partition).encode()), self.settings, self.end)
        for number, record in self.records.items():
            if record.state in ("ACQUIRED", "AVAILABLE"):
                record.state = "AVAILABLE" if number < self.partition.end else "NEW"
            if record.state == "NEW":
                assert record.failures == 0

    @rule()
    def everything_is_delivered_in_the_end(self) -> None:
        """On a copy, with one member that accepts."""
        copy = restored(decode(state_of(self.partition).encode()), self.settings, self.end)
        delivered: set[int] = set()
        while (offset := copy.next_offset()) is not None and offset < self.end:
            acquired = acquire(copy, "z", *[batch for batch in self.batches if batch[1] >= offset])
            for first, last, _ in acquired:
                delivered.update(range(first, last + 1))
                copy.acknowledge("z", [batch(first, last, ACCEPT)], self.now)
        owed = {number for number, record in self.records.items() if record.state != "DONE"}
        assert owed == delivered

    @invariant()
    def it_is_as_the_model(self) -> None:
        if not hasattr(self, "partition"):
            return
        partition = self.partition
        partition.check()
        in_flight = states(partition)
        done = {number for first, end in partition.done() for number in range(first, end)}
        assert not done & set(in_flight)
        assert set(range(partition.start, partition.end)) == done | set(in_flight)
        assert partition.start not in done
        for number, record in self.records.items():
            if number < partition.start or number in done:
                assert record.state == "DONE", number
            elif number in in_flight:
                holder, failures = in_flight[number]
                if record.state == "DONE":
                    assert holder is None, "a gap that was never read"
                else:
                    assert (record.holder if record.state == "ACQUIRED" else None) == holder
                    assert record.failures == failures
            else:
                assert record.state in ("NEW", "DONE")
        assert partition.in_flight_count == sum(record.state == "ACQUIRED" for record in self.records.values())
        assert not self.is_bounded or partition.end - partition.start <= self.settings.max_record_locks + 2, (
            "but for one gap"
        )


TestSharePartition = SharePartitionMachine.TestCase
TestSharePartition.settings = settings(stateful_step_count=60, deadline=None, max_examples=150)
