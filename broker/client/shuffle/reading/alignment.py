"""Aligns checkpoint barriers over the channels of a task as Flink's SingleCheckpointBarrierHandler does. Pure.

``current`` is the highest checkpoint of which a barrier or cancellation came; it is pending or over (aligned, or cancelled).

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

"Begins": this channel is the first that waits. A barrier that needs no alignment (at least once, unaligned) is counted in
the same way, but no channel waits. Channels are any hashable values.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from protocol.shuffle.events import CheckpointBarrier


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
        self._waiting: list[Hashable] = []  # those of them that wait to be resumed

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
