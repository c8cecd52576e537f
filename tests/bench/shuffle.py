"""What the shuffle service does and costs: ``python -m tests.bench.shuffle [--quick] [SECTION...]``.

The broker runs in a process of its own; the readers here only look at frame headers. CPU is the broker's, all threads, as the
scheduler counts it. Sections: read, end-to-end, clients, latency, idle, stalled. In ``clients``, writer and reader are those of
``broker.client``, each in a process of its own, and the CPU is that of all three.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.generation import Generation
from protocol.shuffle.ids import IndexSet, ResultPartitionID
from tests.bench.process import TREE, BrokerProcess, figure

PIPELINED, BLOCKING = w.PartitionType.PIPELINED, w.PartitionType.BLOCKING
_BUFFER = struct.Struct(">iIB16siiiiB?i")
_ANNOUNCEMENT = struct.Struct(">iIBi16s")
_END = 10
# Held in memory at a time: so small that the same pages are used again and again, and so large that the coming and going of 256
# receivers does not count for more than what they read.
_ROUND_BYTES = 96 << 20

Address = tuple[str, int]


class Process(BrokerProcess):
    """With a shuffle listener."""

    listener = "shuffle://127.0.0.1:0"

    @property
    def port(self) -> Address:
        host, port = self.address.rsplit(":", 1)
        return host, int(port)


def new_id() -> ResultPartitionID:
    return ResultPartitionID.of(os.urandom(16))


def connect(address: Address) -> socket.socket:
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Frames:
    """The frames of a connection that are not buffers."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = bytearray()

    def next(self) -> w.ServerFrame:
        while len(self.data) < 4 or len(self.data) < int.from_bytes(self.data[:4], "big"):
            got = self.sock.recv(65536)
            assert got, "closed"
            self.data += got
        size = int.from_bytes(self.data[:4], "big")
        frame = memoryview(bytes(self.data[:size]))
        del self.data[:size]
        return w.parse_server(frame)


