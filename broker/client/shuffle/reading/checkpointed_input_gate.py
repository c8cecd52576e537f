"""A gate, or a union of gates, with aligned checkpoint barriers (Flink's CheckpointedInputGate).

``BarrierAlignment`` decides what happens at a barrier; this gate carries it out. When the barrier has come on all
channels, the reader gets one barrier (``channel`` -1) and takes its snapshot; at its next ``poll`` the channels are
resumed.

The alignment over the channels of a task is that of Flink's SingleCheckpointBarrierHandler. Pure.

``current`` is the highest checkpoint with a barrier or cancellation so far; it is pending or over (aligned, or cancelled).

    event                        current is      effect
    barrier n > current          pending         current is cancelled and its channels are resumed; n begins
    barrier n > current          over            n begins
    barrier n = current          pending         the channel waits; if all open ones do now: aligned, and they go on
    barrier n = current          over            the channel goes on
    barrier n < current          any             the channel goes on
    cancel n > current           pending         current and n are cancelled, channels go on
    cancel n = current           pending         cancelled, channels go on
    cancel n > current           over            n is cancelled: its barriers that come later do nothing
    cancel n <= current          over (or less)  nothing
    end of partition             pending         the channel no longer counts: maybe aligned now

"Begins": this channel is the first that waits. A barrier that needs no alignment (at least once, unaligned) is counted
in the same way, but no channel waits. Channels are any hashable values.

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent, BufferRun, Item
from broker.client.shuffle.reading.reader import Reader
from protocol.shuffle.data_type import IS_BLOCKING_UPSTREAM, DataType
from protocol.shuffle.events import CancelCheckpointMarker, CheckpointBarrier, EndOfPartition, Event


class Aligned(NamedTuple):
    """The barrier has come on all channels. Take the snapshot, then resume the channels ``resume``."""

    barrier: CheckpointBarrier
    resume: tuple[Hashable, ...]


class Cancelled(NamedTuple):
    """The checkpoint is cancelled. Resume the channels ``resume``."""

    checkpoint_id: int
    resume: tuple[Hashable, ...]


class Waits(NamedTuple):
    """Take nothing from the channel until it is resumed."""

    channel: Hashable


class GoesOn(NamedTuple):
    """The channel's barrier is obsolete. Resume the channel, because its sender waits."""

    channel: Hashable


Effect = Aligned | Cancelled | Waits | GoesOn


class BarrierAlignment:
    """Every method returns the effects to carry out, in order."""

    __slots__ = ("_arrived", "_open", "_pending", "_waiting", "current")

    def __init__(self, channels: Iterable[Hashable]) -> None:
        self.current = -1
        self._open = set(channels)
        self._pending: CheckpointBarrier | None = None
        self._arrived: set[Hashable] = set()  # channels of which the pending barrier has come
        self._waiting: list[Hashable] = []  # the arrived channels that wait to be resumed

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def barrier(self, channel: Hashable, barrier: CheckpointBarrier) -> list[Effect]:
        number = barrier.checkpoint_id
        if number < self.current or (number == self.current and self._pending is None):
            return [GoesOn(channel)]
        effects: list[Effect] = []
        if number > self.current:
            effects += self._cancel()
            self.current = number
            self._pending = barrier
        self._arrived.add(channel)
        if barrier.needs_alignment:
            self._waiting.append(channel)
            effects.append(Waits(channel))
        return effects + self._complete()

    def cancel(self, checkpoint_id: int) -> list[Effect]:
        """Handle a CancelCheckpointMarker, from any channel."""
        if checkpoint_id < self.current or (checkpoint_id == self.current and self._pending is None):
            return []
        effects = self._cancel()
        if checkpoint_id > self.current:
            self.current = checkpoint_id
            effects.append(Cancelled(checkpoint_id, ()))
        return effects

    def end_of_partition(self, channel: Hashable) -> list[Effect]:
        self._open.discard(channel)
        self._arrived.discard(channel)
        return self._complete()

    def _complete(self) -> list[Effect]:
        if self._pending is None or not self._arrived >= self._open:
            return []
        barrier, self._pending = self._pending, None
        return [Aligned(barrier, self._take_waiting())]

    def _cancel(self) -> list[Effect]:
        if self._pending is None:
            return []
        self._pending = None
        return [Cancelled(self.current, self._take_waiting())]

    def _take_waiting(self) -> tuple[Hashable, ...]:
        waiting = tuple(self._waiting)
        self._waiting.clear()
        self._arrived.clear()
        return waiting


