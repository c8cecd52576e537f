"""A shuffle server on real sockets, and a small raw client that sends any frames.

``serving`` starts the reactor with shuffle listeners of all three generations, without Kafka. When it ends, every
partition is released and the accounts of memory and disk must be at zero.
"""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs

from broker.config import load
from broker.network.quota import ConnectionQuotas
from broker.network.socket_server import Binding, SocketServer, SocketServerSettings
from broker.runtime import Runtime, system_runtime
from broker.runtime.disk import File, SystemDisk
from broker.security.acl import Authorizer
from broker.shuffle.assembly import ShufflePart
from broker.shuffle.partitions import Partitions
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferResponse, ClientDecoder
from protocol.shuffle.data_type import DataType
from protocol.shuffle.errors import ErrorResponse
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType
from tests.open_files import open_files, wait_for_files
from tests.waiting import wait_for

V1_16, V1_19, V2_0 = Generation.V1_16, Generation.V1_19, Generation.V2_0
PIPELINED, BLOCKING = PartitionType.PIPELINED, PartitionType.BLOCKING
DATA, CLEAR_END = DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END
EVENT, END = DataType.EVENT_BUFFER, DataType.END_OF_PARTITION
END_OF_DATA = DataType.END_OF_DATA

# Generous: only a hang gets there.
DEADLINE_S = 60.0

T = TypeVar("T")


def new_id(attempt: int = 0) -> ResultPartitionID:
    return ResultPartitionID.of(os.urandom(16), attempt=attempt)


