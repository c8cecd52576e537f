"""What the shuffle service does and costs: buffers to readers that only look at frame headers, and to our own clients.

``read``: partitions that are there already, from memory and from files. ``end-to-end``: from a writer to a reader. ``clients``:
the same with the writer and the reader of ``broker.client``, each in a process of its own (``shuffle_client.py``); the CPU is
that of all three processes. ``latency``: the first buffer. ``idle``: the memory of a receiver without credit. ``stalled``:
readers beside others that give no credit.
"""

import os
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from tests.bench.frame import CPU, Figures, Meter, Options, Row, medians, percentiles
from tests.bench.process import TREE, BrokerProcess, Helper
from tests.bench.wire import connect

PIPELINED, BLOCKING = w.PartitionType.PIPELINED, w.PartitionType.BLOCKING
_BUFFER = struct.Struct(">iIB16siiiiB?i")
_ANNOUNCEMENT = struct.Struct(">iIBi16s")
_DATA, _END = 8, 10
# Held in memory at a time: so small that the same pages are used again and again, and so large that the coming and going of 256
# receivers does not count for more than what they read.
_ROUND_BYTES = 96 << 20


def new_id() -> ResultPartitionID:
    return ResultPartitionID.of(os.urandom(16))


class Frames:
    """The frames of a connection that are not buffers."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()

    def next(self) -> w.ServerFrame:
        while len(self._data) < 4 or len(self._data) < int.from_bytes(self._data[:4], "big"):
            got = self._sock.recv(65536)
            assert got, "closed"
            self._data += got
        size = int.from_bytes(self._data[:4], "big")
        frame = memoryview(bytes(self._data[:size]))
        del self._data[:size]
        return w.parse_server(frame)


def write(
    address: str, partition: bytes, subs: int, kind: int, size: int, count: int, finish: bool = True
) -> socket.socket:
    """``count`` buffers, dealt out to the subpartitions in turn."""
    sock = connect(address)
    frames = Frames(sock)
    sock.sendall(w.encode_open_partition(os.urandom(16), partition, subs, kind))
    opened = frames.next()
    assert isinstance(opened, w.PartitionOpened), opened
    payload = os.urandom(size)
    credit, sent = opened.credit, 0
    while sent < count:
        if not credit:
            answer = frames.next()
            if isinstance(answer, w.WriterCredit):
                credit += answer.credit
            else:
                assert isinstance(answer, w.PushAcknowledged), answer
            continue
        now = min(credit, count - sent, 32)
        parts: list[bytes] = []
        for number in range(sent, sent + now):
            parts += (w.push_header(opened.handle, number % subs, number // subs, _DATA, False, size), payload)
        if size < 4096:
            sock.sendall(b"".join(parts))
        elif (done := sock.sendmsg(parts)) < now * (27 + size):
            sock.sendall(memoryview(b"".join(parts))[done:])
        sent += now
        credit -= now
    if finish:
        sock.sendall(w.encode_finish_partition(opened.handle))
        while not isinstance(answer := frames.next(), w.PartitionFinished):
            assert not isinstance(answer, w.WriterError), answer
    return sock


def release(address: str, partitions: list[ResultPartitionID]) -> None:
    with connect(address) as sock:
        frames = Frames(sock)
        for number, partition in enumerate(partitions):
            sock.sendall(w.encode_release_partition(number, partition))
            frames.next()


def read(address: str, partition: bytes, subs: int, credit: int, stalled: int = 0) -> int:
    """Buffers of the first ``subs`` subpartitions over one connection, a credit back for each; the ``stalled`` ones after
    them are requested and get no credit."""
    sock = connect(address)
    view = memoryview(bytearray(4 << 20))
    receivers = [os.urandom(16) for _ in range(subs + stalled)]
    for i, receiver in enumerate(receivers):
        given = credit if i < subs else 0
        request = (Generation.V2_0, ResultPartitionID(partition), IndexSet(i, i), receiver, given)
        sock.sendall(m.encode_partition_request(*request))
    silent = set(receivers[subs:])
    floating = dict.fromkeys(receivers, 0)  # with an initial credit of 0: granted and unused credit
    ended = buffers = have = 0
    while ended < subs:
        got = sock.recv_into(view[have:])
        assert got, "closed"
        have += got
        pos = 0
        due: Counter[bytes] = Counter()

        def give(receiver: bytes, backlog: int, due: Counter[bytes] = due) -> None:
            more = min(backlog, 64) - floating[receiver]
            if more > 0:
                floating[receiver] += more
                due[receiver] += more

        while have - pos >= 47 or (have - pos >= 29 and view[pos + 8] == 9):
            if view[pos + 8]:
                assert view[pos + 8] == 9, bytes(view[pos : pos + 200])
                backlog, receiver = _ANNOUNCEMENT.unpack_from(view, pos)[3:]
                if receiver not in silent:
                    give(receiver, backlog)
                pos += 29
                continue
            length, _, _, receiver, _, _, _, backlog, kind, _, _ = _BUFFER.unpack_from(view, pos)
            if length > have - pos:
                break
            pos += length
            if kind == _DATA:
                buffers += 1
                if credit:
                    due[receiver] += 1
                else:
                    floating[receiver] -= 1
                    give(receiver, backlog)
            elif kind == _END:
                ended += 1
        view[: have - pos] = bytes(view[pos:have])
        have -= pos
        if due:
            sock.sendall(b"".join([m.encode_add_credit(receiver, n) for receiver, n in due.items()]))
    sock.close()
    return buffers


def _broker(options: Options, bound: int = 1 << 30) -> BrokerProcess:
    # A pipelined partition is filled before it is read, so its bound is out of the way but for end-to-end.
    return BrokerProcess(f"shuffle_pipelined_bytes={bound}", listener="shuffle", directory=options.directory)


def bench_read(options: Options) -> Iterator[Row]:
    cases = [
        (where, size, subs, credit)
        for where in ("memory", "files")
        for size in (32768, 1024)
        for subs in (1, 16, 256)
        for credit in (0, 2, 8, 64)
    ]
    with _broker(options) as broker:
        for where, size, subs, credit in cases:
            name = f"{size:5} B from {where}, {subs} subpartitions, credit {credit}"
            if not options.wants(name):
                continue
            count = max(subs, options.count(min(_ROUND_BYTES // size, 32768)))
            runs, partition = [], new_id()
            if where == "files":
                write(broker.address, partition, subs, BLOCKING, size, count).close()
            for _ in range(options.rounds + 1):
                if where == "memory":
                    partition = new_id()
                    write(broker.address, partition, subs, PIPELINED, size, count).close()
                with Meter(broker) as meter:
                    assert count == read(broker.address, partition, subs, credit)
                runs.append(meter.figures(count, size))
            if where == "files":
                release(broker.address, [partition])
            yield Row(name, medians(runs[1:]))  # the first warms up


def bench_end_to_end(options: Options) -> Iterator[Row]:
    with _broker(options, 16 << 20) as broker:
        for size, usual in ((32768, 12_000), (1024, 60_000)):
            count, partition = options.count(usual), new_id()
            with Helper("shuffle", broker.address, partition.hex()) as reader, Meter(broker) as meter:
                write(broker.address, partition, 1, PIPELINED, size, count).close()
                assert str(count) == reader.line()
            yield Row(f"{size:5} B, writer to reader", meter.figures(count, size))


def bench_clients(options: Options) -> Iterator[Row]:
    driver = [sys.executable, str(Path(__file__).with_name("shuffle_client.py"))]
    environment = dict(os.environ, PYTHONPATH=str(Path(TREE or ".").resolve()))

    def once(broker: BrokerProcess, size: int, count: int, together: int) -> Figures:
        arguments = [broker.address, new_id().hex(), *map(str, (size, count, 64, together))]
        before = broker.cpu_s()
        clients = [
            subprocess.Popen([*driver, role, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
            for role in ("writer", "reader")
        ]
        results = [client.communicate(timeout=120)[0].split() for client in clients]
        (writer_s, writer_took_s), (reader_s, reader_took_s) = (map(float, result) for result in results)
        used = {"writer us": writer_s, "broker us": broker.cpu_s() - before, "reader us": reader_s}
        rate = count / max(writer_took_s, reader_took_s)
        each = {who: seconds / count * 1e6 for who, seconds in used.items()}
        return {CPU: sum(each.values()), "per s": rate, "MB/s": rate * size / 1e6} | each

    with _broker(options, 16 << 20) as broker:
        for size, usual, together in ((32768, 4500, 8), (1024, 30_000, 64), (32768, 4500, 1), (1024, 30_000, 1)):
            count = options.count(usual // together) * together
            name = f"{size:5} B, our clients, {together} together"
            if options.wants(name):
                yield Row(name, medians([once(broker, size, count, together) for _ in range(options.rounds)]))


def bench_latency(options: Options) -> Iterator[Row]:
    with _broker(options) as broker:
        partition, took = new_id(), []
        write(broker.address, partition, 1, BLOCKING, 32768, 4).close()
        sock = connect(broker.address)
        for _ in range(options.count(3000)):
            receiver = os.urandom(16)
            before = time.perf_counter()
            sock.sendall(m.encode_partition_request(Generation.V2_0, partition, IndexSet(0, 0), receiver, 1))
            left = 32768 + 47
            while left:
                left -= len(sock.recv(left))
            took.append(time.perf_counter() - before)
            sock.sendall(m.encode_cancel_partition_request(receiver))
        sock.close()
        yield Row("first buffer of 32768 B", percentiles("", took))


def bench_idle(options: Options) -> Iterator[Row]:
    receivers = options.count(10_000)
    with _broker(options) as broker:
        partition = new_id()
        writer = write(broker.address, partition, receivers, PIPELINED, 1, 0, finish=False)
        before = broker.rss_mb()
        reader = connect(broker.address)
        for index in range(receivers):
            request = (Generation.V2_0, partition, IndexSet(index, index), os.urandom(16), 2)
            reader.sendall(m.encode_partition_request(*request))
        reader.sendall(w.encode_list_partitions(1))
        Frames(reader).next()
        yield Row(f"{receivers} idle receivers", {"bytes each": (broker.rss_mb() - before) * (1 << 20) / receivers})
        reader.close()
        writer.close()


def bench_stalled(options: Options) -> Iterator[Row]:
    with _broker(options) as broker:
        for subs, stalled in ((64, 0), (63, 1), (32, 32)):
            partition, runs = new_id(), []
            write(broker.address, partition, 64, BLOCKING, 32768, 64 * 8).close()
            for _ in range(options.rounds):
                with Meter(broker) as meter:
                    count = read(broker.address, partition, subs, 2, stalled=stalled)
                runs.append(meter.figures(count, 32768))
            yield Row(f"32768 B to {subs} readers beside {stalled} stalled", medians(runs))


SECTIONS = {
    "read": bench_read,
    "end-to-end": bench_end_to_end,
    "clients": bench_clients,
    "latency": bench_latency,
    "idle": bench_idle,
    "stalled": bench_stalled,
}

if __name__ == "__main__":
    print("ready", flush=True)
    print(read(sys.argv[1], bytes.fromhex(sys.argv[2]), 1, 64), flush=True)
