"""A receiver's view of a partition, of one subpartition or of several as a union; and the receiver's credit.

Owned by the request queue of the receiver's connection, on its processor. The view's state of the partition (cursors, row,
backlog) is guarded by the partition's lock, because a push on another processor adds to it (``buffers_added``). A union takes its
subpartitions in the order in which they have something, and switches only after a buffer that does not end inside a record.

A buffer's cost does not depend on the number of subpartitions. In a finished partition a cursor is created at its turn. In a
pipelined partition each subpartition must know its reader, so opening and closing a view visit all of them: in steps of
``AT_ONCE``, so that neither the partition's lock nor a processor is taken for long.

``Credit`` follows Flink's server and is pure. A credit is room for one data buffer at the receiver. Events need none. After an
event that blocks upstream, nothing is sent until the receiver resumes.

=========  =====================  =========================================================================
blocked    event                  what happens
=========  =====================  =========================================================================
no         add(n)                 credits += n
no         data sent              credits -= 1; only allowed with credits > 0
no         event sent             nothing; a blocking event sets blocked
yes        add(n)                 credits += n, nothing is sent
yes        resume                 blocked = no; with an initial credit of 0, credits = 0: such a receiver
                                  drops its unannounced credit too and asks again by the backlog
no         resume                 the same for the credits
=========  =====================  =========================================================================

A backlog is announced only to receivers that began with a credit of 0, and only while they have none; all others learn it from
their buffers.
"""

from collections import deque
from collections.abc import Callable, Sequence

from broker.network.service import Part
from broker.runtime.disk import FileRegion
from broker.shuffle.partition.holdings import SpillFile
from broker.shuffle.partition.life import LifeState
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.partition.subpartition import COMPRESSED, Cursor
from broker.shuffle.serving.read_ahead import Located, ReadAhead, Taken
from protocol.shuffle.buffer_response import HeaderTemplate
from protocol.shuffle.data_type import (
    AS_KNOWN_BY,
    BUFFERS,
    IS_BLOCKING_UPSTREAM,
    IS_BUFFER,
    IS_PARTIAL_RECORD,
    DataType,
)
from protocol.shuffle.ids import Generation, IndexSet


class Credit:
    __slots__ = ("blocked", "credits", "initial")

    def __init__(self, initial: int) -> None:
        assert initial >= 0
        self.initial = initial
        self.credits = initial
        self.blocked = False

    def add(self, credits: int) -> None:
        self.credits += credits

    def resume(self) -> None:
        if self.initial == 0:
            self.credits = 0
        self.blocked = False

    def may_send(self, data_type: int) -> bool:
        """Whether a buffer of this type may be sent now."""
        return not self.blocked and (self.credits > 0 or not IS_BUFFER[data_type])

    def take(self, data_type: int) -> bool:
        """``may_send``; if True, it counts as sent: a data buffer takes a credit, a blocking event blocks."""
        if self.blocked:
            return False
        if IS_BUFFER[data_type]:
            if self.credits <= 0:
                return False
            self.credits -= 1
        elif IS_BLOCKING_UPSTREAM[data_type]:
            self.blocked = True
        return True

    @property
    def announces_backlog(self) -> bool:
        return self.initial == 0 and self.credits == 0 and not self.blocked


# Subpartitions opened or closed in one step: some 3 ms.
AT_ONCE = 2048

# By the kind of a buffer: whether it holds records.
_IS_BUFFER_KIND = tuple((kind & ~COMPRESSED) in BUFFERS for kind in range(256))

# The result of ``take_frames``: buffers, bytes of payloads, and whether the caller must give them back to the budget.
Frames = tuple[int, int, bool]
NO_FRAMES: Frames = (0, 0, False)

OPEN, FINISHING, FINISHED = LifeState.OPEN, LifeState.FINISHING, LifeState.FINISHED
_END_OF_PARTITION = DataType.END_OF_PARTITION


class PartitionFailed(Exception):
    """The producer has failed."""


class PartitionReleased(Exception):
    """The partition was released, or another reader has it."""


