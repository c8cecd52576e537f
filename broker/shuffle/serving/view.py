"""What one receiver sees of a partition: one subpartition, or several as a union.

Owned by the request queue of the receiver's connection, on its processor; looks into the partition under the partition's lock.
A union takes its subpartitions in the order in which they have something, and changes from one to another only after a buffer
that does not end in the middle of a record.

What a buffer costs does not depend on how many subpartitions there are. Of a finished partition a cursor is made when its turn
comes. Of a pipelined one each subpartition must know its reader, so opening and closing a view look at all of them: in
steps of ``AT_ONCE``, so that neither the partition's lock nor a processor is taken for long.
"""

from collections import deque
from collections.abc import Callable

from broker.runtime.disk import File, FileRegion
from broker.shuffle.partition.result_partition import FAILED, RELEASED, ResultPartition
from broker.shuffle.partition.spill_file import SpillFile
from broker.shuffle.partition.subpartition import COMPRESSED, Subpartition
from broker.shuffle.serving.credit import Credit
from protocol.shuffle.data_type import AS_KNOWN_BY, IS_BLOCKING_UPSTREAM, IS_BUFFER, IS_PARTIAL_RECORD, DataType
from protocol.shuffle.generation import Generation
from protocol.shuffle.ids import IndexSet

# A spilled buffer from this size on is sent by sendfile; smaller ones are read, with those that lie next to them, at most so
# many bytes at once.
_SENDFILE_BYTES = 8 * 1024
_READ_BYTES = 64 * 1024
# Of a finished partition those that come next are read with them, up to so many bytes: a receiver with little credit, or one of
# many, takes them one by one.
_AHEAD_BYTES = 16 * 1024

# Subpartitions that are opened or closed at once: some 3 ms.
AT_ONCE = 2048

_END_OF_PARTITION = DataType.END_OF_PARTITION
_NOTHING = memoryview(b"")

# A buffer to be sent: subpartition, type (as the receiver's generation knows it), compressed, payload, size, backlog.
Taken = tuple[int, int, bool, "bytes | memoryview | FileRegion", int, int]


# The same, while the payload of a spilled one is its offset in the file.
_Found = tuple[int, int, bool, "bytes | int", int, int]


class PartitionFailed(Exception):
    """The producer has failed."""


class PartitionGone(Exception):
    """The partition was released."""


class Cursor:
    """A view's place in one subpartition. Guarded by the partition's lock, but for ``view``."""

    __slots__ = ("index", "part", "position", "ready", "view")

    def __init__(self, view: "View", part: Subpartition, index: int) -> None:
        self.view = view
        self.part = part
        self.index = index
        self.position = part.first
        self.ready = False  # has something: is in the view's row, or is its current one

    def wants_data(self) -> bool:
        """Called with the lock held when a buffer was added. True if the view must be told."""
        if self.ready:
            return False
        self.ready = True
        view = self.view
        if view.current is None:
            view.row.append(self)
        elif view.current is not self:
            view.row.append(self)
            return False  # the record in hand comes first
        else:
            view.partition.awaited -= 1
        told, view.idle = view.idle, False
        return told