class Client:
    """One connection, to read and to write."""

    def __init__(self, address: tuple[str, int], generation: Generation = V2_0, *, receive_buffer: int = 0) -> None:
        self.generation = generation
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(DEADLINE_S)
        self.decoder = ClientDecoder(generation, max_payload=1 << 20)
        self.messages: list[Any] = []
        self._correlation = 0

    def send(self, *frames: bytes) -> "Client":
        self.socket.sendall(b"".join(frames))
        return self

    def receive(self) -> bool:
        """Receive the next bytes. False after the broker has closed."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        self.messages += self.decoder.feed(data)
        return bool(data)

    def next(self, kind: type[T] | None = None) -> T:
        """The next message, which must be of this kind."""
        while not self.messages:
            assert self.receive(), "the broker has closed"
        message: T = self.messages.pop(0)
        assert kind is None or isinstance(message, kind), message
        return message

    def find(self, kind: type[T] | tuple[type[Any], ...]) -> T:
        """The first message of this kind; earlier messages stay."""
        seen = 0
        while True:
            for position in range(seen, len(self.messages)):
                if isinstance(self.messages[position], kind):
                    message: T = self.messages.pop(position)
                    return message
            seen = len(self.messages)
            assert self.receive(), "the broker has closed"

    def take(self, count: int) -> list[BufferResponse]:
        return [self.next(BufferResponse) for _ in range(count)]

    def sync(self) -> list[Any]:
        """The messages before the answer to a final question. Later messages stay."""
        self._correlation += 1
        self.send(w.encode_list_partitions(self._correlation, "00" * 60))
        seen = 0
        while True:
            for position in range(seen, len(self.messages)):
                if isinstance(self.messages[position], w.PartitionList):
                    came, self.messages = self.messages[:position], self.messages[position + 1 :]
                    return came
            seen = len(self.messages)
            assert self.receive(), "the broker has closed"

    def closed(self) -> list[Any]:
        """Wait until the broker has closed; returns its last messages."""
        while self.receive():
            pass
        came, self.messages = self.messages, []
        return came

    # -- reading ------------------------------------------------------------------------------------------------------

    def request(
        self,
        partition: bytes,
        start: int = 0,
        end: int | None = None,
        *,
        credit: int = 2,
        receiver: bytes | None = None,
    ) -> bytes:
        """The receiver's id."""
        receiver = receiver or os.urandom(16)
        indices = IndexSet(start, start if end is None else end)
        self.send(m.encode_partition_request(self.generation, ResultPartitionID(partition), indices, receiver, credit))
        return receiver

    def add_credit(self, receiver: bytes, credit: int = 1) -> None:
        self.send(m.encode_add_credit(receiver, credit))

    def read_to_end(self, receiver: bytes, ends: int = 1) -> list[BufferResponse]:
        """Everything, with a credit for each received data buffer."""
        came = []
        while ends:
            buffer = self.next(BufferResponse)
            came.append(buffer)
            if buffer.data_type.is_buffer:
                self.add_credit(receiver)
            ends -= buffer.data_type is END or (self.generation is V1_16 and buffer.payload == bytes(4))
        return came

    # -- writing ------------------------------------------------------------------------------------------------------

    def open(
        self,
        partition: bytes,
        subpartitions: int = 1,
        kind: PartitionType = PIPELINED,
        *,
        writer: bytes | None = None,
        ttl_ms: int = -1,
        owner: str = "",
    ) -> "Writer":
        writer = writer or os.urandom(16)
        self.send(w.encode_open_partition(writer, partition, subpartitions, kind, ttl_ms, owner))
        answer: Any = self.find((w.PartitionOpened, w.WriterError))
        assert isinstance(answer, w.PartitionOpened), answer
        return Writer(self, answer)

    def finish(self, writer: "Writer") -> None:
        writer.finish()
        self.wait_finished()

    def wait_finished(self) -> None:
        """Credits and acknowledgements are skipped."""
        message: Any = None
        while not isinstance(message, w.PartitionFinished):
            message = self.next()
            assert not isinstance(message, w.WriterError), message

    def error(self) -> ErrorResponse:
        return self.next(ErrorResponse)

    def writer_error(self) -> w.WriterError:
        """The next message; credits and acknowledgements before it are skipped."""
        while True:
            message: Any = self.next()
            if isinstance(message, w.WriterError):
                return message
            assert isinstance(message, w.WriterCredit | w.PushAcknowledged), message

    def list(self, prefix: str = "") -> tuple[w.PartitionInfo, ...]:
        self.send(w.encode_list_partitions(-1, prefix))
        return self.find(w.PartitionList).partitions

    def release(self, partition: bytes) -> bool:
        self.send(w.encode_release_partition(-2, partition))
        return self.find(w.PartitionReleased).existed

    def release_data_set(self, data_set: bytes) -> int:
        self.send(w.encode_release_data_set(-3, data_set))
        return self.find(w.DataSetReleased).partitions

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self) -> None:
        """Reset the connection, as when the process or the network dies."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Writer:
    """An opened partition; keeps count of sequence numbers and, if asked to, of credit."""

    def __init__(self, client: Client, opened: w.PartitionOpened) -> None:
        self.client = client
        self.opened = opened
        self.handle = opened.handle
        self.writer = opened.writer
        self.credit = opened.credit
        self.next = list(opened.next_sequences)

    def push(
        self, *payloads: bytes, subpartition: int = 0, data_type: int = CLEAR_END, sequence: int | None = None
    ) -> "Writer":
        frames = []
        for payload in payloads:
            number = self.next[subpartition] if sequence is None else sequence
            frames.append(w.encode_push_buffer(self.handle, subpartition, number, data_type, False, payload))
            if sequence is None:
                self.next[subpartition] += 1
        self.credit -= len(payloads)
        self.client.send(*frames)
        return self

    def push_with_credit(self, payload: bytes, subpartition: int = 0) -> None:
        """Wait for credit first."""
        while not self.credit:
            message: Any = self.client.next()
            if isinstance(message, w.WriterCredit):
                self.credit += message.credit
            else:
                assert isinstance(message, w.PushAcknowledged), message
        self.push(payload, subpartition=subpartition)

    def end(self, subpartition: int = 0) -> "Writer":
        self.push(b"\0\0\0\x08\0", subpartition=subpartition, data_type=END_OF_DATA)
        return self.push(b"\0\0\0\0", subpartition=subpartition, data_type=END)

    def finish(self) -> "Writer":
        self.client.send(w.encode_finish_partition(self.handle))
        return self


class MoodyDisk(SystemDisk):
    """A disk that can be set to be full, and to wait before it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        return _MoodyFile(self, super().open(path, create=create, read_only=read_only))


