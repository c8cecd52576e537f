"""What a writer keeps until the broker has acknowledged it, and when it may send. Pure; guarded by the writer's lock.

The pushes of each subpartition are numbered from 0. Each push is in one of three states:

    state           is in                       left by
    unsent          ``_unsent``, ``_kept``      ``take`` (one credit each) -> sent
    sent            ``_kept``                   ``acknowledged`` -> forgotten; ``disconnected`` -> unsent
    forgotten       -                           -: the broker has it

    event           credit                      effect
    opened          what the broker grants      all kept pushes that the broker does not have are unsent again, in order
    granted         + n
    take            - 1 for each                oldest first
    disconnected    0
    forget          0                           drops all that is kept, because all readers have left

A writer calls ``has_room`` before ``push``. There is room if there is a credit for each unsent push and for the new one, and if
the new push fits into ``max_bytes``. If there is no room, ``lacks`` returns what the writer waits for: a connection, credit, or
acknowledgements, which free memory.

A broker acknowledges what has arrived, but brokers of older releases do so only after a number of pushes, which the window may
never reach. ``unanswered`` is true when the writer waits for an acknowledgement and nothing else can come, because everything was
sent and there is credit for more. The writer then opens the partition again on the same connection, and PartitionOpened says
what the broker has.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from broker.client.shuffle.errors import PartitionLostError
from broker.runtime.disk import Buffer
from protocol.errors import ProtocolError


class Lack(Enum):
    """The reason why a writer has to wait."""

    NOTHING = "nothing"
    CONNECTION = "a connection"
    CREDIT = "credit"
    ACKNOWLEDGEMENT = "an acknowledgement"


class Push(NamedTuple):
    subpartition: int
    sequence: int
    data_type: int
    compressed: bool
    payload: Buffer


class ResendWindow:
    """Invariants: credit >= 0; the kept numbers of a subpartition are dense and end just below ``next_sequences``."""

    __slots__ = (
        "_acknowledged",
        "_connected",
        "_kept",
        "_next",
        "_unsent",
        "credit",
        "kept_bytes",
        "max_bytes",
        "was_opened",
    )

    def __init__(self, subpartitions: int, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.credit = 0
        self.kept_bytes = 0
        self._next = [0] * subpartitions
        self._acknowledged = [0] * subpartitions
        self._kept: list[deque[Push]] = [deque() for _ in range(subpartitions)]
        self._unsent: deque[Push] = deque()
        self._connected = False
        self.was_opened = False  # at least once since the writer was created

    @property
    def next_sequences(self) -> tuple[int, ...]:
        """The sequence number of the next push of each subpartition."""
        return tuple(self._next)

    @property
    def all_sent(self) -> bool:
        return not self._unsent

    @property
    def all_acknowledged(self) -> bool:
        return not any(self._kept)

    def has_room(self, size: int) -> bool:
        """Whether a push of ``size`` bytes is possible now. One above ``max_bytes`` is possible if nothing is kept."""
        if self.credit <= len(self._unsent):
            return False
        return self.kept_bytes + size <= self.max_bytes or not self.kept_bytes

    def lacks(self, size: int) -> Lack:
        """Return the reason why there is no room for a push of ``size`` bytes."""
        if not self._connected:
            return Lack.CONNECTION
        if self.credit <= len(self._unsent):
            return Lack.CREDIT
        return Lack.NOTHING if self.has_room(size) else Lack.ACKNOWLEDGEMENT

    @property
    def unanswered(self) -> bool:
        """All that is kept was sent, and there is credit left: only an acknowledgement can come."""
        return self._connected and self.credit > 0 and not self._unsent and self.kept_bytes > 0

    def push(self, subpartition: int, data_type: int, compressed: bool, payload: Buffer) -> Push:
        """Number the push and keep it."""
        sequence = self._next[subpartition]
        push = Push(subpartition, sequence, data_type, compressed, payload)
        self._next[subpartition] = sequence + 1
        self._kept[subpartition].append(push)
        self._unsent.append(push)
        self.kept_bytes += len(payload)
        return push

    def take(self, most: int) -> list[Push]:
        """The pushes to send now, at most ``most``: as many as there is credit for."""
        unsent = self._unsent
        count = min(most, self.credit, len(unsent))
        self.credit -= count
        return [unsent.popleft() for _ in range(count)]

    def opened(self, credit: int, next_sequences: Iterable[int]) -> None:
        """The broker has opened the partition and states the push of each subpartition that it expects next.

        The first time, a new writer continues from there. Raises PartitionLostError if the broker is behind what it had
        acknowledged, and ProtocolError if it is ahead of what was pushed.
        """
        expected = tuple(next_sequences)
        if len(expected) != len(self._next):
            raise ProtocolError(
                f"PartitionOpened for {len(self._next)} subpartitions has {len(expected)} sequence numbers"
            )
        if not self.was_opened:
            self.was_opened = True
            self._next = list(expected)
            self._acknowledged = list(expected)
        for subpartition, sequence in enumerate(expected):
            if sequence < self._acknowledged[subpartition]:
                raise PartitionLostError(
                    f"the broker has {sequence} buffers of subpartition {subpartition} and had acknowledged"
                    f" {self._acknowledged[subpartition]}"
                )
            self.acknowledged(subpartition, sequence)
        self._connected = True
        self.credit = credit
        self._unsent.clear()
        for kept in self._kept:
            self._unsent.extend(kept)

    def disconnected(self) -> None:
        """What was sent and not acknowledged may be lost, and the credit is void."""
        self._connected = False
        self.credit = 0

    def forget(self) -> None:
        """Drop everything, sent or not."""
        self.disconnected()
        self.kept_bytes = 0
        self._unsent.clear()
        for kept in self._kept:
            kept.clear()

    def granted(self, credit: int) -> None:
        """Raises ProtocolError for a negative credit. Credit that comes while disconnected is void."""
        if credit < 0:
            raise ProtocolError(f"a negative credit: {credit}")
        if self._connected:
            self.credit += credit

    def acknowledged(self, subpartition: int, sequence: int) -> None:
        """The broker has all before ``sequence``. Raises ProtocolError if that was never pushed; an older number is no error."""
        if not 0 <= subpartition < len(self._next) or sequence > self._next[subpartition]:
            raise ProtocolError(
                f"push {sequence - 1} of subpartition {subpartition} was acknowledged, but never pushed"
            )
        kept = self._kept[subpartition]
        while kept and kept[0].sequence < sequence:
            self.kept_bytes -= len(kept.popleft().payload)
        self._acknowledged[subpartition] = max(self._acknowledged[subpartition], sequence)