class View:
    """One receiver's view. ``on_data``: there is something where there was nothing; called on any thread without locks.

    ``more`` says, after ``take``, whether another buffer could go right away.
    """

    __slots__ = (
        "_ahead",
        "_ahead_from",
        "_closed_to",
        "_file",
        "_indices",
        "_on_data",
        "_opened_to",
        "_run_end",
        "_types",
        "_unended",
        "acknowledged",
        "alone",
        "credit",
        "current",
        "idle",
        "more",
        "partition",
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
    ) -> None:
        """Raises IndexError for subpartitions that there are not, PartitionGone where one has been read already."""
        if indices.end >= len(partition.subpartitions):
            raise IndexError(f"subpartitions {indices} of {len(partition.subpartitions)}")
        self.partition = partition
        self.alone = indices.size == 1
        self.waiting = 0  # data buffers that it has not taken
        self.reader_bytes = 0  # what its reader was admitted with
        self.acknowledged = False  # the reader has processed all records
        self._indices = indices
        self._opened_to = indices.start  # the subpartitions before have a cursor, or have had one
        self._closed_to = -1  # those before have been let go of
        self.credit = credit
        self.row: deque[Cursor] = deque()  # those that have something, but for the current one
        self.current: Cursor | None = None  # in the middle of a record, where there are several
        self.idle = True  # nothing to send for want of data: to be told
        self.more = False
        self._file: SpillFile | None = None  # what was taken just now lies there
        self._run_end = 0  # and so far what follows it lies in its order
        self._ahead = _NOTHING  # read from there before, and where it begins
        self._ahead_from = 0
        self._on_data = on_data
        self._types = AS_KNOWN_BY[generation]
        self._unended = indices.size
        with partition.lock:
            if not partition.pipelined:
                self.waiting = partition.data_of(indices)
                self._visit_next()
                self.idle = not self.row
            else:
                parts = partition.subpartitions[indices.start : indices.end + 1]
                if any(part is not None and (part.cursor is not None or part.incomplete) for part in parts):
                    raise PartitionGone("a pipelined subpartition can be read once")
                self._claim()
            partition.views[self] = None

    @property
    def indices(self) -> range:
        return self._indices.indices

    def open_further(self) -> bool:
        """Claim the next subpartitions of a pipelined partition. False if all have been; it may be read from meanwhile.

        Raises PartitionGone: another reader has come first. It is to be closed then.
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
            if part.cursor is not None or part.incomplete:
                raise PartitionGone("a pipelined subpartition can be read once")
            cursor = part.cursor = Cursor(self, part, index)
            part.lost = False
            self.waiting += part.data_total
            if part.kinds:
                cursor.ready = True
                self.row.append(cursor)
            self._opened_to = index + 1
        if self.row and self.current is None:
            self.idle = False

    def _visit_next(self) -> None:
        """With the lock held, of a finished partition: put the next subpartition in front; each has something."""
        index = self._opened_to
        if index <= self._indices.end:
            self._opened_to = index + 1
            part = self.partition.subpartitions[index]
            if part is not None and part.kinds:  # not if it has failed
                cursor = Cursor(self, part, index)
                cursor.ready = True
                self.row.appendleft(cursor)

    def notify(self) -> None:
        self._on_data()

    @property
    def finished(self) -> bool:
        """EndOfPartition of every subpartition has been taken."""
        return self._unended == 0

    def take(self, most: int, room: int) -> list[Taken]:
        """The next buffers that may be sent: at most ``most``, and no further one after ``room`` bytes.

        Raises PartitionFailed, PartitionGone, OSError (a spilled buffer cannot be read).
        """
        partition = self.partition
        taken: list[_Found] = []
        more = True
        with partition.lock:
            state = partition.state
            if state is FAILED or state is RELEASED:
                self.more = False
                if self.finished:
                    return []
                if state is FAILED:
                    raise PartitionFailed(partition.failure)
                raise PartitionGone
            # As many turns as it takes: each is a run of one cursor's buffers.
            while more and most > 0 and room > 0:
                before = len(taken)
                more, room = self._take_run(taken, most, room)
                most -= len(taken) - before
            self.more = more
            file = self._file
            starved = partition.starved
        if partition.pipelined:
            partition.settle()
        if starved:
            partition.room()
        if file is None:
            return taken  # type: ignore[return-value]
        self._file = None
        return self._with_spilled(taken, file)

    def take_one(self, room: int) -> list[Taken]:
        """``take(1, room)``, quicker for a buffer in memory, or read ahead: with many receivers this is what is done most.

        The partition is to be settled by the caller.
        """
        partition = self.partition
        with partition.lock:
            state = partition.state
            payload: bytes | memoryview | None = None
            if self.alone and self.row and state is not FAILED and state is not RELEASED:
                cursor = self.row[0]
                part, position = cursor.part, cursor.position
                index = position - part.first
                if position >= part.memory_from:
                    payload = part.payloads[position - part.memory_from]
                    assert payload is not None, "a buffer was sent twice"
                elif self._ahead:
                    start = part.offsets[index] - self._ahead_from
                    end = start + part.sizes[index]
                    if 0 <= start <= end <= len(self._ahead):
                        payload = self._ahead[start:end]
            if payload is not None:
                kind = part.kinds[index]
                compressed = kind >= COMPRESSED
                data_type = self._types[kind & ~COMPRESSED]
                credit = self.credit
                if not credit.take(data_type):
                    self.more = False
                    return []
                position = cursor.position = position + 1
                if IS_BUFFER[data_type]:
                    self.waiting -= 1
                elif kind & ~COMPRESSED == _END_OF_PARTITION:
                    self._unended -= 1
                backlog = 0 if credit.blocked else self.waiting
                following = index + 1
                if following < len(part.kinds):
                    self.more = credit.may_send(self._types[part.kinds[following] & ~COMPRESSED])
                else:
                    self.row.clear()
                    cursor.ready = self.more = False
                    self.idle = True
                size = len(payload)
                if partition.pipelined:
                    partition.sent(part, position, size, 1, 0, 0)
                starved = partition.starved
                found = [(cursor.index, data_type, compressed, payload, size, backlog)]
            else:
                found = None
        if found is None:
            return self.take(1, room)
        if starved:
            partition.room()
        return found  # type: ignore[return-value]

    def _take_run(self, taken: list[_Found], most: int, room: int) -> tuple[bool, int]:
        """With the lock held: from one cursor, up to where another one's turn comes. Whether there is more; the room left."""
        cursor = self.current
        if cursor is None:
            if not self.row:
                self.idle = True
                return False, room
            cursor = self.row[0]
        part, types, credit = cursor.part, self._types, self.credit
        kinds, payloads, number = part.kinds, part.payloads, cursor.index
        position, memory_from = cursor.position, part.memory_from
        waiting = self.waiting  # data buffers, this one included
        alone = self.alone
        begin = position
        index, end = position - part.first, len(kinds)
        memory = in_file_bytes = 0
        more = partial = False
        while index < end:
            kind = kinds[index]
            compressed = kind >= COMPRESSED
            if compressed:
                kind -= COMPRESSED
            data_type = types[kind]
            if most <= 0 or room <= 0:
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
            most -= 1
            room -= size + 64
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
            partition = self.partition
            in_file = min(memory_from, position) - begin if memory_from > begin else 0
            if in_file:
                self._file = partition.file
                # A pipelined one's file may be another one soon.
                self._run_end = _end_of_small(part, position) if alone and not partition.pipelined else 0
            if partition.pipelined:
                partition.sent(part, position, memory, position - begin - in_file, in_file, in_file_bytes)
            if alone:
                if index == end:
                    self.row.clear()
                    cursor.ready = False
                    self.idle = True
            else:
                more = self._go_on(cursor, partial, index < end, more)
        elif index == end:  # the rest of a record has not come yet
            self.idle = True
        return more, room

    def _with_spilled(self, taken: list[_Found], file: SpillFile) -> list[Taken]:
        """Where to send each from: memory, a region of the file, or what is read from it here. OSError."""
        opened: File | None = None
        result: list[Taken] = []
        run, run_start = self._ahead, self._ahead_from
        for position, (subpartition, data_type, compressed, payload, size, backlog) in enumerate(taken):
            where: bytes | memoryview | FileRegion
            if type(payload) is bytes:
                where = payload
            else:
                assert type(payload) is int
                if size >= _SENDFILE_BYTES:
                    opened = opened or file.get()
                    where = FileRegion(opened, payload, size)
                else:
                    if not run_start <= payload <= payload + size <= run_start + len(run):
                        opened = opened or file.get()
                        run_start, run = payload, self._read(opened, payload, _end_of_run(taken, position))
                    where = run[payload - run_start : payload - run_start + size]
            result.append((subpartition, data_type, compressed, where, size, backlog))
        return result

    def _read(self, file: File, start: int, end: int) -> memoryview:
        """At least from ``start`` to ``end``. OSError."""
        budget = self.partition.budget
        ahead = end < self._run_end <= start + _AHEAD_BYTES and not budget.memory_scarce
        if ahead:
            end = self._run_end
        data = memoryview(file.pread(end - start, start))
        if len(data) < end - start:
            raise OSError(f"{file.path} ends before byte {end}")
        self._keep_ahead(data if ahead else _NOTHING, start)
        return data

    def _keep_ahead(self, data: memoryview, start: int) -> None:
        if len(data) != len(self._ahead):
            self.partition.budget.read_ahead(len(data) - len(self._ahead))
        self._ahead, self._ahead_from = data, start

    def _go_on(self, cursor: Cursor, partial: bool, has_more: bool, more: bool) -> bool:
        """With the lock held: after a run was taken from ``cursor`` of a union. Whether there is something for another run."""
        if self.current is None:
            self.row.popleft()
            if not self.partition.pipelined:
                self._visit_next()
        cursor.ready = has_more
        if partial:
            self.current = cursor
            if not has_more:
                self.idle = True
                self.partition.awaited += 1
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
        """Data buffers that wait for credit; 0 while blocked, and of a partition whose data is gone."""
        with self.partition.lock:
            if self.credit.blocked or self.partition.state in (FAILED, RELEASED):
                return 0
            return self.waiting

    def close(self, complete: bool) -> bool:
        """The receiver is gone. ``complete``: by its own will (cancel, close), not by a lost connection.

        Lets go of some subpartitions; False if there are more, for which it is to be called again, on any thread.
        """
        partition = self.partition
        if self._closed_to < 0:
            self._keep_ahead(_NOTHING, 0)
        with partition.lock:
            if self._closed_to < 0:
                self._closed_to = self._indices.start
                partition.views.pop(self, None)
                if self.current is not None and not self.current.ready:
                    partition.awaited -= 1
            if not partition.pipelined:
                return True
            begin, end = self._closed_to, min(self._closed_to + AT_ONCE, self._indices.end + 1)
            for index in range(begin, end):
                part = partition.subpartitions[index]
                if part is None:
                    if partition.state is FAILED or partition.state is RELEASED:
                        continue
                    part = partition.part(index)
                cursor = part.cursor
                if cursor is not None and cursor.view is self:
                    position = cursor.position
                    part.cursor = None
                elif cursor is None and index >= self._opened_to and not part.incomplete:
                    position = part.first  # it was asked for, and its turn had not come
                else:
                    continue
                if partition.retains and not complete:  # what was sent last may have been lost with the connection
                    partition.unread(part, position, sent_all=self.finished)
                else:
                    partition.abandon(part, position, lost=not (complete or self.finished))
            self._closed_to = end
            return end > self._indices.end


def _end_of_small(part: Subpartition, position: int) -> int:
    """Where in the file the small buffers end that lie behind the one before ``position``, or the first of them."""
    offsets, sizes = part.offsets, part.sizes
    index = position - part.first
    end = offsets[index - 1] + sizes[index - 1]
    most = end + _AHEAD_BYTES - _SENDFILE_BYTES
    while index < len(offsets) and end < most and offsets[index] == end and sizes[index] < _SENDFILE_BYTES:
        end += sizes[index]
        index += 1
    return end


def _end_of_run(taken: list[_Found], position: int) -> int:
    """Where in the file the small buffers end that lie there one after another, beginning with ``taken[position]``."""
    start = end = taken[position][3]
    assert type(start) is int
    assert type(end) is int
    for _, _, _, payload, size, _ in taken[position:]:
        if payload != end or size >= _SENDFILE_BYTES or end + size - start > _READ_BYTES:
            break
        end += size
    return end
