"""The dispatcher of Exclusive and Failover, against a log, any order of events, and the bugs that others had."""

import re
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.pulsar.dispatch import single_active
from broker.pulsar.dispatch.dispatcher import (
    Activate,
    CancelRead,
    Consumer,
    Deliver,
    Discard,
    DispatchSettings,
    Effect,
    Now,
    Read,
    Replay,
    WakeAt,
)
from broker.pulsar.dispatch.rate_limit import DispatchRate, RateLimit
from broker.pulsar.dispatch.single_active import Exclusive, Failover, SingleActive, State
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor

SETTINGS = DispatchSettings(read_entries_max=4)
TOPIC = "persistent://public/default/t"


def entry(offset: int, messages: int = 1, *, marker: bool = False) -> Entry:
    return Entry(offset=offset, messages=messages, size=10 * messages, data=b"", marker=marker)


def at(seconds: float) -> Now:
    return Now(seconds, int(seconds * 1000))


class Subscription:
    """What the real one does around a dispatcher, without threads: reads are completed when the test says so."""

    def __init__(self, dispatcher: SingleActive, cursor: Cursor) -> None:
        self.dispatcher = dispatcher
        self.cursor = cursor
        self.log: list[Entry] = []
        self.reads: list[Read] = []  # outstanding; the last is current
        self.begun = False  # if so, the last read cannot be cancelled
        self.wake_at: float | None = None
        self.got: dict[object, list[int]] = {}
        self.permitted: dict[object, int] = {}
        self.told: dict[object, bool] = {}

    def carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Read):
                assert effect.max_entries > 0 and effect.max_bytes > 0
                self.reads.append(effect)
                self.begun = False
            elif isinstance(effect, CancelRead):
                if self.reads and not self.begun:
                    self.reads.pop()
            elif isinstance(effect, WakeAt):
                self.wake_at = effect.at
            elif isinstance(effect, Activate):
                self.told[effect.consumer.id] = effect.active
            elif isinstance(effect, Discard):
                for gone in effect.entries:
                    self.cursor.acknowledge(gone.offset, gone.messages)
            else:
                assert isinstance(effect, Deliver)
                assert effect.consumer is self.dispatcher.active
                for delivery in effect.deliveries:
                    assert not delivery.entry.marker
                    self.got.setdefault(effect.consumer.id, []).append(delivery.entry.offset)

    def entries(self, read: Read) -> list[Entry]:
        found = [e for e in self.log if e.offset + e.messages > read.offset]
        return found[: read.max_entries]

    def complete(self, number: int, now: Now, *, failed: bool = False) -> None:
        read = self.reads.pop(number)
        entries = [] if failed else self.entries(read)
        self.carry_out(self.dispatcher.read_done(read, entries, now, failed=failed))

    def run(self, now: Now) -> None:
        """Complete every read that finds something."""
        for _ in range(10_000):
            if not self.reads or not self.entries(self.reads[-1]):
                return
            self.complete(-1, now)
        raise AssertionError("it reads for ever")


