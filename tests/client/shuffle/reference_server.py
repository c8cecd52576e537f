"""A small server of the shuffle protocol, for the client's tests: exact about the rules, slow, and able to misbehave.

An asyncio loop on a thread. A client's violations of the rules are kept in ``violations``. A test may replace
``on_request`` to answer partition requests by hand, or set ``cut_after`` to have writers lose their connection.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from protocol.errors import ProtocolError
from protocol.shuffle import buffer_response, errors, messages, writer_frames
from protocol.shuffle.data_type import DataType
from protocol.shuffle.frame import FIRST_WRITER_ID
from protocol.shuffle.ids import Generation
from protocol.shuffle.writer_frames import PartitionState, PartitionType, WriterErrorCode


class Partition:
    def __init__(self, opened: writer_frames.OpenPartition) -> None:
        self.id = opened.partition
        self.writer = opened.writer
        self.type = opened.type
        self.subpartitions: list[list[tuple[DataType, bool, bytes]]] = [[] for _ in range(opened.subpartitions)]
        self.finished = False
        self.failure: str | None = None
        self.connection: Connection | None = None


class Reader:
    """A receiver of a connection: its subpartitions in order, each from its first buffer."""

    def __init__(self, request: messages.PartitionRequest, partition: Partition) -> None:
        self.receiver = request.receiver
        self.partition = partition
        self.indices = list(request.subpartitions.indices)
        self.positions = dict.fromkeys(self.indices, 0)
        self.credit = request.credit
        self.initial_credit = request.credit
        self.sequence = 0
        self.blocked = False
        self.failed = False
        self.announced = False

    def waiting(self) -> list[tuple[int, tuple[DataType, bool, bytes]]]:
        partition = self.partition
        if partition.type is PartitionType.BLOCKING and not partition.finished:
            return []
        return [
            (index, partition.subpartitions[index][self.positions[index]])
            for index in self.indices
            if self.positions[index] < len(partition.subpartitions[index])
        ]

    def backlog(self) -> int:
        if self.blocked:
            return 0
        return sum(
            entry[0].is_buffer
            for index in self.indices
            for entry in self.partition.subpartitions[index][self.positions[index] :]
        )


class Connection:
    def __init__(self, server: "ReferenceServer", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.stream, self.out = reader, writer
        self.readers: dict[bytes, Reader] = {}
        self.handles: dict[int, Partition] = {}
        self.credit: dict[int, int] = {}
        self.received: list[Any] = []  # messages of the reader's side
        self.turn: deque[Reader] = deque()

    def send(self, data: bytes) -> None:
        if not self.out.is_closing():
            self.out.write(data)

    def cut(self) -> None:
        self.out.transport.abort()

    async def run(self) -> None:
        buffer = bytearray()
        try:
            while data := await self.stream.read(256 * 1024):
                buffer += data
                while size := buffer_response.frame_size(buffer):
                    if len(buffer) < size:
                        break
                    frame = memoryview(bytes(buffer[:size]))
                    del buffer[:size]
                    if not self.handle(frame):
                        return
                await self.out.drain()
        except ProtocolError as error:
            self.server.violations.append(f"protocol: {error}")
        except ConnectionError:
            pass
        finally:
            self.server.connections.discard(self)
            self.server.closed_connections += 1
            self.out.close()

    def handle(self, frame: memoryview) -> bool:
        if frame[8] >= FIRST_WRITER_ID:
            return self.handle_writer(writer_frames.parse(frame))
        message = messages.parse(frame, self.server.generation)
        self.received.append(message)
        self.server.received.append(message)
        if isinstance(message, messages.CloseRequest):
            return False
        if isinstance(message, messages.PartitionRequest):
            self.server.on_request(self, message)
            return True
        receiver = getattr(message, "receiver", None)
        reader = self.readers.get(receiver) if receiver is not None else None
        if reader is None:
            return True
        if isinstance(message, messages.AddCredit):
            reader.credit += message.credit
            reader.announced = False
        elif isinstance(message, messages.ResumeConsumption):
            if not reader.blocked:
                self.server.violations.append("resumed without having been blocked")
            reader.blocked = False
            if reader.initial_credit == 0:
                reader.credit = 0
        elif isinstance(message, messages.CancelPartitionRequest):
            del self.readers[reader.receiver]
        elif isinstance(message, messages.TaskEventRequest):
            self.server.tell_producer(message)
        elif isinstance(message, messages.AckAllUserRecordsProcessed):
            partition = reader.partition
            for handle, opened in partition.connection.handles.items() if partition.connection else ():
                if opened is partition:
                    for index in reader.indices:
                        partition.connection.send(writer_frames.encode_all_records_processed(handle, index))
        elif isinstance(message, messages.NewBufferSize):
            partition = reader.partition
            for handle, opened in partition.connection.handles.items() if partition.connection else ():
                if opened is partition:
                    for index in reader.indices:
                        partition.connection.send(
                            writer_frames.encode_buffer_size_hint(handle, index, message.buffer_size)
                        )
        self.server.serve()
        return True

    # -- the writer's side ----------------------------------------------------------------------------------------

    def handle_writer(self, message: writer_frames.WriterFrame) -> bool:
        server = self.server
        match message:
            case writer_frames.OpenPartition():
                self.open(message)
            case writer_frames.PushBuffer(handle, subpartition, sequence, data_type, compressed, payload):
                partition = self.handles.get(handle)
                if partition is None:
                    return True
                self.credit[handle] -= 1
                if self.credit[handle] < 0:
                    server.violations.append("pushed without credit")
                stored = partition.subpartitions[subpartition]
                if sequence == len(stored):
                    stored.append((data_type, compressed, bytes(payload)))
                elif sequence > len(stored):
                    server.violations.append(f"gap: {sequence} after {len(stored)}")
                else:
                    server.resent += 1
                server.pushes += 1
                if server.pushes in server.cut_after:
                    self.cut()
                    return False
                if server.acknowledge:
                    self.send(writer_frames.encode_push_acknowledged(handle, [(subpartition, len(stored))]))
                if server.give_credit:
                    self.credit[handle] += 1
                    self.send(writer_frames.encode_writer_credit(handle, 1))
                server.serve()
            case writer_frames.FinishPartition(handle):
                cut, server.cut_at_finish = server.cut_at_finish, ""
                if cut != "before":
                    self.handles[handle].finished = True
                if cut:
                    self.cut()
                    return False
                self.send(writer_frames.encode_partition_finished(handle))
                server.serve()
            case writer_frames.FailPartition(handle, text):
                self.handles[handle].failure = text
                server.serve()
            case writer_frames.CloseWriter(handle):
                server.detached += 1
                self.handles.pop(handle, None)
            case writer_frames.ReleasePartition(correlation, partition):
                existed = server.partitions.pop(partition, None) is not None
                self.send(writer_frames.encode_partition_released(correlation, existed))
            case writer_frames.ReleaseDataSet(correlation, data_set):
                gone = [held for held in server.partitions if held.startswith(data_set)]
                for held in gone:
                    del server.partitions[held]
                self.send(writer_frames.encode_data_set_released(correlation, len(gone)))
            case writer_frames.ListPartitions(correlation, prefix):
                rows = [
                    writer_frames.PartitionInfo(
                        held.id,
                        held.type,
                        PartitionState.FINISHED if held.finished else PartitionState.OPEN,
                        len(held.subpartitions),
                        sum(len(entry[2]) for sub in held.subpartitions for entry in sub),
                        sum(len(sub) for sub in held.subpartitions),
                        0,
                    )
                    for held in server.partitions.values()
                    if held.id.hex().startswith(prefix)
                ]
                self.send(writer_frames.encode_partition_list(correlation, rows))
        return True

    def open(self, message: writer_frames.OpenPartition) -> None:
        server = self.server
        server.openings.append(message)
        refusal = server.refuse
        partition = server.partitions.get(message.partition)
        if partition is not None and (
            partition.writer != message.writer or len(partition.subpartitions) != message.subpartitions
        ):
            refusal = (WriterErrorCode.EXISTS_WITH_OTHER_SHAPE, "it is there already")
        elif partition is not None and partition.finished:
            refusal = (WriterErrorCode.FINISHED_ALREADY, "")
        if refusal is not None:
            self.send(writer_frames.encode_writer_error(message.writer, -1, *refusal))
            return
        if partition is None:
            partition = server.partitions[message.partition] = Partition(message)
        partition.connection = self
        server.handle += 1
        self.handles[server.handle] = partition
        self.credit[server.handle] = server.credit
        server.opens += 1
        self.send(
            writer_frames.encode_partition_opened(
                message.writer,
                server.handle,
                server.credit,
                [len(subpartition) for subpartition in partition.subpartitions],
            )
        )
        server.serve()

    # -- the reader's side ----------------------------------------------------------------------------------------

    def add_reader(self, request: messages.PartitionRequest, partition: Partition) -> None:
        reader = Reader(request, partition)
        self.readers[request.receiver] = reader
        self.turn.append(reader)
        self.server.serve()

    def buffer(
        self,
        receiver: bytes,
        sequence: int,
        payload: bytes,
        data_type: DataType = DataType.DATA_BUFFER,
        backlog: int = 0,
        *,
        compressed: bool = False,
        subpartition: int = 0,
        partial_sizes: tuple[int, ...] = (),
    ) -> None:
        self.send(
            buffer_response.header(
                self.server.generation,
                receiver,
                subpartition,
                sequence,
                backlog,
                data_type,
                compressed,
                len(payload),
                partial_sizes,
            )
            + payload
        )

    def serve(self) -> None:
        """A buffer each turn, round robin, as credit allows."""
        busy = True
        while busy:
            busy = False
            for _ in range(len(self.turn)):
                reader = self.turn.popleft()
                if self.readers.get(reader.receiver) is not reader:
                    continue
                self.turn.append(reader)
                busy |= self.serve_one(reader)

    def serve_one(self, reader: Reader) -> bool:
        if reader.partition.failure is not None and not reader.failed:
            reader.failed = True
            self.send(errors.encode_error(errors.PRODUCER_FAILED_EXCEPTION, reader.partition.failure, reader.receiver))
            return True
        waiting = reader.waiting()
        if reader.blocked or reader.failed or not waiting:
            return False
        index, (data_type, compressed, payload) = waiting[0]
        if data_type.is_buffer:
            if reader.credit == 0:
                if reader.initial_credit == 0 and not reader.announced and reader.backlog():
                    reader.announced = True
                    self.send(messages.encode_backlog_announcement(reader.receiver, reader.backlog()))
                return False
            reader.credit -= 1
        reader.positions[index] += 1
        reader.blocked = data_type.is_blocking_upstream
        self.server.sent_to[reader.receiver] = self.server.sent_to.get(reader.receiver, 0) + 1
        self.buffer(
            reader.receiver,
            reader.sequence,
            payload,
            data_type,
            reader.backlog(),
            compressed=compressed,
            subpartition=index,
        )
        reader.sequence += 1
        return True


class ReferenceServer:
    """Use in a ``with`` block. ``address`` is where it listens."""

    def __init__(self, *, credit: int = 16, generation: Generation = Generation.V2_0, port: int = 0) -> None:
        self.credit = credit
        self.generation = generation
        self.port = port
        self.acknowledge = True
        self.give_credit = True
        self.cut_after: set[int] = set()  # numbers of pushes
        self.cut_at_finish = ""  # "before" it is taken, or "after"
        self.refuse: tuple[WriterErrorCode, str] | None = None
        self.partition_wait = 0.2
        self.partitions: dict[bytes, Partition] = {}
        self.connections: set[Connection] = set()
        self._accepted: list[Connection] = []  # all that there were
        self.closed_connections = 0
        self.received: list[Any] = []
        self.violations: list[str] = []
        self.sent_to: dict[bytes, int] = {}
        self.handle = self.pushes = self.resent = self.opens = self.detached = 0
        self.openings: list[writer_frames.OpenPartition] = []
        self.on_request: Callable[[Connection, messages.PartitionRequest], None] = self.find_partition
        self._tasks: set[asyncio.Task[None]] = set()

    def find_partition(self, connection: Connection, request: messages.PartitionRequest) -> None:
        partition = self.partitions.get(request.partition)
        if partition is not None:
            connection.add_reader(request, partition)
        else:
            self.spawn(self.wait_for(connection, request))

    async def wait_for(self, connection: Connection, request: messages.PartitionRequest) -> None:
        for _ in range(20):
            await asyncio.sleep(self.partition_wait / 20)
            partition = self.partitions.get(request.partition)
            if partition is not None:
                connection.add_reader(request, partition)
                return
        connection.send(errors.partition_not_found(request.partition, request.receiver))

    def tell_producer(self, message: messages.TaskEventRequest) -> None:
        partition = self.partitions.get(message.partition)
        if partition is not None and partition.connection is not None:
            for handle, opened in partition.connection.handles.items():
                if opened is partition:
                    partition.connection.send(writer_frames.encode_writer_task_event(handle, -1, message.event))

    def serve(self) -> None:
        for connection in list(self.connections):
            connection.serve()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run it on the server's thread and return what it returns."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def cut_connections(self) -> None:
        self.call(lambda: [connection.cut() for connection in list(self.connections)])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self.connections.add(connection)
        self._accepted.append(connection)
        await connection.run()

    def __enter__(self) -> "ReferenceServer":
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="reference-server", daemon=True)
        self._thread.start()

        async def start() -> None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 20)
            self.port = self._server.sockets[0].getsockname()[1]

        asyncio.run_coroutine_threadsafe(start(), self.loop).result(10)
        self.address = f"127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            # An accepted socket gets its connection, which closes it. Until `_accept` has begun, asyncio takes four turns of the
            # loop, and whoever cancels it or closes the server before leaves the transport open. So no more are accepted first.
            for listening in self._server.sockets:
                self.loop.remove_reader(listening.fileno())
            for _ in range(10):
                await asyncio.sleep(0)
            self._server.close()
            # One that has ended may still have bytes to send to a client that does not read them.
            for connection in self._accepted:
                connection.cut()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()
