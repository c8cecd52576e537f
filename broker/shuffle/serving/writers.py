"""The writers of one connection: their frames, the answers to them, and what others tell them.

On the connection's processor. What ``Partitions.finish`` reports, and what readers and the spiller tell a writer, comes back to
the processor through the outbox.

Back-pressure is credit held back. A writer is granted a window of pushes when it opens a partition. What it uses is granted
again, a quarter of the window at a time, as long as there is room: for all partitions together within the memory and disk
budget, for a pipelined partition within its own bound. What is held back is granted when the spiller or a reader has made room
(``writer_handle.py`` has the sizes).

A writer that pushes larger buffers than it had credit for, when there is room only for what others were promised, loses its
connection. It connects again, is told how far it got, and gets credit for buffers as large as it makes them. It gets none at
once: that tells it to wait, so that it does not count the lost connection against the broker, and others have their turn first.

The newest opening of a partition has it. What comes by the handle of an older one is refused (``partition/result_partition.py``),
and its writer is told at once, on its own connection's processor.

Tests: tests/shuffle/test_writing.py, tests/shuffle/test_fencing.py, tests/shuffle/test_bounds.py.
"""

from collections.abc import Callable
from functools import partial

import attrs

from broker.network.service import Connection, Outbox
from broker.shuffle.partition.budget import IN_FILE_BYTES, IN_MEMORY_BYTES, NoRoom
from broker.shuffle.partition.holdings import OverQuota
from broker.shuffle.partition.life import LifeState
from broker.shuffle.partition.readers import Fenced
from broker.shuffle.partition.result_partition import (
    AfterTheEnd,
    Finishing,
    ResultPartition,
    SequenceGap,
)
from broker.shuffle.partitions import Partitions, Refused
from broker.shuffle.rights import NOT_AUTHORIZED, WRITE, Rights
from broker.shuffle.serving.writer_handle import WriterHandle
from broker.shuffle.spill.spiller import Spiller
from protocol.errors import ProtocolError
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.push_row import PushRow, PushRun
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

OPEN, FINISHING = LifeState.OPEN, LifeState.FINISHING

# Spilled buffers of one partition may take this part of the memory for their index; a partition with more has too small buffers.
_INDEX_SHARE = 4

_FENCED = "another writer has opened the partition under the same writer id"


@attrs.frozen
class WriterSettings:
    window: int  # pushes granted at first