class _MoodyFile:
    def __init__(self, disk: MoodyDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pwrite(self, buffers: Any, offset: int) -> int:
        assert self._disk.gate.wait(DEADLINE_S)
        if self._disk.error is not None:
            raise self._disk.error
        return self._file.pwrite(buffers, offset)


@attrs.define(eq=False)
class Served:
    """A running server; ``connect`` to it."""

    sockets: SocketServer
    shuffle: ShufflePart
    disk: MoodyDisk
    data_dir: Path
    clients: list[Client] = attrs.Factory(list)

    @property
    def partitions(self) -> Partitions:
        return self.shuffle.partitions

    @property
    def files(self) -> list[str]:
        """Files of partitions, without those that only wait to be removed."""
        directory = self.data_dir / "shuffle"
        released = {os.path.basename(path) for path in self.shuffle.spiller.released.paths}
        return sorted(set(os.listdir(directory)) - released) if directory.exists() else []

    def connect(self, generation: Generation = V2_0, *, receive_buffer: int = 0) -> Client:
        client = Client(self.sockets.address(generation.value), generation, receive_buffer=receive_buffer)
        self.clients.append(client)
        return client

    @property
    def connections(self) -> int:
        return sum(len(processor.connections) for processor in self.sockets.processors)

    def store(self, *buffers: bytes, kind: PartitionType = BLOCKING, **options: Any) -> ResultPartitionID:
        """A finished partition of one subpartition."""
        partition = new_id()
        client = self.connect()
        writer = client.open(partition, kind=kind, **options)
        for buffer in buffers:
            writer.push_with_credit(buffer)
        client.finish(writer)
        client.close()
        return partition


@contextmanager
def serving(
    data_dir: Path,
    *,
    network_threads: int = 2,
    leave: bool = False,
    authorizer: Authorizer | None = None,
    **changes: Any,
) -> Iterator[Served]:
    """``leave``: do not release the partitions at the end; another server will load them."""
    threads_before, files_before = threading.active_count(), open_files()
    config = load(data_dir=str(data_dir), listeners=["shuffle://127.0.0.1:0"], **changes)
    disk = MoodyDisk()
    runtime: Runtime = attrs.evolve(system_runtime(), disk=disk)
    crashes: list[BaseException] = []
    settings = SocketServerSettings(
        network_threads=network_threads,
        io_threads=1,
        queued_max_requests=100,
        queued_max_request_bytes=1 << 28,
        backlog=1024,
        send_buffer=-1,
        receive_buffer=-1,
        idle_max_s=600.0,
        high_water_bytes=config.outgoing_high_water_bytes,
        low_water_bytes=config.outgoing_low_water_bytes,
    )
    sockets = SocketServer(runtime, settings, ConnectionQuotas(1 << 30, 1 << 30, {}, 0), crashes.append)
    sockets.bind([Binding(g.value, g.value, "127.0.0.1", 0, 0, 100 << 20) for g in Generation])
    shuffle = ShufflePart(config, runtime, sockets.timer, authorizer=authorizer)
    shuffle.open()
    spiller = runtime.threads.spawn("spiller", shuffle.spiller, crashes.append)
    listeners = {g: attrs.evolve(config.listeners[0], options={"generation": g.value}) for g in Generation}
    sockets.start({g.value: shuffle.service(listeners[g]) for g in Generation})
    served = Served(sockets, shuffle, disk, data_dir)
    try:
        yield served
    finally:
        disk.gate.set()
        for client in served.clients:
            with suppress(OSError):
                client.close()
        wait_for(lambda: served.connections == 0, "connections are left")
        if not leave:
            for info in served.partitions.list(""):
                served.partitions.release(info.partition)
        spiller.stop()
        if not leave:
            shuffle.spiller.step(0)
        sockets.stop_accepting()
        sockets.stop()
        shuffle.close()
    assert crashes == []
    if not leave:
        budget = served.partitions.budget
        assert (budget.memory, budget.disk, budget.index, dict(budget._owners)) == (0, 0, 0, {})
        assert (budget.reserved, budget._readers) == (0, 0)
        assert served.files == []
        assert len(served.partitions.waiting) == 0
        assert served.partitions._winners == {}
    assert len(served.partitions._deadlines) == 0
    wait_for(lambda: threading.active_count() <= threads_before, "threads are left")
    wait_for_files(files_before)
