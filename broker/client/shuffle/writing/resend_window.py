"""The pushes that a writer keeps until the broker has acknowledged them, the credit to send them, and the writer's
states. Pure; guarded by the writer's lock (``SharedState.changed``).

The pushes of each subpartition are numbered from 0. They are kept in runs of consecutive pushes of one subpartition, so
that many are handled at once. Each push is in one of three states:

    state           is in                       left by
    unsent          ``_unsent``, ``_kept``      ``take`` (one credit each) -> sent
    sent            ``_kept``                   ``acknowledged`` -> forgotten; ``disconnected`` -> unsent
    forgotten       -                           -: the broker has it

    event           credit                      effect
    opened          what the broker grants      all kept pushes that the broker does not have are unsent again, in order
    granted         + n
    take            - 1 for each                oldest first
    disconnected    0
    forget          0                           drops all kept pushes, because all readers have left

A writer calls ``has_room`` before ``push``. There is room if there is a credit for each unsent push and for the new
push, and if the new push fits into ``max_bytes``. If there is no room, ``lacks`` returns what the writer waits for: a
connection, credit, or acknowledgements, which free memory.

A broker acknowledges received pushes, but brokers of older releases do so only after a number of pushes, which the
window may never reach. ``unanswered`` is true when the writer waits for an acknowledgement and nothing else can come,
because everything was sent and there is credit for more. The writer then opens the partition again on the same
connection, and PartitionOpened states what the broker has.

``SharedState`` is the state of a writer that the user's threads and the I/O thread share; ``changed`` guards all its
fields. ``TABLE`` has the states of a writer to a broker.

The user causes START (``start``, ``open``), FINISH (``commit``, also when it is called again after a timeout), FAIL (``fail``)
and CLOSE (``close``). The connection causes FINISH_SENT, once for each connection on which FinishPartition was sent, and FAIL
when it is lost and the writer does not connect again. The broker causes PARTITION_FINISHED, READERS_LEFT and FAIL. It reports
PARTITION_FINISHED with PartitionFinished; or, if FinishPartition was sent on a connection that was then lost, by refusing to
open the partition because it is finished. READERS_LEFT means that all readers of a pipelined partition have cancelled: pushes
are dropped, and finishing succeeds. Any other refusal is FAIL.

In FINISHED, FAILED and CLOSED, the writer ignores ``fail`` and the events of the connection and the broker. The callers never
use another pair. The states of the connection are in ``broker_link.py``.

Tests: tests/client/shuffle/writing/test_shuffle_writer.py.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

from broker.client.shuffle.errors import PartitionLostError
from broker.runtime.disk import Buffer
from broker.runtime.threads import Condition
from broker.transitions import Transitions
from protocol.errors import ProtocolError


class WriterState(IntEnum):
    """The order matters: before DISCARDING, a lost connection is established again; from FINISHED on, the outcome is known."""

    NEW = 0
    WRITING = 1
    FINISHING = 2
    COMMITTING = 3
    DISCARDING = 4
    FINISHED = 5
    FAILED = 6
    CLOSED = 7
    FINISHED_AND_CLOSED = 8


class WriterEvent(IntEnum):
    START = 0
    FINISH = 1
    FINISH_SENT = 2
    PARTITION_FINISHED = 3
    READERS_LEFT = 4
    FAIL = 5
    CLOSE = 6


TABLE = Transitions(
    WriterState,
    WriterEvent,
    """
    NEW         START               WRITING
    NEW         FAIL                FAILED
    NEW         CLOSE               CLOSED
    WRITING     FINISH              FINISHING
    WRITING     READERS_LEFT        DISCARDING
    WRITING     FAIL                FAILED
    WRITING     CLOSE               CLOSED
    FINISHING   FINISH              FINISHING
    FINISHING   FINISH_SENT         COMMITTING
    FINISHING   READERS_LEFT        FINISHED
    FINISHING   FAIL                FAILED
    FINISHING   CLOSE               CLOSED
    COMMITTING  FINISH              COMMITTING
    COMMITTING  FINISH_SENT         COMMITTING
    COMMITTING  PARTITION_FINISHED  FINISHED
    COMMITTING  READERS_LEFT        FINISHED
    COMMITTING  FAIL                FAILED
    COMMITTING  CLOSE               CLOSED
    DISCARDING  FINISH              FINISHED
    DISCARDING  FAIL                FAILED
    DISCARDING  CLOSE               CLOSED
    FINISHED    CLOSE               FINISHED_AND_CLOSED
    FAILED      CLOSE               CLOSED
    """,
)
next_state = TABLE.next


class Lack(Enum):
    """The reason why a writer has to wait."""

    NOTHING = "nothing"
    CONNECTION = "a connection"
    CREDIT = "credit"
    ACKNOWLEDGEMENT = "an acknowledgement"


class Taken(NamedTuple):
    """Pushes to send: of one subpartition, numbered from ``sequence`` on, in columns."""

    subpartition: int
    sequence: int
    data_types: Sequence[int]
    compressed: Sequence[bool]
    payloads: Sequence[Buffer]


class _Run:
    """Kept pushes of one subpartition, numbered from ``sequence`` on; ``sent`` of them were sent."""

    __slots__ = ("compressed", "data_types", "payloads", "sent", "sequence", "subpartition")

    def __init__(self, subpartition: int, sequence: int) -> None:
        self.subpartition = subpartition
        self.sequence = sequence
        self.sent = 0
        self.data_types: list[int] = []
        self.compressed: list[bool] = []
        self.payloads: list[Buffer] = []

    @property
    def unsent(self) -> int:
        return len(self.payloads) - self.sent

    def take(self, most: int) -> Taken:
        """The next unsent pushes, which are sent now."""
        begin, end = self.sent, min(self.sent + most, len(self.payloads))
        self.sent = end
        part = slice(begin, end)
        return Taken(
            self.subpartition, self.sequence + begin, self.data_types[part], self.compressed[part], self.payloads[part]
        )

    def forget(self, count: int) -> int:
        """Drop the first pushes; returns their size in bytes."""
        size = sum(map(len, self.payloads[:count]))
        del self.payloads[:count], self.data_types[:count], self.compressed[:count]
        self.sequence += count
        self.sent = max(0, self.sent - count)
        return size


class ResendWindow:
    """Invariants: credit >= 0; the kept numbers of a subpartition are dense and end just below ``next_sequences``."""

    __slots__ = (
        "_acknowledged",
        "_connected",
        "_kept",
        "_next",
        "_unsent",
        "_unsent_pushes",
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
        self._kept: list[deque[_Run]] = [deque() for _ in range(subpartitions)]
        self._unsent: deque[_Run] = deque()  # runs with unsent pushes, in the order of the pushes
        self._unsent_pushes = 0
        self._connected = False
        self.was_opened = False  # at least once since the writer was created

    @property
    def next_sequences(self) -> tuple[int, ...]:
        """The sequence number of the next push of each subpartition."""
        return tuple(self._next)

    @property
    def all_sent(self) -> bool:
        return not self._unsent_pushes

    @property
    def all_acknowledged(self) -> bool:
        return not any(self._kept)

    def has_room(self, size: int) -> bool:
        """Whether a push of ``size`` bytes is possible now. A push above ``max_bytes`` is possible if nothing is
        kept."""
        if self.credit <= self._unsent_pushes:
            return False
        return self.kept_bytes + size <= self.max_bytes or not self.kept_bytes

    def lacks(self, size: int) -> Lack:
        """Return the reason why there is no room for a push of ``size`` bytes."""
        if not self._connected:
            return Lack.CONNECTION
        if self.credit <= self._unsent_pushes:
            return Lack.CREDIT
        return Lack.NOTHING if self.has_room(size) else Lack.ACKNOWLEDGEMENT

    @property
    def unanswered(self) -> bool:
        """Whether all kept pushes were sent and there is credit left: only an acknowledgement can come."""
        return self._connected and self.credit > 0 and not self._unsent_pushes and self.kept_bytes > 0

    def room(self, payloads: Sequence[Buffer], begin: int) -> int:
        """How many of the ``payloads`` from ``begin`` on could be pushed now."""
        most = min(self.credit - self._unsent_pushes, len(payloads) - begin)
        if most <= 0 or not self.has_room(len(payloads[begin])):
            return 0
        left = self.max_bytes - self.kept_bytes
        if sum(map(len, payloads[begin : begin + most])) <= left:
            return most
        count = 0
        for payload in payloads[begin : begin + most]:
            left -= len(payload)
            if left < 0 and count:
                break
            count += 1
        return count

    def push(self, subpartition: int, data_type: int, compressed: bool, payload: Buffer) -> None:
        """Number the push and keep it."""
        run = self._last_run(subpartition)
        run.data_types.append(data_type)
        run.compressed.append(compressed)
        run.payloads.append(payload)
        self._next[subpartition] += 1
        self._unsent_pushes += 1
        self.kept_bytes += len(payload)

    def push_many(self, subpartition: int, data_type: int, compressed: bool, payloads: Sequence[Buffer]) -> None:
        """``push`` for each payload."""
        run = self._last_run(subpartition)
        count = len(payloads)
        run.data_types += [data_type] * count
        run.compressed += [compressed] * count
        run.payloads += payloads
        self._next[subpartition] += count
        self._unsent_pushes += count
        self.kept_bytes += sum(map(len, payloads))

    def _last_run(self, subpartition: int) -> _Run:
        """The run to which a push is added: the last run, if it is of this subpartition and entirely unsent."""
        unsent = self._unsent
        if unsent:
            last = unsent[-1]
            if last.subpartition == subpartition and not last.sent and last.payloads:
                return last
        run = _Run(subpartition, self._next[subpartition])
        unsent.append(run)
        self._kept[subpartition].append(run)
        return run

    def take(self, most: int) -> list[Taken]:
        """The pushes to send now, at most ``most``: as many as there is credit for."""
        unsent = self._unsent
        left = min(most, self.credit, self._unsent_pushes)
        self.credit -= left
        self._unsent_pushes -= left
        taken = []
        while left:
            run = unsent[0]
            part = run.take(left)
            left -= len(part.payloads)
            if not run.unsent:
                unsent.popleft()
            if part.payloads:  # not if all of them were acknowledged before they were sent
                taken.append(part)
        return taken

    def opened(self, credit: int, next_sequences: Iterable[int]) -> None:
        """The broker has opened the partition and states the next push that it expects of each subpartition.

        The first time, a new writer continues from there. Raises PartitionLostError if the broker is behind its own
        acknowledgements, and ProtocolError if it is ahead of the pushes.
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
        self._unsent_pushes = 0
        for kept in self._kept:
            for run in kept:
                run.sent = 0
                self._unsent_pushes += len(run.payloads)
            self._unsent.extend(kept)

    def disconnected(self) -> None:
        """Sent and unacknowledged pushes may be lost, and the credit is void."""
        self._connected = False
        self.credit = 0

    def forget(self) -> None:
        """Drop everything, sent or not."""
        self.disconnected()
        self.kept_bytes = self._unsent_pushes = 0
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
        """The broker has all pushes before ``sequence``. Raises ProtocolError if that was never pushed; an older number
        is no error."""
        if not 0 <= subpartition < len(self._next) or sequence > self._next[subpartition]:
            raise ProtocolError(
                f"push {sequence - 1} of subpartition {subpartition} was acknowledged, but never pushed"
            )
        kept = self._kept[subpartition]
        while kept and kept[0].sequence < sequence:
            run = kept[0]
            count = min(sequence - run.sequence, len(run.payloads))
            self._unsent_pushes -= max(0, count - run.sent)
            self.kept_bytes -= run.forget(count)
            if not run.payloads:
                kept.popleft()
        self._acknowledged[subpartition] = max(self._acknowledged[subpartition], sequence)


class SharedState:
    __slots__ = ("changed", "error", "readers_left", "state", "waiting_threads", "window")

    def __init__(self, window: ResendWindow) -> None:
        self.changed = Condition()
        self.window = window
        self.state = WriterState.NEW
        self.error: Exception | None = None  # the reason for FAILED; kept when the writer is closed
        self.readers_left = False  # all readers have cancelled; stays true in the states after DISCARDING
        self.waiting_threads = 0

    @property
    def is_finishing(self) -> bool:
        """``commit`` was called, and the partition is not finished yet."""
        return self.state is WriterState.FINISHING or self.state is WriterState.COMMITTING

    def advance(self, event: WriterEvent) -> None:
        self.state = next_state(self.state, event)

    def fail(self, error: Exception) -> None:
        """Record the first error, unless the partition is finished, and wake all waiting threads."""
        if self.state < WriterState.FINISHED:
            self.state = next_state(self.state, WriterEvent.FAIL)
            self.error = error
        elif self.state is WriterState.CLOSED and self.error is None:
            self.error = error  # for a thread still waiting
        self.changed.notify_all()

    def wake_waiting(self) -> None:
        """Wake the waiting threads, after a change that a thread may wait for."""
        if self.waiting_threads:
            self.changed.notify_all()
