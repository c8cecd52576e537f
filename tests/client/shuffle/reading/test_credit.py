"""Credit of a gate: against senders that use all their credit, and as Flink's BufferManager counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.client.shuffle.errors import NoBufferError
from broker.client.shuffle.reading.credit import EXCLUSIVE, FLOATING, ChannelBuffers, FloatingPool


class Sender:
    """The other side of a channel: waiting data and granted credit."""

    def __init__(self, buffers: ChannelBuffers) -> None:
        self.buffers = buffers
        self.waiting = 0
        self.credit = buffers.exclusive
        self.consuming: list[int] = []
        self.announced = 0


class Gate(RuleBasedStateMachine):
    """Senders never send without credit, so the gate must never lack a buffer; and no data is stuck for ever."""

    @initialize(channels=st.integers(1, 4), exclusive=st.integers(0, 3), floating=st.integers(0, 5))
    def begin(self, channels: int, exclusive: int, floating: int) -> None:
        self.pool = FloatingPool(max(floating, 1) if exclusive == 0 else floating)
        self.senders = [Sender(ChannelBuffers(self.pool, exclusive)) for _ in range(channels)]
        for sender in self.senders:
            sender.buffers.owner = sender

    def announce(self) -> None:
        for buffers in self.pool.announce:
            sender = buffers.owner
            assert isinstance(sender, Sender)
            if not buffers.released:
                sender.credit += buffers.take_unannounced()
        self.pool.announce.clear()

    def one(self, data: st.DataObject) -> Sender:
        return self.senders[data.draw(st.integers(0, len(self.senders) - 1))]

    @rule(data=st.data(), count=st.integers(1, 6))
    def produce(self, data: st.DataObject, count: int) -> None:
        sender = self.one(data)
        sender.waiting += count
        if sender.buffers.exclusive == 0 and sender.credit == 0 and not sender.buffers.released:
            sender.buffers.backlog(sender.waiting)  # a BacklogAnnouncement
            self.announce()

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        self.send_one(self.one(data))

    def send_one(self, sender: Sender) -> bool:
        if not sender.waiting or not sender.credit or sender.buffers.released:
            return False
        sender.waiting -= 1
        sender.credit -= 1
        sender.consuming.append(sender.buffers.take())
        sender.buffers.backlog(sender.waiting)
        self.announce()
        if sender.buffers.exclusive == 0 and sender.credit == 0 and sender.waiting:
            sender.buffers.backlog(sender.waiting)
            self.announce()
        return True

    @rule(data=st.data(), most=st.integers(2, 6))
    def send_row(self, data: st.DataObject, most: int) -> None:
        sender = self.one(data)
        count = min(most, sender.waiting, sender.credit)
        if sender.buffers.released or not count:
            return
        assert sender.buffers.take_row(100) is None
        floating = sender.buffers.take_row(count)
        assert floating is not None
        sender.waiting -= count
        sender.credit -= count
        sender.consuming += [FLOATING] * floating + [EXCLUSIVE] * (count - floating)
        sender.buffers.backlog(sender.waiting)
        self.announce()

    @rule(data=st.data(), most=st.integers(2, 6))
    def consume_row(self, data: st.DataObject, most: int) -> None:
        sender = self.one(data)
        row, sender.consuming = sender.consuming[:most], sender.consuming[most:]
        sender.buffers.recycle_row(row.count(FLOATING), row.count(EXCLUSIVE))
        self.announce()

    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        self.consume_one(self.one(data))

    def consume_one(self, sender: Sender) -> bool:
        if not sender.consuming:
            return False
        sender.buffers.recycle(sender.consuming.pop(0))
        self.announce()
        return True

    @precondition(lambda self: len(self.senders) > 1)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.one(data).buffers.release()
        self.announce()

    @invariant()
    def no_buffer_appears_or_disappears(self) -> None:
        if not hasattr(self, "pool"):
            return
        floating = self.pool.free
        for sender in self.senders:
            buffers = sender.buffers
            floating += buffers.floating_free + sender.consuming.count(FLOATING)
            if not buffers.released:
                assert buffers.exclusive == buffers.exclusive_free + sender.consuming.count(EXCLUSIVE)
                assert sender.credit + buffers.unannounced <= buffers.exclusive_free + buffers.floating_free
        assert self.pool.size == floating

    def teardown(self) -> None:
        """All data of senders with a reader arrives."""
        if not hasattr(self, "pool"):
            return
        for sender in self.senders:
            if sender.buffers.exclusive == 0 and sender.credit == 0 and sender.waiting:
                sender.buffers.backlog(sender.waiting)
        self.announce()
        moved = True
        while moved:
            moved = False
            for sender in self.senders:
                moved |= self.consume_one(sender)
                moved |= self.send_one(sender)
        assert [0 if not sender.buffers.released else sender.waiting for sender in self.senders] == [
            sender.waiting for sender in self.senders
        ]


TestGate = Gate.TestCase


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 6), st.integers(0, 6), st.booleans(), st.data())
def test_row_counts_as_its_single_buffers(
    exclusive: int, floating: int, backlog: int, later: int, in_line: bool, data: st.DataObject
) -> None:
    outcomes = []
    count = data.draw(st.integers(0, exclusive + floating))
    for by_row in (False, True):
        pool = FloatingPool(floating)
        other, buffers = ChannelBuffers(pool, 0), ChannelBuffers(pool, exclusive)
        buffers.backlog(backlog)
        if in_line:
            other.backlog(1)
        if count > buffers.exclusive_free + buffers.floating_free:
            assert buffers.take_row(count) is None
            return
        if by_row:
            taken = buffers.take_row(count)
            assert taken is not None
        else:
            taken = [buffers.take() for _ in range(count)].count(FLOATING)
        buffers.backlog(later)
        if by_row:
            buffers.recycle_row(taken, count - taken)
        else:
            for kind in [FLOATING] * taken + [EXCLUSIVE] * (count - taken):
                buffers.recycle(kind)
        state = [getattr(buffers, name) for name in ("exclusive_free", "floating_free", "required", "unannounced")]
        outcomes.append((taken, state, pool.free, other.unannounced, other.floating_free))
    assert outcomes[0] == outcomes[1]


def test_backlog_borrows_floating_buffers_for_all() -> None:
    pool = FloatingPool(8)
    buffers = ChannelBuffers(pool, 2)
    buffers.backlog(5)
    assert (5, 3, 5) == (buffers.floating_free, pool.free, buffers.take_unannounced())


def test_data_takes_floating_buffers_first() -> None:
    buffers = ChannelBuffers(FloatingPool(1), 1)
    buffers.backlog(1)
    assert [FLOATING, EXCLUSIVE] == [buffers.take(), buffers.take()]
    with pytest.raises(NoBufferError):
        buffers.take()


def test_returned_exclusive_buffer_frees_surplus_floating_buffer() -> None:
    pool = FloatingPool(1)
    buffers = ChannelBuffers(pool, 2)
    buffers.backlog(1)
    buffers.take_unannounced()
    taken = [buffers.take(), buffers.take()]
    buffers.recycle(taken[1])
    assert buffers.take_unannounced() == 1
    buffers.backlog(0)
    buffers.recycle(taken[0])
    assert (1, 0) == (pool.free, buffers.take_unannounced())


def test_channel_in_line_gets_returned_buffer() -> None:
    pool = FloatingPool(1)
    first, second = ChannelBuffers(pool, 0), ChannelBuffers(pool, 0)
    first.backlog(1)
    second.backlog(1)
    assert (1, 0) == (first.unannounced, second.unannounced)
    first.recycle(first.take())
    assert (1, 0) == (second.unannounced, pool.free)


def test_blocking_event_takes_buffers_of_nonexclusive_channel() -> None:
    pool = FloatingPool(4)
    buffers = ChannelBuffers(pool, 0)
    buffers.backlog(3)
    buffers.sender_stopped()
    assert (4, 0, 0) == (pool.free, buffers.floating_free, buffers.take_unannounced())


def test_floating_buffers_are_kept_while_all_are_required() -> None:
    pool = FloatingPool(2)
    buffers = ChannelBuffers(pool, 2)
    buffers.backlog(2)
    taken = [buffers.take() for _ in range(3)]
    assert [FLOATING, FLOATING, EXCLUSIVE] == taken
    buffers.backlog(1)
    buffers.take_unannounced()
    buffers.recycle(FLOATING)
    assert (1, 1, 1) == (buffers.exclusive_free, buffers.floating_free, buffers.take_unannounced())
    buffers.recycle(EXCLUSIVE)
    assert (1, 1, 0) == (buffers.floating_free, buffers.take_unannounced(), pool.free)