def write(
    address: Address, partition: bytes, subs: int, kind: int, size: int, count: int, finish: bool = True
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
            parts += (w.push_header(opened.handle, number % subs, number // subs, 8, False, size), payload)
        data = memoryview(b"".join(parts)) if size < 4096 else None
        left = sock.sendmsg(parts) if data is None else sock.send(data)
        total = now * (27 + size)
        if left < total:
            sock.sendall((data if data is not None else memoryview(b"".join(parts)))[left:])
        sent += now
        credit -= now
    if finish:
        sock.sendall(w.encode_finish_partition(opened.handle))
        while not isinstance(answer := frames.next(), w.PartitionFinished):
            assert not isinstance(answer, w.WriterError), answer
    return sock


class Reader:
    """Reads subpartitions over one connection, a credit back for each buffer."""

    def __init__(self, address: Address) -> None:
        self.sock = connect(address)
        self.buffer = bytearray(4 << 20)

    def read(self, partition: bytes, subs: int, credit: int, stalled: int = 0, per_receiver: int = 0) -> int:
        """All of the first ``subs`` subpartitions; the ``stalled`` ones after them are requested and get no credit. Buffers.

        ``per_receiver``: cancel when so many came.
        """
        sock, view = self.sock, memoryview(self.buffer)
        receivers = [os.urandom(16) for _ in range(subs + stalled)]
        requests = [
            m.encode_partition_request(
                Generation.V2_0, ResultPartitionID(partition), IndexSet(i, i), receiver, credit if i < subs else 0
            )
            for i, receiver in enumerate(receivers)
        ]
        sock.sendall(b"".join(requests))
        silent = set(receivers[subs:])
        floating = dict.fromkeys(receivers, 0)  # with an initial credit of 0: what was given and not used
        ended = buffers = have = 0
        unpack = _BUFFER.unpack_from
        while ended < subs:
            got = sock.recv_into(view[have:])
            assert got, "closed"
            have += got
            pos = 0
            due: Counter[bytes] = Counter()
            while have - pos >= 47 or (have - pos >= 29 and view[pos + 8] == 9):
                if view[pos + 8]:
                    assert view[pos + 8] == 9, bytes(view[pos : pos + 200])
                    backlog, receiver = _ANNOUNCEMENT.unpack_from(view, pos)[3:]
                    if receiver not in silent:
                        give = min(backlog, 64) - floating[receiver]
                        floating[receiver] += give
                        due[receiver] += give
                    pos += 29
                    continue
                length, _, _, receiver, _, _, _, backlog, kind, _, _ = unpack(view, pos)
                if length > have - pos:
                    break
                pos += length
                if kind == 8:
                    buffers += 1
                    if credit:
                        due[receiver] += 1
                    else:
                        floating[receiver] -= 1
                        give = min(backlog, 64) - floating[receiver]
                        if give > 0:
                            floating[receiver] += give
                            due[receiver] += give
                elif kind == _END:
                    ended += 1
            if have > pos:
                view[: have - pos] = bytes(view[pos:have])
            have -= pos
            if due:
                encode = m.encode_add_credit
                sock.sendall(b"".join([encode(receiver, n) for receiver, n in due.items() if n > 0]))
        sock.sendall(b"".join([m.encode_cancel_partition_request(receiver) for receiver in receivers]))
        return buffers

    def close(self) -> None:
        self.sock.close()


def report(name: str, buffers: int, size: int, took: float, cpu: float) -> None:
    rate = buffers / took
    figure(name, cpu / buffers * 1e6)
    print(
        f"{name:52} {rate * size / 1e6:8.0f} MB/s {rate / 1e3:8.1f} k/s {cpu / buffers * 1e6:7.2f} us CPU a buffer",
        flush=True,
    )


def bench_read(broker: Process, size: int, subs: int, credit: int, spilled: bool, rounds: int) -> None:
    reader = Reader(broker.port)
    count = max(subs, min(_ROUND_BYTES // size, 32768))
    took = cpu = 0.0
    buffers = 0
    partition = new_id()
    if spilled:
        write(broker.port, partition, subs, BLOCKING, size, count).close()
    for round_number in range(rounds + 1):
        if not spilled:
            partition = new_id()
            write(broker.port, partition, subs, PIPELINED, size, count).close()
        cpu_before, before = broker.cpu_s(), time.perf_counter()
        came = reader.read(partition, subs, credit)
        assert came == count
        if round_number:  # the first warms up
            took += time.perf_counter() - before
            cpu += broker.cpu_s() - cpu_before
            buffers += came
    reader.close()
    if spilled:
        sock = connect(broker.port)
        sock.sendall(w.encode_release_partition(1, partition))
        Frames(sock).next()
        sock.close()
    where = "files" if spilled else "memory"
    report(f"{size:6} B from {where:6} {subs:4} subpartitions, credit {credit:3}", buffers, size, took, cpu)


def bench_end_to_end(broker: Process, size: int, count: int, pairs: int) -> None:
    partitions = [new_id() for _ in range(pairs)]
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(broker.port, p, 1, PIPELINED, size, count)) for p in partitions]
    readers = [context.Process(target=_read_all, args=(broker.port, p)) for p in partitions[1:]]
    cpu, before = broker.cpu_s(), time.perf_counter()
    for process in writers + readers:
        process.start()
    _read_all(broker.port, partitions[0])
    for process in writers + readers:
        process.join()
    took = time.perf_counter() - before
    report(f"{size:6} B writer to reader, {pairs} pairs", count * pairs, size, took, broker.cpu_s() - cpu)


def _read_all(address: Address, partition: bytes) -> None:
    reader = Reader(address)
    reader.read(partition, 1, 64)
    reader.close()


def bench_clients(broker: Process, size: int, count: int, credit: int, together: int, rounds: int) -> None:
    """Medians of the rounds."""
    driver = [sys.executable, str(Path(__file__).with_name("shuffle_client.py"))]
    environment = dict(os.environ, PYTHONPATH=str(Path(TREE or ".").resolve()))
    count = count // together * together
    figures = []
    for _ in range(rounds):
        arguments = [broker.address, new_id().hex(), *map(str, (size, count, credit, together))]
        before = broker.cpu_s()
        clients = [
            subprocess.Popen([*driver, role, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
            for role in ("writer", "reader")
        ]
        (writer_s, writer_took_s), (reader_s, reader_took_s) = (
            map(float, client.communicate(timeout=120)[0].split()) for client in clients
        )
        used = writer_s, broker.cpu_s() - before, reader_s
        figures.append((*(each / count * 1e6 for each in used), count / max(writer_took_s, reader_took_s)))
    writer, served, reader, rate = (statistics.median(column) for column in zip(*figures, strict=True))
    name = f"{size:6} B, our clients, credit {credit}, {together} together"
    figure(name, writer + served + reader)
    print(
        f"{name:52} {rate * size / 1e6:8.0f} MB/s {rate / 1e3:8.1f} k/s"
        f" {writer + served + reader:7.2f} us CPU a buffer: writer {writer:.2f}, broker {served:.2f}, reader {reader:.2f}",
        flush=True,
    )


def bench_latency(broker: Process, times: int) -> None:
    partition = new_id()
    write(broker.port, partition, 1, BLOCKING, 32768, 4).close()
    sock = connect(broker.port)
    took = []
    for _ in range(times):
        receiver = os.urandom(16)
        before = time.perf_counter()
        sock.sendall(m.encode_partition_request(Generation.V2_0, partition, IndexSet(0, 0), receiver, 1))
        left = 32768 + 47
        while left:
            left -= len(sock.recv(left))
        took.append(time.perf_counter() - before)
        sock.sendall(m.encode_cancel_partition_request(receiver))
    took.sort()
    print(
        f"first buffer of 32768 B: p50 {took[times // 2] * 1e6:.0f} us, p99 {took[times * 99 // 100] * 1e6:.0f} us",
        flush=True,
    )


def bench_idle(broker: Process, receivers: int) -> None:
    partition = new_id()
    sock = write(broker.port, partition, receivers, PIPELINED, 1, 0, finish=False)
    before = broker.rss_mb()
    reader = connect(broker.port)
    for index in range(receivers):
        request = m.encode_partition_request(Generation.V2_0, partition, IndexSet(index, index), os.urandom(16), 2)
        reader.sendall(request)
    reader.sendall(w.encode_list_partitions(1))
    Frames(reader).next()
    print(
        f"an idle receiver: {(broker.rss_mb() - before) * 1e6 / receivers:.0f} B of memory ({receivers} of them)",
        flush=True,
    )
    reader.close()
    sock.close()


def bench_stalled(broker: Process, rounds: int) -> None:
    for stalled in (0, 1, 64):
        partition = new_id()
        write(broker.port, partition, 64, BLOCKING, 32768, 64 * 8).close()
        reader = Reader(broker.port)
        subs = 64 - stalled if stalled < 64 else 32
        stalled = 64 - subs if stalled else 0
        cpu = took = 0.0
        buffers = 0
        for _ in range(rounds):
            cpu_before, before = broker.cpu_s(), time.perf_counter()
            buffers += reader.read(partition, subs, 2, stalled=stalled)
            took += time.perf_counter() - before
            cpu += broker.cpu_s() - cpu_before
        report(f" 32768 B {subs} readers, {stalled} stalled beside them", buffers, 32768, took, cpu)
        reader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shapes")
    parser.add_argument("--dir", help="where the data lies")
    options = parser.parse_args()
    rounds = 3 if options.quick else 10

    def read(broker: Process) -> None:
        for spilled in (False, True):
            for size in (32768, 1024):
                for subs in (1, 256) if options.quick else (1, 16, 256):
                    for credit in (2, 64) if options.quick else (0, 2, 8, 64):
                        bench_read(broker, size, subs, credit, spilled, rounds)

    def end_to_end(broker: Process) -> None:
        bench_end_to_end(broker, 32768, 4000 * rounds, 1)
        bench_end_to_end(broker, 1024, 20000 * rounds, 1)

    def clients(broker: Process) -> None:
        for together in (64, 1):
            bench_clients(broker, 32768, 1500 * rounds, 64, min(together, 8), 3)
            bench_clients(broker, 1024, 10000 * rounds, 64, together, 3)

    sections: dict[str, Callable[[Process], None]] = {
        "read": read,
        "end-to-end": end_to_end,
        "clients": clients,
        "latency": lambda broker: bench_latency(broker, 1000 * rounds),
        "idle": lambda broker: bench_idle(broker, 10_000),
        "stalled": lambda broker: bench_stalled(broker, rounds),
    }
    for name in options.sections or sections:
        # A pipelined partition is filled before it is read, so its bound is out of the way but for end-to-end.
        bound = 16 << 20 if name in ("end-to-end", "clients") else 1 << 30
        with Process(f"shuffle_pipelined_bytes={bound}", directory=options.dir) as broker:
            sections[name](broker)


if __name__ == "__main__":
    main()
