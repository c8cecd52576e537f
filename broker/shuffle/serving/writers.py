"""The writers of one connection: handles, credit, acknowledgements.

On the connection's processor, but for what ``Partitions.finish`` reports, which comes back to it through the outbox.

Back-pressure is credit held back. A writer is granted a window of pushes when it opens; what it uses is granted again, a quarter
of the window at a time, as long as there is room: all partitions together within the memory and disk budget, a pipelined
partition within its own bound. What is held back is granted when the spiller or a reader has made room. Who pushes small buffers
gets a larger window, up to eight times as many: a writer that waits after each 64 KiB does little but wait.

Credit counts buffers and is backed by bytes: for each, room for a buffer as large as the writer's last ones is reserved in the
budget, for the first as for Flink's 32 KiB. A window holds at most as many bytes as one of buffers of 32 KiB, but always a few
buffers. Who pushes larger ones than that, when there is no room but for what others were promised, loses its connection. It
connects again, is told how far it got, and gets credit for buffers as large as it makes them. It gets none at once: that tells it
to wait, so that it does not count the lost connection against the broker, and others have their turn first.

The newest opening of a partition has it. What comes by the handle of an older one is refused (see ``result_partition``), and its
writer is told at once, on its own connection's processor.
"""

from collections.abc import Callable
from functools import partial

import attrs

from broker.network.service import Connection, Outbox
from broker.shuffle.partition.budget import IN_FILE_BYTES, IN_MEMORY_BYTES, NoRoom
from broker.shuffle.partition.result_partition import (
    FAILED,
    OPEN,
    AfterTheEnd,
    Fenced,
    Finishing,
    OverQuota,
    ResultPartition,
    SequenceGap,
)
from broker.shuffle.partitions import Partitions, Refused
from broker.shuffle.serving.acknowledgement import Unacknowledged
from broker.shuffle.spill.spiller import Spiller
from protocol.errors import ProtocolError
from protocol.shuffle.writer_frames import (
    NO_HANDLE,
    NO_WRITER,
    CloseWriter,
    FailPartition,
    FinishPartition,
    ListPartitions,
    OpenPartition,
    PushBuffer,
    ReleaseDataSet,
    ReleasePartition,
    WriterErrorCode,
    WriterFrame,
    encode_all_records_processed,
    encode_buffer_size_hint,
    encode_data_set_released,
    encode_partition_finished,
    encode_partition_list,
    encode_partition_opened,
    encode_partition_released,
    encode_push_acknowledged,
    encode_writer_credit,
    encode_writer_error,
    encode_writer_task_event,
)

# A window holds so many bytes for each push of its first size, when buffers are smaller than that; and at most so many times the
# pushes.
_SMALL_BYTES = 8 * 1024
_LARGER_MAX = 8
_JUDGED_BY = 16
# What a buffer is taken for before there was one, and above which a window has fewer: Flink's memory segment.
_BUFFER_BYTES = 32 * 1024
# A window of larger buffers has so many of them, all the same.
_LARGE_LEAST = 4
# A buffer as large as one of the last 64 to 128 may come again: credit is for as large ones.
_REMEMBERED = 64
# Spilled buffers that a partition may have, as a part of what there is memory for: then they are too small.
_INDEX_SHARE = 4

_FENCED = "another writer has opened the partition under the same writer id"


@attrs.frozen
class WriterSettings:
    window: int  # pushes granted at first


@attrs.define(eq=False)
class Writer:
    """One opened partition. ``epoch``: of this opening."""

    handle: int
    partition: ResultPartition
    epoch: int
    window: int  # pushes that it may be ahead of what it is granted again
    used: int = 0  # credits used and not granted again
    used_bytes: int = 0  # of these pushes
    largest: int = 0  # of the last pushes, up to 64
    largest_before: int = 0  # of the 64 before them
    pushes: int = 0  # granted again since then
    reserved: int = 0  # bytes that the budget keeps for its credit, what is used of it included
    unacknowledged: Unacknowledged = attrs.Factory(Unacknowledged)
    finished: bool = False

    @property
    def buffer_bytes(self) -> int:
        """How large a buffer may be that comes next, going by the last ones."""
        return max(self.largest, self.largest_before)

    def forget_sizes(self) -> None:
        self.pushes += self.used
        if self.pushes >= _REMEMBERED:
            self.largest_before, self.largest, self.pushes = self.largest, 0, 0