class View:
    """A receiver's view; it implements ``Reader``.

    ``on_data``: there is something to send where there was nothing; called on any thread without locks. ``more``: after
    ``take``, whether another buffer could be sent at once.
    """

    __slots__ = (
        "_acknowledged",
        "_ahead",
        "_closed_to",
        "_file",
        "_indices",
        "_on_data",
        "_opened_to",
        "_types",
        "_unended",
        "alone",
        "credit",
        "current",
        "holdings",
        "idle",
        "more",
        "partition",
        "peer",
        "reader_bytes",
        "row",
        "waiting",
    )

    def __init__(
        self,
        partition: ResultPartition,
        indices: IndexSet,
        credit: Credit,
        on_data: Callable[[], None],
        generation: Generation = Generation.V2_0,
        reader_bytes: int = 0,
    ) -> None:
        """``reader_bytes``: the bytes with which the budget admitted its reader.

        Raises IndexError for subpartitions that do not exist, PartitionReleased if a subpartition has already been read.
        """
        if indices.end >= len(partition.subpartitions):
            raise IndexError(f"subpartitions {indices} of {len(partition.subpartitions)}")
        self.partition = partition
        self.peer = ""  # the peer of its connection, for people
        self.holdings = partition.holdings
        self.alone = indices.size == 1
        self.waiting = 0  # data buffers not taken yet
        self.reader_bytes = reader_bytes
        self._acknowledged = False  # the reader has processed all records
        self._indices = indices
        self._opened_to = indices.start  # earlier subpartitions have, or had, a cursor
        self._closed_to = -1  # earlier subpartitions have been left
        self.credit = credit
        self.row: deque[Cursor] = deque()  # cursors with buffers, except the current cursor
        self.current: Cursor | None = None  # inside a record of a union
        self.idle = True  # it has no data to send, and is to be notified
        self.more = False
        self._file: SpillFile | None = None  # of the buffers just taken
        self._ahead = ReadAhead(partition.budget)
        self._on_data = on_data
        self._types = AS_KNOWN_BY[generation]
        self._unended = indices.size  # subpartitions whose EndOfPartition has not been taken
        with partition.lock:
            if not partition.pipelined:
                self.waiting = partition.readers.data_of(indices)
                self._visit_next()
                self.idle = not self.row
            else:
                parts = partition.subpartitions[indices.start : indices.end + 1]
                if any(part is not None and not part.claimable for part in parts):
                    raise PartitionReleased("a pipelined subpartition can be read once")
                self._claim()
            partition.readers.add(self)

    @property
    def indices(self) -> range:
        return self._indices.indices

    @property
    def finished(self) -> bool:
        """EndOfPartition of every subpartition has been taken."""
        return self._unended == 0

    # -- opening ------------------------------------------------------------------------------------------------------

    def open_further(self) -> bool:
        """Claim the next subpartitions of a pipelined partition. False if all are claimed; the view can be read meanwhile.

        Raises PartitionReleased: another reader came first. The view is then to be closed.
        """
        with self.partition.lock:
            if self._opened_to > self._indices.end or not self.partition.pipelined:
                return False
            self._claim()
        return True

    def _claim(self) -> None:
        begin, end = self._opened_to, min(self._opened_to + AT_ONCE, self._indices.end + 1)
        for index in range(begin, end):
            part = self.partition.part(index)
            if not part.claimable:
                raise PartitionReleased("a pipelined subpartition can be read once")
            cursor = part.claim(self, index)
            self.waiting += part.data_total
            if part.kinds:
                cursor.ready = True
                self.row.append(cursor)
            self._opened_to = index + 1
        if self.row and self.current is None:
            self.idle = False

    def _visit_next(self) -> None:
        """With the lock held, in a finished partition: put the next subpartition in front; each has buffers."""
        index = self._opened_to
        if index <= self._indices.end:
            self._opened_to = index + 1
            part = self.partition.subpartitions[index]
            if part is not None and part.kinds:  # not if it has failed
                cursor = Cursor(self, part, index)
                cursor.ready = True
                self.row.appendleft(cursor)

    # -- from the partition ---------------------------------------------------------------------------------------------

    def buffers_added(self, cursor: Cursor, data: int) -> bool:
        self.waiting += data
        if cursor.ready:
            return False
        cursor.ready = True
        current = self.current
        if current is None:
            self.row.append(cursor)
        elif current is not cursor:
            self.row.append(cursor)
            return False  # the current record comes first
        else:
            self.partition.readers.go_on_inside_record()
        was_idle, self.idle = self.idle, False
        return was_idle

    def notify(self) -> None:
        self._on_data()

    # -- sending --------------------------------------------------------------------------------------------------------

    def take(self, buffers_max: int, bytes_left: int) -> list[Taken]:
        """The next buffers that may be sent: at most ``buffers_max``, and no more after ``bytes_left`` bytes.

        Raises PartitionFailed, PartitionReleased, OSError (a spilled buffer cannot be read).
        """
        partition = self.partition
        taken: list[Located] = []
        more = True
        with partition.lock:
            life = partition.life
            if life is not OPEN and life is not FINISHED and life is not FINISHING:
                self.more = False
                if self.finished:
                    return []
                if life is LifeState.FAILED:
                    raise PartitionFailed(partition.failure)
                raise PartitionReleased
            # Each turn takes a run of a cursor's buffers.
            while more and buffers_max > 0 and bytes_left > 0:
                before = len(taken)
                more, bytes_left = self._take_run(taken, buffers_max, bytes_left)
                buffers_max -= len(taken) - before
            self.more = more
            file = self._file
            writer_waits = partition.writer_waits
        if partition.pipelined:
            self.holdings.settle()
        if writer_waits:
            partition.announce_room()
        if file is None:
            return taken  # type: ignore[return-value]
        self._file = None
        return self._ahead.with_payloads(taken, file)

    def take_frames(
        self, template: HeaderTemplate, sequence: int, frames: list[Part], buffers_max: int, bytes_left: int
    ) -> Frames:
        """Append the frames of the next data buffers to ``frames``; most buffers take this path.

        It is for a view of one subpartition, and for buffers in memory, read ahead, or sent by ``sendfile`` from the file of a
        finished partition. If it takes nothing, ``take`` must, which also determines the reason. The bounds are those of
        ``take``. Raises OSError.
        """
        credit = self.credit
        most = min(credit.credits, buffers_max)
        if most <= 0 or credit.blocked or not self.alone:
            return NO_FRAMES
        partition, types = self.partition, self._types
        pipelined = partition.pipelined
        spilled = None if pipelined else self.holdings.file
        file = None if spilled is None else spilled.get()
        pack, fixed, fixed_bytes = template
        append = frames.append
        with partition.lock:
            life = partition.life
            if not self.row or (life is not OPEN and life is not FINISHED and life is not FINISHING):
                return NO_FRAMES
            cursor = self.row[0]
            part, position = cursor.part, cursor.position
            kinds = part.kinds
            begin = index = position - part.first
            place = position - part.memory_from
            payloads: Sequence[bytes | memoryview | FileRegion | None]
            if place >= 0:
                payloads = part.payloads[place : place + most]
            elif file is not None:
                payloads = self._ahead.at_hand(part, index, most, file)
            else:
                return NO_FRAMES
            waiting = self.waiting
            size_taken = 0
            for payload in payloads:
                kind = kinds[index]
                if not _IS_BUFFER_KIND[kind] or bytes_left <= 0:
                    break
                assert payload is not None, "a buffer was sent twice"
                size = len(payload)
                waiting -= 1
                append(pack(fixed_bytes + size, fixed, sequence, waiting, types[kind & ~COMPRESSED], kind >> 7, size))
                if size:
                    append(payload)
                sequence += 1
                index += 1
                size_taken += size
                bytes_left -= size + 64
            count = index - begin
            if not count:
                return NO_FRAMES
            cursor.position = position = position + count
            credit.credits -= count
            self.waiting = waiting
            if index < len(kinds):
                self.more = credit.credits > 0 or not _IS_BUFFER_KIND[kinds[index]]
            else:
                self.row.clear()
                cursor.ready = self.more = False
                self.idle = True
            owed = pipelined and self.holdings.sent_from_memory(part, position, size_taken, count)
            writer_waits = partition.writer_waits
        if writer_waits:
            partition.announce_room()
        return count, size_taken, owed

    def _take_run(self, taken: list[Located], buffers_max: int, bytes_left: int) -> tuple[bool, int]:
        """With the lock held: take from one cursor, until another's turn. Returns whether there is more, and the bytes left."""
        cursor = self.current
        if cursor is None:
            if not self.row:
                self.idle = True
                return False, bytes_left
            cursor = self.row[0]
        part, types, credit = cursor.part, self._types, self.credit
        kinds, payloads, number = part.kinds, part.payloads, cursor.index
        memory_from, alone = part.memory_from, self.alone
        waiting = self.waiting  # data buffers, the next one included
        begin = position = cursor.position
        index, end = position - part.first, len(kinds)
        memory = in_file_bytes = 0
        more = partial = False
        while index < end:
            kind = kinds[index]
            compressed = kind >= COMPRESSED
            if compressed:
                kind -= COMPRESSED
            data_type = types[kind]
            if buffers_max <= 0 or bytes_left <= 0:
                more = credit.may_send(data_type)
                break
            if not credit.take(data_type):
                break
            payload: bytes | int | None
            if position >= memory_from:
                payload = payloads[position - memory_from]
                assert payload is not None, "a buffer was sent twice"
                size = len(payload)
                memory += size
            else:
                payload, size = part.offsets[index], part.sizes[index]
                in_file_bytes += size
            index += 1
            position += 1
            buffers_max -= 1
            bytes_left -= size + 64
            if IS_BUFFER[data_type]:
                waiting -= 1
                taken.append((number, data_type, compressed, payload, size, waiting))
            else:
                blocks = IS_BLOCKING_UPSTREAM[data_type]
                taken.append((number, data_type, compressed, payload, size, 0 if blocks else waiting))
                if kind == _END_OF_PARTITION:
                    self._unended -= 1
            partial = IS_PARTIAL_RECORD[kind]
            if not alone and not partial:
                more = True
                break
        if position != begin:
            cursor.position = position
            self.waiting = waiting
            more = self._settle(cursor, begin, memory, in_file_bytes, partial, more)
        elif index == end:  # the rest of a record has not come yet
            self.idle = True
        return more, bytes_left

    def _settle(self, cursor: Cursor, begin: int, memory: int, in_file_bytes: int, partial: bool, more: bool) -> bool:
        """With the lock held: the buffers from ``begin`` to before the cursor's position were taken.

        ``memory``, ``in_file_bytes``: bytes of those in memory and in the file; ``partial``: the last one ends inside a record.
        Returns whether there is more; of a single subpartition, ``more``.
        """
        part, position, pipelined = cursor.part, cursor.position, self.partition.pipelined
        has_more = position - part.first < len(part.kinds)
        in_file = min(part.memory_from, position) - begin if part.memory_from > begin else 0
        if in_file:
            self._file = self.holdings.file
            if self.alone and not pipelined:
                self._ahead.look_ahead(part, position)
            else:  # a pipelined partition's file may soon be replaced
                self._ahead.look_no_further()
        if pipelined:
            self.holdings.sent(part, position, memory, position - begin - in_file, in_file, in_file_bytes)
        if self.alone:
            if not has_more:
                self.row.clear()
                cursor.ready = False
                self.idle = True
            return more
        if self.current is None:
            self.row.popleft()
            if not pipelined:
                self._visit_next()
        cursor.ready = has_more
        if partial:
            self.current = cursor
            if not has_more:
                self.idle = True
                self.partition.readers.wait_inside_record()
            return more
        self.current = None
        if has_more:
            self.row.append(cursor)
        if not self.row:
            self.idle = True
            return False
        following = self.row[0].part.at(self.row[0].position)
        assert following is not None
        return self.credit.may_send(self._types[following.data_type])

    def backlog(self) -> int:
        """Data buffers waiting for credit; 0 while it is blocked, and for a partition whose data was dropped."""
        with self.partition.lock:
            if self.credit.blocked or not self.partition.has_data:
                return 0
            return self.waiting

    def acknowledge(self) -> None:
        """Its reader has processed all user records."""
        if not self._acknowledged:
            self._acknowledged = True
            self.partition.records_processed(self.indices)

    # -- closing --------------------------------------------------------------------------------------------------------

    def close(self, cancelled: bool) -> bool:
        """The receiver has left: it ``cancelled`` or closed, or its connection was lost.

        Leaves some subpartitions; False if there are more, for which it must be called again, on any thread.
        """
        partition = self.partition
        if self._closed_to < 0:
            self._ahead.forget()
        with partition.lock:
            if self._closed_to < 0:
                self._closed_to = self._indices.start
                partition.readers.remove(self)
                if self.current is not None and not self.current.ready:
                    partition.readers.go_on_inside_record()
                    self.current = None  # the rest of the record may be pushed before the last step
            if not partition.pipelined:
                return True
            begin, end = self._closed_to, min(self._closed_to + AT_ONCE, self._indices.end + 1)
            for index in range(begin, end):
                part = partition.subpartitions[index]
                if part is None:
                    if not partition.has_data:
                        continue
                    part = partition.part(index)
                cursor = part.cursor
                if cursor is not None and cursor.reader is self:
                    position = cursor.position
                elif index >= self._opened_to and part.claimable:
                    position = part.first  # it was requested, but not opened yet
                else:
                    continue
                partition.readers.leave(part, position, cancelled, sent_all=self.finished)
            self._closed_to = end
            return end > self._indices.end
