"""Buffers and credit of a gate, counted exactly as Flink's BufferManager and LocalBufferPool do. Pure; guarded by the gate's
lock.

A channel has ``exclusive`` buffers of its own, which the partition request states as its initial credit, and borrows
floating buffers from the gate's pool when the sender states how many buffers wait there (the backlog). A free buffer
that the sender knows of is a credit. Memory is not cut into segments here, so a buffer is only a number: the right to
hold one payload.

    event                     effect
    data arrives              takes a floating buffer, else an exclusive one; without a free buffer, NoBufferError
    backlog b stated          required = b + exclusive; borrow until that many are free; if the pool is empty, wait in line
    floating returned         goes to the first in line that still requires one (+1 credit for it, and it borrows more)
    exclusive returned        free again, +1 credit; or, if more are free than required, a floating one goes back instead
    sender stops (barrier)    a channel without exclusive buffers returns what it has borrowed
    channel released          free floating ones go back; those still out go back when they are returned

New credit is collected per channel; ``FloatingPool.announce`` holds the channels with credit to announce. Announced
credit is never taken back.
"""

from collections import deque
from typing import Protocol

from broker.client.shuffle.errors import NoBufferError

EXCLUSIVE = 0
FLOATING = 1


class CreditOwner(Protocol):
    """The channel that the buffers belong to."""

    def announce_credit(self) -> None:
        """Send the credit that the sender does not know of yet."""


class FloatingPool:
    """The buffers that the channels of a gate share, and the channels that wait for one."""

    __slots__ = ("announce", "free", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self.waiting: deque[ChannelBuffers] = deque()
        # Channels with unannounced credit; the gate takes them from here.
        self.announce: list[ChannelBuffers] = []

    def recycle(self) -> None:
        """Give a free floating buffer to the first channel that needs one, or keep it in the pool."""
        waiting = self.waiting
        while waiting:
            if waiting.popleft().offered():
                return
        self.free += 1


class ChannelBuffers:
    """The buffers of one channel. ``owner`` announces its credit."""

    __slots__ = (
        "exclusive",
        "exclusive_free",
        "floating_free",
        "owner",
        "pool",
        "released",
        "required",
        "unannounced",
        "waiting",
    )

    def __init__(self, pool: FloatingPool, exclusive: int, owner: CreditOwner | None = None) -> None:
        self.pool = pool
        self.owner = owner
        self.exclusive = exclusive
        self.exclusive_free = exclusive
        self.floating_free = 0
        self.required = 0
        self.unannounced = 0
        self.waiting = False
        self.released = False

    def take(self) -> int:
        """Take a buffer for received data. Returns EXCLUSIVE or FLOATING; raises NoBufferError if no buffer is free."""
        if self.floating_free:
            self.floating_free -= 1
            return FLOATING
        if self.exclusive_free:
            self.exclusive_free -= 1
            return EXCLUSIVE
        raise NoBufferError("the sender has sent a buffer for which it had no credit")

    def take_row(self, count: int) -> int | None:
        """``take`` for ``count`` buffers; returns how many of them are FLOATING: the first ones. None if fewer are
        free; then none is taken."""
        floating = min(count, self.floating_free)
        exclusive = count - floating
        if exclusive > self.exclusive_free:
            return None
        self.floating_free -= floating
        self.exclusive_free -= exclusive
        return floating

    def recycle_row(self, floating: int, exclusive: int) -> None:
        """``recycle`` for this many buffers, floating buffers first."""
        if self.pool.waiting:
            for _ in range(floating):
                self.pool.recycle()
        else:
            self.pool.free += floating
        if self.released:
            return
        if self.floating_free and self.exclusive_free + exclusive + self.floating_free > self.required:
            for _ in range(exclusive):
                self.recycle(EXCLUSIVE)
        else:  # this channel has no floating buffer to give back instead
            self.exclusive_free += exclusive
            self._add_credit(exclusive)

    def recycle(self, kind: int) -> None:
        """A buffer that ``take`` returned is free again."""
        if kind == FLOATING:
            self.pool.recycle()
        elif not self.released:
            self.exclusive_free += 1
            if self.floating_free and self.exclusive_free + self.floating_free > self.required:
                self.floating_free -= 1
                self.pool.recycle()
            else:
                self._add_credit(1)

    def backlog(self, backlog: int) -> None:
        """Borrow floating buffers for a sender that has this many data buffers left."""
        if self.released:
            return
        self.required = backlog + self.exclusive
        self._add_credit(self._borrow())

    def offered(self) -> bool:
        """The pool offers a buffer to this waiting channel. False if the channel no longer needs it."""
        self.waiting = False
        if self.released or self.exclusive_free + self.floating_free >= self.required:
            return False
        self.floating_free += 1
        self._add_credit(1 + self._borrow())
        return True

    def sender_stopped(self) -> None:
        """After an event that blocks the sender: a channel without exclusive buffers returns all it has borrowed."""
        if not self.exclusive:
            self.required = 0
            self.unannounced = 0
            self._give_back()

    def resuming(self) -> None:
        """Called before ResumeConsumption, which makes the sender forget the credit of a channel without exclusive buffers."""
        if not self.exclusive:
            self.unannounced = 0

    def take_unannounced(self) -> int:
        """The credit to announce now; 0 if it became void in between."""
        credit, self.unannounced = self.unannounced, 0
        return credit

    def release(self) -> None:
        """The channel has ended. Calling it twice is no error."""
        self.released = True
        self.required = 0
        self.unannounced = 0
        self.exclusive_free = 0
        self._give_back()

    def _give_back(self) -> None:
        count, self.floating_free = self.floating_free, 0
        for _ in range(count):
            self.pool.recycle()

    def _borrow(self) -> int:
        pool = self.pool
        missing = self.required - self.exclusive_free - self.floating_free
        if missing <= 0 or self.waiting:
            return 0
        count = min(missing, pool.free)
        pool.free -= count
        self.floating_free += count
        if count < missing:
            self.waiting = True
            pool.waiting.append(self)
        return count

    def _add_credit(self, count: int) -> None:
        if count > 0:
            if self.unannounced == 0:
                self.pool.announce.append(self)
            self.unannounced += count