class Writers:
    """Those of one connection."""

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        partitions: Partitions,
        spiller: Spiller,
        settings: WriterSettings,
    ) -> None:
        self._connection = connection
        self._outbox = outbox
        self._partitions = partitions
        self._spiller = spiller
        self._budget = partitions.budget
        self._window = settings.window
        self._writers: dict[int, Writer] = {}
        self._by_partition: dict[ResultPartition, Writer] = {}  # the same
        self._next_handle = 1
        self._acknowledges_soon = False  # what waits for it now

    def __len__(self) -> int:
        return len(self._writers)

    def handle(self, frame: WriterFrame) -> None:
        """Act on a frame other than a push. Raises ProtocolError for a handle that was never given."""
        if isinstance(frame, OpenPartition):
            self._open(frame)
        elif isinstance(frame, ReleasePartition):
            existed = self._partitions.release(frame.partition)
            self._send(encode_partition_released(frame.correlation, existed))
        elif isinstance(frame, ReleaseDataSet):
            released = self._partitions.release_data_set(frame.data_set)
            self._send(encode_data_set_released(frame.correlation, released))
        elif isinstance(frame, ListPartitions):
            self._send(encode_partition_list(frame.correlation, self._partitions.list(frame.prefix.lower())))
        else:
            assert not isinstance(frame, PushBuffer)
            writer = self._get(frame.handle)
            if writer is None:
                return
            if isinstance(frame, FinishPartition):
                self._finish(writer)
            elif isinstance(frame, FailPartition):
                self._fail(writer, frame.message)
            elif isinstance(frame, CloseWriter):
                self._acknowledge(writer)
                self._lose(writer)

    def close(self) -> None:
        """The connection is gone."""
        for writer in list(self._writers.values()):
            self._lose(writer)

    # -- what others tell a writer; on this connection's processor ------------------------------------------------------

    def room(self, partition: ResultPartition) -> None:
        """There is room again: grant what was held back."""
        for writer in self._of(partition):
            self._grant(writer)

    def task_event(self, partition: ResultPartition, subpartition: int, event: bytes) -> None:
        for writer in self._of(partition):
            self._send(encode_writer_task_event(writer.handle, subpartition, event))

    def buffer_size(self, partition: ResultPartition, subpartition: int, size: int) -> None:
        for writer in self._of(partition):
            self._send(encode_buffer_size_hint(writer.handle, subpartition, size))

    def all_processed(self, partition: ResultPartition, subpartitions: list[int]) -> None:
        for writer in self._of(partition):
            self._send(b"".join(encode_all_records_processed(writer.handle, index) for index in subpartitions))

    def gone(self, partition: ResultPartition) -> None:
        """The partition has failed or was released, by somebody else's doing."""
        for writer in self._of(partition):
            self._gone(writer)

    def _of(self, partition: ResultPartition) -> list[Writer]:
        """Its writer, if it is on this connection."""
        writer = self._by_partition.get(partition)
        return [] if writer is None else [writer]

    def fenced(self, partition: ResultPartition) -> None:
        """Another connection has opened it."""
        for writer in self._of(partition):
            if writer.epoch != partition.epoch:
                self._fenced(writer)

    # -- the frames -----------------------------------------------------------------------------------------------------

    def push(self, frame: PushBuffer) -> None:
        """Take a buffer. Raises ProtocolError for a handle that was never given, NoRoom: the connection is to be closed."""
        handle, subpartition, sequence, data_type, compressed, payload = frame
        writer = self._writers.get(handle)
        if writer is None:
            self._get(handle)
            return
        partition = writer.partition
        used = writer.used = writer.used + 1
        size = len(payload)
        writer.used_bytes += size
        if size > writer.largest:
            writer.largest = size
        if used > writer.window:
            self._give_up(writer, WriterErrorCode.BAD_REQUEST, "more was pushed than there was credit for", lost=True)
            return
        try:
            # More than was promised: it is taken if there is room beside what others were promised.
            more = writer.reserved if writer.used_bytes + used * IN_MEMORY_BYTES > writer.reserved else None
            expected = partition.append(subpartition, sequence, data_type, compressed, payload, writer.epoch, more)
        except Fenced:
            self._fenced(writer)
            return
        except NoRoom:
            partition.cut_off = True
            self._lose(writer)  # what has arrived behind it is passed over
            raise
        except IndexError:
            count = len(partition.subpartitions)
            self._give_up(writer, WriterErrorCode.BAD_REQUEST, f"subpartition {subpartition} of {count}", lost=True)
            return
        except AfterTheEnd as error:
            self._give_up(writer, WriterErrorCode.BAD_REQUEST, str(error), lost=True)
            return
        except SequenceGap as gap:
            self._give_up(writer, WriterErrorCode.SEQUENCE_GAP, str(gap), lost=True)
            return
        except OverQuota as over:
            self._give_up(writer, WriterErrorCode.QUOTA_EXCEEDED, str(over))
            self._partitions.fail(partition, f"the producer's quota is used up: {over}", writer.epoch)
            return
        if partition.state is not OPEN:
            self._gone(writer)
            return
        if writer.unacknowledged.add(subpartition, expected, len(payload), self._connection.last_active):
            self._acknowledge(writer)
        elif not self._acknowledges_soon:
            self._acknowledges_soon = True
            self._partitions.acknowledgements.call(self._acknowledgement_due)
        # A quarter, so that credit and acknowledgements are few and the writer never has to stop for them.
        if used * 4 >= writer.window:
            self._grant(writer)
        if self._budget.memory_scarce or partition.spill_early:
            self._spiller.press()

    def _open(self, frame: OpenPartition) -> None:
        try:
            partition = self._partitions.open(frame)
        except Refused as refused:
            self._send(encode_writer_error(frame.writer, NO_HANDLE, refused.code, str(refused)))
            return
        try:
            epoch, next_sequences, fence = partition.take_over(
                self._call, frame.incarnation, frame.resumes, frame.attempt
            )
        except Fenced:
            self._refuse_opening(frame)
            return
        except Finishing:  # the answer depends on how that ends
            partition.when_finished(partial(self._finishing_ended, frame))
            return
        self._partitions.writer_came(partition)
        for before in self._of(partition):  # opened again on the same connection: the old handle means nothing any more
            self._forget(before)
        if fence is not None and fence != self._call:
            fence(partial(_fence, partition))
        writer = Writer(self._next_handle, partition, epoch, 0)
        self._next_handle += 1
        self._writers[writer.handle] = self._by_partition[partition] = writer
        writer.largest_before = partition.buffer_bytes or min(_BUFFER_BYTES, self._budget.memory_max // 8)
        if partition.cut_off:
            partition.cut_off = False
            credit = 0
            partition.starved = True
            self._partitions.acknowledgements.call(partition.room)  # soon: there may be room, and nobody else to say so
        else:
            credit = self._promised(writer, self._fitting_window(writer))
        self._send(encode_partition_opened(frame.writer, writer.handle, credit, next_sequences))
        if partition.state is not OPEN and not partition.read_to_end:  # between the two
            self._gone(writer)

    def _finishing_ended(self, frame: OpenPartition, fenced: bool) -> None:
        """On any thread: of the partition that ``frame`` is to open."""
        answer = self._refuse_opening if fenced else self._open
        self._outbox.call(self._connection, partial(answer, frame))

    def _refuse_opening(self, frame: OpenPartition) -> None:
        self._send(encode_writer_error(frame.writer, NO_HANDLE, WriterErrorCode.FENCED, _FENCED))

    def _fenced(self, writer: Writer) -> None:
        self._give_up(writer, WriterErrorCode.FENCED, _FENCED)

    def _fail(self, writer: Writer, message: str) -> None:
        partition = writer.partition
        if not self._partitions.fail(partition, message, writer.epoch) and writer.epoch != partition.epoch:
            self._fenced(writer)
        else:
            self._forget(writer)

    def _gone(self, writer: Writer) -> None:
        code = WriterErrorCode.RELEASED
        text = writer.partition.failure or "the partition was released"
        if writer.partition.state is not FAILED and self._partitions.lost_race(writer.partition.id):
            code, text = WriterErrorCode.ANOTHER_ATTEMPT_WON, "another attempt has finished"
        elif writer.partition.unwanted:
            code, text = WriterErrorCode.READERS_GONE, "all readers have cancelled"
        self._give_up(writer, code, text)

    def _finish(self, writer: Writer) -> None:
        if writer.finished:
            return  # the answer to the first is on its way
        try:
            writer.partition.begin_to_finish(writer.epoch)
        except Fenced:
            self._fenced(writer)
            return
        writer.finished = True
        self._reserve(writer, 0, leaves=True)
        self._acknowledge(writer)
        self._partitions.finish(writer.partition, partial(self._finish_came, writer))

    def _finish_came(self, writer: Writer, refused: Refused | None) -> None:
        """On any thread."""
        self._outbox.call(self._connection, partial(self._finish_done, writer, refused))

    def _finish_done(self, writer: Writer, refused: Refused | None) -> None:
        if writer.handle not in self._writers:
            return
        if refused is None:
            self._forget(writer)
            self._send(encode_partition_finished(writer.handle))
        else:
            self._give_up(writer, refused.code, str(refused))

    # -- credit ---------------------------------------------------------------------------------------------------------

    def _call(self, work: Callable[["Writers"], None]) -> None:
        """From any thread."""
        self._outbox.call(self._connection, partial(work, self))

    def _grant(self, writer: Writer) -> None:
        if writer.finished or (writer.window and not writer.used):
            return
        self._acknowledge(writer)
        partition = writer.partition
        if partition.in_file * IN_FILE_BYTES * _INDEX_SHARE > self._budget.memory_max:
            text = f"{partition.in_file} spilled buffers are more than there is memory for: push larger ones"
            self._give_up(writer, WriterErrorCode.QUOTA_EXCEEDED, text)
            self._partitions.fail(partition, text, writer.epoch)
            return
        left = writer.window - writer.used
        # What was pushed is counted as held by now.
        self._reserve(writer, min(writer.reserved, left * (writer.buffer_bytes + IN_MEMORY_BYTES)))
        if partition.held_back:
            return
        granted = self._promised(writer, self._fitting_window(writer) - left)
        if granted:
            self._send(encode_writer_credit(writer.handle, granted))

    def _promised(self, writer: Writer, wanted: int) -> int:
        """How much credit there is room for."""
        left = writer.window - writer.used
        each = writer.buffer_bytes + IN_MEMORY_BYTES
        # Marked, then looked: room that comes in between is noticed.
        writer.partition.starved = True
        granted = self._budget.promise(max(wanted, 1 - left), each, left == 0) if wanted > 0 or left == 0 else 0
        if granted or left:
            writer.partition.starved = False
            writer.reserved += granted * each
            writer.window = left + granted
            writer.forget_sizes()
            writer.used = writer.used_bytes = 0
        else:
            self._spiller.press()
        return granted

    def _reserve(self, writer: Writer, size: int, leaves: bool = False) -> None:
        """Keep so much of what is reserved for it."""
        if size != writer.reserved:
            self._budget.unreserve(writer.reserved - size, leaves)
            writer.reserved = size

    def _fitting_window(self, writer: Writer) -> int:
        """For pushes as large as the last ones; a few say nothing."""
        size = writer.buffer_bytes
        if size > _BUFFER_BYTES:
            return max(min(_LARGE_LEAST, self._window), self._window * _BUFFER_BYTES // size)
        if writer.used < _JUDGED_BY:
            return max(self._window, writer.window)
        fitting = self._window * _SMALL_BYTES * writer.used // max(1, writer.used_bytes)
        return max(self._window, min(fitting, self._window * _LARGER_MAX))

    def _acknowledge(self, writer: Writer) -> None:
        if writer.unacknowledged:
            self._send(
                encode_push_acknowledged(writer.handle, writer.unacknowledged.take(self._connection.last_active))
            )

    def _acknowledgement_due(self) -> None:
        """On the timer's thread."""
        self._outbox.call(self._connection, self._acknowledge_all)

    def _acknowledge_all(self) -> None:
        self._acknowledges_soon = False
        for writer in self._writers.values():
            self._acknowledge(writer)

    def _give_up(self, writer: Writer, code: WriterErrorCode, message: str, lost: bool = False) -> None:
        """``lost``: the writer may open it again and do better."""
        if lost:
            self._lose(writer)
        else:
            self._forget(writer)
        self._send(encode_writer_error(writer.partition.writer or NO_WRITER, writer.handle, code, message))

    def _lose(self, writer: Writer) -> None:
        """Its writer goes without having finished."""
        if self._forget(writer):
            self._partitions.writer_lost(writer.partition)

    def _forget(self, writer: Writer) -> bool:
        """False if the partition has another writer by now: it has come back on another connection."""
        self._writers.pop(writer.handle, None)
        self._reserve(writer, 0, leaves=True)
        writer.partition.buffer_bytes = writer.buffer_bytes
        if self._by_partition.get(writer.partition) is writer:
            del self._by_partition[writer.partition]
        return writer.partition.detach(writer.epoch)

    def _get(self, handle: int) -> Writer | None:
        """None for one that is gone: its writer was told so, and had sent this before it heard."""
        writer = self._writers.get(handle)
        if writer is None and not 0 < handle < self._next_handle:
            raise ProtocolError(f"the handle {handle} was never given on this connection")
        return writer

    def _send(self, frame: bytes) -> None:
        self._outbox.push(self._connection, [frame])


def _fence(partition: ResultPartition, writers: Writers) -> None:
    writers.fenced(partition)