class Writers:
    """Those of one connection."""

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        partitions: Partitions,
        spiller: Spiller,
        settings: WriterSettings,
        rights: Rights | None = None,
    ) -> None:
        """``rights`` None: the client may do everything. Others are asked about at each frame, so that one who loses them can go
        no further."""
        self._connection = connection
        self._outbox = outbox
        self._partitions = partitions
        self._spiller = spiller
        self._budget = partitions.budget
        self._window = settings.window
        self._rights = rights
        self._handles: dict[int, WriterHandle] = {}
        self._by_partition: dict[ResultPartition, WriterHandle] = {}  # the newest handle of each
        self._next_handle = 1
        self._acknowledgement_scheduled = False  # for whatever is unacknowledged then

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def peer(self) -> str:
        """The other end, for people. Any thread."""
        peer = self._connection.peer
        return f"{peer.host}:{peer.port}"

    def credit_of(self, partition: ResultPartition) -> int:
        """What the writer of this partition may still push. Any thread."""
        handle = self._by_partition.get(partition)
        return 0 if handle is None else max(0, handle.left)

    def partition_of(self, handle: int) -> ResultPartitionID | None:
        """That of an open handle."""
        known = self._handles.get(handle)
        return None if known is None else known.partition.id

    def handle(self, frame: WriterFrame) -> None:
        """Act on a frame other than a push. Raises ProtocolError for a handle that was never given."""
        if isinstance(frame, OpenPartition):
            self._open(frame)
        elif isinstance(frame, ReleasePartition):
            existed = self._partitions.release(frame.partition, self._rights)
            self._send(encode_partition_released(frame.correlation, existed))
        elif isinstance(frame, ReleaseDataSet):
            released = self._partitions.release_data_set(frame.data_set, self._rights)
            self._send(encode_data_set_released(frame.correlation, released))
        elif isinstance(frame, ListPartitions):
            found = self._partitions.list(frame.prefix.lower(), self._rights)
            self._send(encode_partition_list(frame.correlation, found))
        else:
            assert not isinstance(frame, PushBuffer)
            handle = self._get(frame.handle)
            if handle is None:
                return
            if self._rights is not None and self._is_refused(handle, self._rights):
                return
            if isinstance(frame, FinishPartition):
                self._finish(handle)
            elif isinstance(frame, FailPartition):
                self._fail(handle, frame.message)
            elif isinstance(frame, CloseWriter):
                self._acknowledge(handle)
                self._lose(handle)

    def close(self) -> None:
        """The connection is closed."""
        for handle in list(self._handles.values()):
            self._lose(handle)

    # -- pushes ---------------------------------------------------------------------------------------------------------

    def push(self, frame: PushBuffer) -> None:
        """Take a buffer. Raises ProtocolError for a handle that was never given, NoRoom: the connection is to be closed."""
        number, subpartition, sequence, data_type, compressed, payload = frame
        handle = self._handles.get(number)
        if handle is None:
            self._get(number)
            return
        if self._rights is not None and self._is_refused(handle, self._rights):
            return
        partition = handle.partition
        used = handle.used = handle.used + 1
        size = len(payload)
        handle.used_bytes += size
        if size > handle.largest:
            handle.largest = size
        if used > handle.window:
            self._give_up(handle, WriterErrorCode.BAD_REQUEST, "more was pushed than there was credit for", lost=True)
            return
        try:
            # A push beyond what was promised is taken if there is room beside what others were promised.
            beyond = handle.reserved if handle.used_bytes + used * IN_MEMORY_BYTES > handle.reserved else None
            expected = partition.append(subpartition, sequence, data_type, compressed, payload, handle.epoch, beyond)
        except NoRoom:
            partition.lease.note_cut_off()
            self._lose(handle)  # so that the pushes that have arrived behind it are ignored
            raise
        except (Fenced, IndexError, AfterTheEnd, SequenceGap, OverQuota) as error:
            self._refuse_push(handle, subpartition, error)
            return
        self._taken(handle, handle.unacknowledged.add(subpartition, expected, size, self._connection.last_active))

    def push_row(self, row: PushRow) -> None:
        """Take several buffers, as ``push`` takes one after the other. Raises what ``push`` raises."""
        handle = self._handles.get(row.handle)
        if handle is not None and (runs := row.runs()) is not None and self._push_runs(handle, runs, len(row)):
            return
        for push in row.pushes():
            self.push(push)

    def _push_runs(self, handle: WriterHandle, runs: list[PushRun], count: int) -> bool:
        """Take all of these ``count`` buffers. False, and nothing has been taken, if not all are as they usually are."""
        if self._rights is not None and not self._rights.may(WRITE, handle.partition.owner):
            return False
        size = sum([run.size for run in runs])
        used, used_bytes = handle.used + count, handle.used_bytes + size
        if used > handle.window or used_bytes + used * IN_MEMORY_BYTES > handle.reserved:
            return False
        if not handle.partition.append_runs(runs, size, count, handle.epoch):
            return False
        handle.used, handle.used_bytes = used, used_bytes
        handle.largest = max(handle.largest, *[max(map(len, run.payloads)) for run in runs])
        now, add = self._connection.last_active, handle.unacknowledged.add
        due = [add(run.subpartition, run.sequence + len(run.payloads), run.size, now) for run in runs]
        self._taken(handle, any(due))
        return True

    def _taken(self, handle: WriterHandle, acknowledge: bool) -> None:
        """Pushes have been taken: acknowledge them, now or soon, grant their credit again, and make room."""
        partition = handle.partition
        life = partition.life
        # CONSUMED: its readers had everything before this push returned, and its writer is about to finish.
        if life is not OPEN and life is not FINISHING and life is not LifeState.CONSUMED:
            self.end(handle)
            return
        if acknowledge:
            self._acknowledge(handle)
        elif not self._acknowledgement_scheduled:
            self._acknowledgement_scheduled = True
            self._partitions.acknowledgements.call(self._acknowledgement_due)
        # At a quarter of the window, so that credit and acknowledgements are few and the writer never has to stop for them.
        if handle.used * 4 >= handle.window:
            self.grant(handle)
        if self._budget.memory_scarce or partition.spill_early:
            self._spiller.press()

    def _refuse_push(self, handle: WriterHandle, subpartition: int, error: Exception) -> None:
        partition = handle.partition
        if isinstance(error, Fenced):
            self._give_up(handle, WriterErrorCode.FENCED, _FENCED)
        elif isinstance(error, IndexError):
            text = f"subpartition {subpartition} of {len(partition.subpartitions)}"
            self._give_up(handle, WriterErrorCode.BAD_REQUEST, text, lost=True)
        elif isinstance(error, AfterTheEnd):
            self._give_up(handle, WriterErrorCode.BAD_REQUEST, str(error), lost=True)
        elif isinstance(error, SequenceGap):
            self._give_up(handle, WriterErrorCode.SEQUENCE_GAP, str(error), lost=True)
        else:
            self._give_up(handle, WriterErrorCode.QUOTA_EXCEEDED, str(error))
            self._partitions.fail(partition, f"the producer's quota is used up: {error}", handle.epoch)

    # -- opening ----------------------------------------------------------------------------------------------------------

    def _open(self, frame: OpenPartition) -> None:
        try:
            partition = self._partitions.open(frame, self._rights)
        except Refused as refused:
            self._send(encode_writer_error(frame.writer, NO_HANDLE, refused.code, str(refused)))
            return
        listener = _PartitionNotes(self, partition)
        try:
            taken = partition.take_over(listener, frame.incarnation, frame.resumes, frame.attempt)
        except Fenced:
            self._refuse_opening(frame)
            return
        except Finishing:  # the answer depends on how that ends
            partition.when_finished(partial(self._finishing_ended, frame))
            return
        self._partitions.writer_came(partition)
        before = self._by_partition.get(partition)
        if before is not None:  # opened again on the same connection: the old handle is not valid any more
            self._forget(before)
        if taken.fenced is not None and taken.fenced != listener:
            taken.fenced.fenced()
        handle = WriterHandle(self._next_handle, partition, taken.epoch, self._window, self._budget)
        self._next_handle += 1
        self._handles[handle.number] = self._by_partition[partition] = handle
        if partition.lease.take_cut_off():
            credit = 0
            partition.hold_writer_back()
            # Soon: there may be room already, and nothing else would announce it.
            self._partitions.acknowledgements.call(partition.announce_room)
        else:
            credit = self._promise(handle)
        self._send(encode_partition_opened(frame.writer, handle.number, credit, taken.next_sequences))
        life = partition.life
        if life is not OPEN and life is not FINISHING and life is not LifeState.CONSUMED:  # it ended meanwhile
            self.end(handle)

    def _finishing_ended(self, frame: OpenPartition, fenced: bool) -> None:
        """On any thread: the partition that ``frame`` is to open has been finished, or has failed."""
        answer = self._refuse_opening if fenced else self._open
        self._outbox.call(self._connection, partial(answer, frame))

    def _refuse_opening(self, frame: OpenPartition) -> None:
        self._send(encode_writer_error(frame.writer, NO_HANDLE, WriterErrorCode.FENCED, _FENCED))

    # -- finishing and failing --------------------------------------------------------------------------------------------

    def _finish(self, handle: WriterHandle) -> None:
        if handle.finishing:
            return  # the answer to the first request is on its way
        try:
            handle.partition.begin_to_finish(handle.epoch)
        except Fenced:
            self._give_up(handle, WriterErrorCode.FENCED, _FENCED)
            return
        handle.finishing = True
        handle.give_up_credit()
        self._acknowledge(handle)
        self._partitions.finish(handle.partition, partial(self._finish_ended, handle))

    def _finish_ended(self, handle: WriterHandle, refused: Refused | None) -> None:
        """On any thread."""
        self._outbox.call(self._connection, partial(self._answer_finish, handle, refused))

    def _answer_finish(self, handle: WriterHandle, refused: Refused | None) -> None:
        if handle.number not in self._handles:
            return
        if refused is None:
            self._forget(handle)
            self._send(encode_partition_finished(handle.number))
        else:
            self._give_up(handle, refused.code, str(refused))

    def _fail(self, handle: WriterHandle, message: str) -> None:
        partition = handle.partition
        if not self._partitions.fail(partition, message, handle.epoch) and handle.epoch != partition.lease.epoch:
            self._give_up(handle, WriterErrorCode.FENCED, _FENCED)
        else:
            self._forget(handle)

    # -- what others tell a writer ----------------------------------------------------------------------------------------

    def post(self, work: Callable[[WriterHandle], None], partition: ResultPartition) -> None:
        """Have ``work`` done with the partition's handle, on this connection's processor. From any thread."""
        self._outbox.call(self._connection, partial(self._with_handle, work, partition))

    def _with_handle(self, work: Callable[[WriterHandle], None], partition: ResultPartition) -> None:
        handle = self._by_partition.get(partition)
        if handle is not None:
            work(handle)

    def end_if_fenced(self, handle: WriterHandle) -> None:
        """Another connection has opened the partition; unless it was opened here again since."""
        if handle.epoch != handle.partition.lease.epoch:
            self._give_up(handle, WriterErrorCode.FENCED, _FENCED)

    def send_task_event(self, handle: WriterHandle, subpartition: int, event: bytes) -> None:
        self._send(encode_writer_task_event(handle.number, subpartition, event))

    def send_buffer_size(self, handle: WriterHandle, subpartition: int, size: int) -> None:
        self._send(encode_buffer_size_hint(handle.number, subpartition, size))

    def send_records_processed(self, handle: WriterHandle, subpartitions: list[int]) -> None:
        self._send(b"".join(encode_all_records_processed(handle.number, index) for index in subpartitions))

    def end(self, handle: WriterHandle) -> None:
        """The partition has failed or was released by another request: tell the writer which."""
        partition = handle.partition
        life = partition.life
        code = WriterErrorCode.RELEASED
        text = partition.failure or "the partition was released"
        if life is not LifeState.FAILED and self._partitions.lost_race(partition):
            code, text = WriterErrorCode.ANOTHER_ATTEMPT_WON, "another attempt has finished"
        elif life is LifeState.CANCELLED:
            code, text = WriterErrorCode.READERS_GONE, "all readers have cancelled"
        self._give_up(handle, code, text)

    # -- credit and acknowledgements ----------------------------------------------------------------------------------------

    def grant(self, handle: WriterHandle) -> None:
        """Grant again what was used, if there is room."""
        if handle.finishing or (handle.window and not handle.used):
            return
        self._acknowledge(handle)
        partition = handle.partition
        in_file = partition.holdings.in_file
        if in_file * IN_FILE_BYTES * _INDEX_SHARE > self._budget.memory_max:
            text = f"{in_file} spilled buffers are more than there is memory for: push larger ones"
            self._give_up(handle, WriterErrorCode.QUOTA_EXCEEDED, text)
            self._partitions.fail(partition, text, handle.epoch)
            return
        handle.reserve_left()
        if partition.must_wait():
            return
        granted = self._promise(handle)
        if granted:
            self._send(encode_writer_credit(handle.number, granted))

    def _promise(self, handle: WriterHandle) -> int:
        granted = handle.promise()
        if not granted and not handle.left:
            self._spiller.press()
        return granted

    def _acknowledge(self, handle: WriterHandle) -> None:
        if handle.unacknowledged:
            next_sequences = handle.unacknowledged.take(self._connection.last_active)
            self._send(encode_push_acknowledged(handle.number, next_sequences))

    def _acknowledgement_due(self) -> None:
        """On the timer's thread."""
        self._outbox.call(self._connection, self._acknowledge_all)

    def _acknowledge_all(self) -> None:
        self._acknowledgement_scheduled = False
        for handle in self._handles.values():
            self._acknowledge(handle)

    # -- closing handles --------------------------------------------------------------------------------------------------

    def _give_up(self, handle: WriterHandle, code: WriterErrorCode, message: str, lost: bool = False) -> None:
        """Close the handle with an error. ``lost``: the writer may open the partition again and do better."""
        if lost:
            self._lose(handle)
        else:
            self._forget(handle)
        self._send(encode_writer_error(handle.partition.writer or NO_WRITER, handle.number, code, message))

    def _lose(self, handle: WriterHandle) -> None:
        """Its writer leaves without having finished."""
        if self._forget(handle):
            self._partitions.writer_lost(handle.partition)

    def _forget(self, handle: WriterHandle) -> bool:
        """False if the partition has another writer by now, for example the same one on another connection."""
        self._handles.pop(handle.number, None)
        handle.give_up_credit()
        if self._by_partition.get(handle.partition) is handle:
            del self._by_partition[handle.partition]
        return handle.partition.detach(handle.epoch, handle.buffer_bytes)

    def _is_refused(self, handle: WriterHandle, rights: Rights) -> bool:
        """The client may not write any more; then the handle is closed."""
        if rights.may(WRITE, handle.partition.owner):
            return False
        self._give_up(handle, WriterErrorCode.NOT_AUTHORIZED, NOT_AUTHORIZED, lost=True)
        return True

    def _get(self, number: int) -> WriterHandle | None:
        """None for a handle that was closed: its writer was told so, and had sent this before it heard."""
        handle = self._handles.get(number)
        if handle is None and not 0 < number < self._next_handle:
            raise ProtocolError(f"the handle {number} was never given on this connection")
        return handle

    def _send(self, frame: bytes) -> None:
        self._outbox.push(self._connection, [frame])


@attrs.frozen
class _PartitionNotes:
    """The ``WriterListener`` of one opening: each call leaves a note with the connection's processor."""

    writers: Writers
    partition: ResultPartition

    @property
    def peer(self) -> str:
        return self.writers.peer

    @property
    def credit(self) -> int:
        return self.writers.credit_of(self.partition)

    def room_freed(self) -> None:
        self.writers.post(self.writers.grant, self.partition)

    def partition_ended(self) -> None:
        self.writers.post(self.writers.end, self.partition)

    def fenced(self) -> None:
        self.writers.post(self.writers.end_if_fenced, self.partition)

    def task_event(self, subpartition: int, event: bytes) -> None:
        send = self.writers.send_task_event
        self.writers.post(partial(send, subpartition=subpartition, event=event), self.partition)

    def buffer_size(self, subpartition: int, size: int) -> None:
        send = self.writers.send_buffer_size
        self.writers.post(partial(send, subpartition=subpartition, size=size), self.partition)

    def records_processed(self, subpartitions: list[int]) -> None:
        send = self.writers.send_records_processed
        self.writers.post(partial(send, subpartitions=subpartitions), self.partition)