class SingleActiveMachine(RuleBasedStateMachine):
    """Any order of consumers, permits, entries, acknowledgements and completions.

    What must hold: only the active consumer is sent anything, in the order of the log from where it was rewound to, and nothing is left out; permits
    are what was given less what was sent; and when everything has come to rest, whoever can be served has been.
    """  # noqa: E501

    @initialize(kind=st.sampled_from(["exclusive", "failover", "partition"]), rate=st.sampled_from([0, 3]))
    def start(self, kind: str, rate: int) -> None:
        self.cursor = Cursor(ranges_max=3)
        limit = RateLimit([DispatchRate(rate)])
        dispatcher: SingleActive
        if kind == "exclusive":
            dispatcher = Exclusive(self.cursor, SETTINGS, limit)
        else:
            dispatcher = Failover(self.cursor, TOPIC, 1 if kind == "partition" else -1, SETTINGS, limit)
        self.kind = kind
        self.subscription = Subscription(dispatcher, self.cursor)
        self.dispatcher = dispatcher
        self.now_s = 100.0
        self.end = 0
        self.ids = 0
        self.given: dict[object, int] = {}

    @property
    def now(self) -> Now:
        return at(self.now_s)

    def take(self, effects: Sequence[Effect]) -> None:
        before = {key: len(got) for key, got in self.subscription.got.items()}
        self.subscription.carry_out(effects)
        del before

    @rule(messages=st.integers(1, 4), marker=st.booleans())
    def append(self, messages: int, marker: bool) -> None:
        self.subscription.log.append(entry(self.end, messages, marker=marker and messages == 1))
        self.end += messages

    @rule(name=st.sampled_from("abc"), priority=st.integers(0, 1))
    def join(self, name: str, priority: int) -> None:
        if len(self.dispatcher.consumers) >= (1 if self.kind == "exclusive" else 4):
            return
        self.ids += 1
        self.take(self.dispatcher.add(Consumer(self.ids, name, priority=priority), self.now))

    @precondition(lambda self: self.dispatcher.consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(list(self.dispatcher.consumers)))
        self.take(self.dispatcher.remove(consumer, self.now))
        assert [] == self.dispatcher.remove(consumer, self.now)

    @precondition(lambda self: self.dispatcher.consumers)
    @rule(data=st.data(), permits=st.integers(1, 6) | st.just(2**31))
    def flow(self, data: st.DataObject, permits: int) -> None:
        consumer = data.draw(st.sampled_from(list(self.dispatcher.consumers)))
        self.given[consumer.id] = self.given.get(consumer.id, 0) + permits
        self.take(self.dispatcher.flow(consumer, permits, self.now))

    @precondition(lambda self: self.dispatcher.consumers)
    @rule(data=st.data(), writable=st.booleans())
    def writable(self, data: st.DataObject, writable: bool) -> None:
        consumer = data.draw(st.sampled_from(list(self.dispatcher.consumers)))
        consumer.writable = writable
        if writable:
            self.take(self.dispatcher.writable(consumer, self.now))

    @precondition(lambda self: self.subscription.reads)
    @rule(data=st.data(), failed=st.booleans())
    def complete(self, data: st.DataObject, failed: bool) -> None:
        number = data.draw(st.integers(0, len(self.subscription.reads) - 1))
        if failed or self.subscription.entries(self.subscription.reads[number]):
            self.subscription.complete(number, self.now, failed=failed)

    @rule()
    def begin_reading(self) -> None:
        self.subscription.begun = True

    @precondition(lambda self: self.subscription.log)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from(self.subscription.log))
        if self.cursor.acknowledged.range_count >= 3:
            return
        count = self.cursor.acknowledge(found.offset, found.messages)
        if count:
            self.take(self.dispatcher.acknowledged(None, found.offset, count, True, self.now))

    @precondition(lambda self: self.subscription.log)
    @rule(data=st.data())
    def mark_deleted(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from(self.subscription.log))
        self.cursor.acknowledge_until(found.offset)
        self.take(self.dispatcher.marked_deleted(found.offset, self.now))

    @precondition(lambda self: self.dispatcher.consumers)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(list(self.dispatcher.consumers)))
        self.take(self.dispatcher.redeliver(consumer, data.draw(st.sampled_from([None, [0]])), self.now))

    @rule(pause_s=st.floats(0.001, 3))
    def wait(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.take(self.dispatcher.tick(self.now))

    @rule()
    def come_to_rest(self) -> None:
        """All timers ring, all reads are completed: then there is nothing left to send to whoever may be sent it."""
        for _ in range(2000):
            if self.dispatcher.state in (State.ACTIVATING, State.PAUSED):
                wake_at = self.subscription.wake_at
                assert wake_at is not None
                self.now_s = max(self.now_s, wake_at)
                self.take(self.dispatcher.tick(self.now))
            elif self.subscription.reads and self.subscription.entries(self.subscription.reads[-1]):
                self.subscription.complete(len(self.subscription.reads) - 1, self.now)
            else:
                break
        active = self.dispatcher.active
        if active is None or active.permits <= 0 or not active.writable or self.cursor.crowded:
            return
        left = [e.offset for e in self.subscription.log if e.offset >= self.cursor.read_offset
                and not self.cursor.is_acknowledged(e.last)]  # fmt: skip
        assert [] == left, "it stands still"
        assert self.dispatcher.state is State.READING and self.subscription.reads, "nobody waits for the next entry"

    @invariant()
    def at_most_one_read_is_current(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        current = [read for read in self.subscription.reads if read.epoch == self.dispatcher._epoch]
        assert len(current) == (self.dispatcher.state is State.READING)

    @invariant()
    def nothing_is_read_past_what_was_not_sent(self) -> None:
        """Whatever lies before the next read was sent to the active consumer, or is acknowledged."""
        if not hasattr(self, "dispatcher") or self.dispatcher.active is None:
            return
        if self.dispatcher.state is State.ACTIVATING:
            return
        got = set(self.subscription.got.get(self.dispatcher.active.id, ()))
        for found in self.subscription.log:
            if found.last < self.cursor.read_offset and not self.cursor.is_acknowledged(found.last):
                assert found.offset in got, f"{found} was left out"


TestSingleActiveMachine = SingleActiveMachine.TestCase
TestSingleActiveMachine.settings = settings(max_examples=150, stateful_step_count=40)


@attrs.define
class Case:
    cursor: Cursor
    dispatcher: SingleActive
    subscription: Subscription
    consumer: Consumer


def exclusive(*entries: Entry, permits: int = 0, limit: RateLimit | None = None) -> Case:
    cursor = Cursor()
    dispatcher = Exclusive(cursor, SETTINGS, limit)
    subscription = Subscription(dispatcher, cursor)
    subscription.log.extend(entries)
    consumer = Consumer("c", "c")
    subscription.carry_out(dispatcher.add(consumer, at(0)))
    if permits:
        subscription.carry_out(dispatcher.flow(consumer, permits, at(0)))
        subscription.run(at(0))
    return Case(cursor, dispatcher, subscription, consumer)


def test_the_states_are_those_of_the_docstring() -> None:
    drawn = re.findall(r"^\| ([A-Z]+) \|", single_active.__doc__ or "", re.MULTILINE)
    assert [state.name for state in State] == drawn


def test_a_consumer_gets_what_it_has_permits_for() -> None:
    case = exclusive(*(entry(offset) for offset in range(20)), permits=5)
    assert list(range(5)) == case.subscription.got["c"]
    assert 0 == case.consumer.permits
    assert case.dispatcher.state is State.IDLE


def test_batch_overdraws_and_rest_of_read_is_kept() -> None:
    # Pulsar's issues 6054 and 10417: permits below 0 must not stop the consumer once it has given enough.
    case = exclusive(*(entry(10 * number, 10) for number in range(5)), permits=11)
    assert [0, 10] == case.subscription.got["c"]
    assert -9 == case.consumer.permits
    case.subscription.carry_out(case.dispatcher.flow(case.consumer, 5, at(0)))
    assert [] == case.subscription.reads
    case.subscription.carry_out(case.dispatcher.flow(case.consumer, 5, at(0)))
    case.subscription.run(at(0))
    assert [0, 10, 20] == case.subscription.got["c"]


def test_permits_of_two_to_the_31_are_accepted() -> None:
    case = exclusive(entry(0), permits=2**31)
    for _ in range(3):
        case.subscription.carry_out(case.dispatcher.flow(case.consumer, 2**31, at(0)))
    assert 4 * 2**31 - 1 == case.consumer.permits


def test_acknowledged_messages_are_neither_sent_nor_counted() -> None:
    case = exclusive(*(entry(10 * number, 10) for number in range(3)))
    case.cursor.acknowledge(0, 10, [0b1100000000])
    case.cursor.acknowledge(10, 10)
    case.subscription.carry_out(case.dispatcher.flow(case.consumer, 100, at(0)))
    read = case.subscription.reads.pop()
    (deliver, *_) = case.dispatcher.read_done(read, case.subscription.entries(read), at(0))
    assert isinstance(deliver, Deliver)
    assert [(0, [0b1100000000]), (20, None)] == [
        (d.entry.offset, None if d.ack_set is None else list(d.ack_set)) for d in deliver.deliveries
    ]
    assert 100 - 12 == case.consumer.permits


def test_server_markers_are_acknowledged_and_not_sent() -> None:
    case = exclusive(entry(0, marker=True), entry(1), entry(2, marker=True), permits=10)
    assert [1] == case.subscription.got["c"]
    assert case.cursor.is_acknowledged(0) and case.cursor.is_acknowledged(2)


def test_redelivery_rewinds_and_a_stale_completion_changes_nothing() -> None:
    # Pulsar's issue 26174: the completion of the read before the rewind clears the mark of the read after it.
    case = exclusive(*(entry(offset) for offset in range(6)), permits=100)
    waiting = case.subscription.reads[-1]
    case.subscription.begun = True  # the read is already under way
    case.subscription.carry_out(case.dispatcher.redeliver(case.consumer, None, at(0)))
    assert [6, 0] == [read.offset for read in case.subscription.reads]
    assert [] == case.dispatcher.read_done(waiting, [entry(6)], at(0))
    assert case.dispatcher.state is State.READING
    case.subscription.log.append(entry(6))
    case.subscription.run(at(0))
    assert [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6] == case.subscription.got["c"]


def test_consumer_is_served_after_disconnect_during_stale_read() -> None:
    # The second half of 26174: the subscription is stranded for ever.
    case = exclusive(*(entry(offset) for offset in range(3)), permits=100)
    case.subscription.begun = True
    case.subscription.carry_out(case.dispatcher.redeliver(case.consumer, None, at(0)))
    case.subscription.begun = True
    case.subscription.carry_out(case.dispatcher.remove(case.consumer, at(0)))
    follower = Consumer("d", "d")
    case.subscription.carry_out(case.dispatcher.add(follower, at(0)))
    case.subscription.carry_out(case.dispatcher.flow(follower, 2, at(0)))
    for number in (0, 0):  # both stale reads complete
        case.subscription.complete(number, at(0))
    case.subscription.run(at(0))
    assert [0, 1] == case.subscription.got["d"]


def test_endless_redelivery_requests_cause_one_read() -> None:
    case = exclusive(*(entry(offset) for offset in range(6)), permits=100)
    effects: list[Effect] = []
    for _ in range(1000):
        effects += case.dispatcher.redeliver(case.consumer, None, at(0))
    assert [CancelRead, Read] == [type(effect) for effect in effects]


def test_redelivery_of_one_message_includes_later_ones() -> None:
    case = exclusive(*(entry(offset) for offset in range(4)), permits=100)
    case.cursor.acknowledge_until(1)
    case.subscription.carry_out(case.dispatcher.redeliver(case.consumer, [3], at(0)))
    case.subscription.run(at(0))
    assert [0, 1, 2, 3, 1, 2, 3] == case.subscription.got["c"]


def test_failed_reads_back_off_with_one_entry() -> None:
    case = exclusive(*(entry(offset) for offset in range(4)))
    case.subscription.carry_out(case.dispatcher.flow(case.consumer, 9, at(0)))
    waits = []
    now_s = 0.0
    for _ in range(8):
        case.subscription.complete(-1, at(now_s), failed=True)
        assert case.subscription.wake_at is not None
        waits.append(case.subscription.wake_at - now_s)
        now_s = case.subscription.wake_at
        case.subscription.carry_out(case.dispatcher.tick(at(now_s)))
        assert 1 == case.subscription.reads[-1].max_entries
    assert [1, 2, 4, 8, 16, 32, 60, 60] == waits
    case.subscription.run(at(now_s))
    assert [0, 1, 2, 3] == case.subscription.got["c"]


def test_empty_read_is_not_repeated_immediately() -> None:
    case = exclusive()
    case.subscription.carry_out(case.dispatcher.flow(case.consumer, 9, at(0)))
    read = case.subscription.reads.pop()
    assert [WakeAt(5.01)] == case.dispatcher.read_done(read, [], at(5))


def test_rate_limits_reads_and_debt_is_waited_for() -> None:
    case = exclusive(*(entry(4 * number, 4) for number in range(9)), limit=RateLimit([DispatchRate(6)]))
    case.subscription.carry_out(case.dispatcher.flow(case.consumer, 100, at(0)))
    case.subscription.run(at(0))
    assert [0, 4] == case.subscription.got["c"]
    assert case.dispatcher.state is State.PAUSED
    assert [] == case.dispatcher.flow(case.consumer, 100, at(0.2))
    case.subscription.carry_out(case.dispatcher.tick(at(1.0)))
    case.subscription.run(at(1.0))
    assert [0, 4, 8] == case.subscription.got["c"]


def test_saturated_connection_causes_no_reads() -> None:
    case = exclusive(entry(0))
    case.consumer.writable = False
    assert [] == case.dispatcher.flow(case.consumer, 10, at(0))
    case.consumer.writable = True
    assert isinstance(case.dispatcher.writable(case.consumer, at(0))[0], Read)


def test_cursor_with_too_many_ranges_awaits_acknowledgement() -> None:
    cursor = Cursor(ranges_max=1)
    dispatcher = Exclusive(cursor, SETTINGS)
    consumer = Consumer("c", "c")
    dispatcher.add(consumer, at(0))
    for offset in (10, 20):
        cursor.skip(offset, offset + 1)
    assert [] == dispatcher.flow(consumer, 10, at(0))
    cursor.acknowledge(0, 10)
    assert isinstance(dispatcher.acknowledged(consumer, 0, 10, True, at(0))[0], Read)


def test_a_skip_ahead_of_the_reader_moves_it() -> None:
    case = exclusive(*(entry(offset) for offset in range(10)), permits=3)
    case.cursor.acknowledge_until(7)
    case.subscription.carry_out(case.dispatcher.marked_deleted(7, at(0)))
    case.subscription.carry_out(case.dispatcher.flow(case.consumer, 9, at(0)))
    case.subscription.run(at(0))
    assert [0, 1, 2, 7, 8, 9] == case.subscription.got["c"]


@pytest.mark.parametrize("count", [1, 3])
def test_it_never_asks_for_single_entries(count: int) -> None:
    case = exclusive(entry(0))
    assert [] == case.dispatcher.replay_done(Replay(range(count), 0), [entry(0)], at(0))