class CheckpointedInputGate(Reader):
    """Wraps ``gate``, which must no longer be polled directly. A cancelled checkpoint gives one
    CancelCheckpointMarker."""

    def __init__(self, gate: Reader) -> None:
        self._gate = gate
        self._alignment = BarrierAlignment(range(gate.channels))
        self._given: deque[BufferOrEvent] = deque()  # events that the reader has not seen
        self._resume: list[int] = []  # channels to resume at the next poll

    @property
    def finished(self) -> bool:
        return self._gate.finished and not self._given

    @property
    def channels(self) -> int:
        return self._gate.channels

    def poll(self, timeout: float | None = None) -> BufferOrEvent | None:
        item = self._poll(self._gate.poll, timeout)
        assert not isinstance(item, BufferRun)
        return item

    def poll_run(self, timeout: float | None = None) -> Item | None:
        return self._poll(self._gate.poll_run, timeout)

    def _poll(self, poll: Callable[[float | None], Item | None], timeout: float | None) -> Item | None:
        if self._resume:
            self._resume_channels()
        while not self._given:
            try:
                item = poll(timeout)
            except Exception as error:
                # A failed channel gets no barrier, so the others must not wait for it.
                channel = getattr(error, "channel", None)
                if channel is not None:
                    self._apply(self._alignment.end_of_partition(channel))
                raise
            if item is None:
                return None
            if isinstance(item, BufferRun) or item.event is None:
                return item
            self._event(item)
            if self._resume and not self._given:
                self._resume_channels()
        return self._given.popleft()

    def _event(self, item: BufferOrEvent) -> None:
        event = item.event
        if isinstance(event, CheckpointBarrier):
            self._apply(self._alignment.barrier(item.channel, event))
        elif isinstance(event, CancelCheckpointMarker):
            self._apply(self._alignment.cancel(event.checkpoint_id))
        else:
            self._given.append(item)
            if isinstance(event, EndOfPartition):
                self._apply(self._alignment.end_of_partition(item.channel))
            elif IS_BLOCKING_UPSTREAM[item.data_type]:
                self._resume.append(item.channel)  # these are not aligned

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Waits(channel):
                    self._gate.block(_number(channel))
                case GoesOn(channel):
                    self._resume.append(_number(channel))
                case Aligned(barrier, channels):
                    self._give(barrier)
                    self._resume += map(_number, channels)
                case Cancelled(checkpoint_id, channels):
                    self._give(CancelCheckpointMarker(checkpoint_id))
                    self._resume += map(_number, channels)

    def _give(self, event: Event) -> None:
        item = BufferOrEvent(-1, -1, -1, DataType.EVENT_BUFFER, None, False, None, None)
        item.event = event
        self._given.append(item)

    def _resume_channels(self) -> None:
        channels, self._resume = self._resume, []
        for channel in channels:
            self._gate.resume(channel)

    def resume(self, channel: int) -> None:
        self._gate.resume(channel)

    def block(self, channel: int) -> None:
        self._gate.block(channel)

    def send_event(self, event: Event, channel: int | None = None) -> None:
        self._gate.send_event(event, channel)

    def announce_buffer_size(self, size: int, channel: int | None = None) -> None:
        self._gate.announce_buffer_size(size, channel)

    def aligned(self) -> Reader:
        return self

    def close(self) -> None:
        self._gate.close()


def _number(channel: object) -> int:
    assert isinstance(channel, int)
    return channel
