"""What a buffer costs a processor: ``python -m tests.bench.bench_shuffle_processor [--rounds N]``.

One thread: the processor's steps, with the shuffle service on a real TCP connection, take turns with a reader that gives back
a credit for each buffer, as Flink's do. Only the steps' CPU is counted, and the best round of several is told: so other work on
the machine, and who is woken when, hardly matter. Beside it the bare system calls of the same conversation: an epoll_wait, a recv
of the credits, a send of the buffers.
"""

import argparse
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Callable

from broker.config import load
from broker.runtime import system_runtime
from broker.runtime.timers import Timer
from broker.shuffle.assembly import ShufflePart
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from tests.bench.stepped import SteppedProcessor, connected

_BUFFER = struct.Struct(">iIB16siiiiB?i")
_HEADER_BYTES = 47
# (buffer size, subpartitions, credit, buffers of each subpartition)
_CASES = [
    (32768, 1, 64, 600),
    (32768, 1, 2, 600),
    (32768, 16, 2, 40),
    (32768, 256, 2, 4),
    (1024, 1, 64, 20_000),
    (1024, 1, 2, 2000),
    (1024, 16, 2, 400),
    (1024, 16, 8, 400),
    (1024, 256, 2, 100),
    (1024, 256, 8, 100),
    (1024, 256, 64, 100),
]


class Bench:
    def __init__(self, directory: str) -> None:
        config = load(
            data_dir=directory,
            listeners=["shuffle://127.0.0.1:0"],
            shuffle_pipelined_bytes=1 << 40,
            shuffle_memory_bytes=1 << 36,
        )
        runtime = system_runtime()
        self.shuffle = ShufflePart(config, runtime, Timer(runtime.clock))
        self.shuffle.open()
        service = self.shuffle.service(config.listeners[0])
        self.processor = SteppedProcessor(config, runtime, service, "shuffle")
        self.spent_ns = 0

    def step(self) -> None:
        before = time.thread_time_ns()
        self.processor.step(0)
        self.spent_ns += time.thread_time_ns() - before

    def read(self, size: int, subpartitions: int, credit: int, each: int) -> float:
        """us of CPU a buffer."""
        partition = ResultPartitionID.of(os.urandom(16))
        kind = w.PartitionType.PIPELINED
        stored = self.shuffle.partitions.open(w.OpenPartition(os.urandom(16), partition, subpartitions, kind, -1, ""))
        client = self.processor.connect()
        client.setblocking(False)
        receivers = [os.urandom(16) for _ in range(subpartitions)]
        for index, receiver in enumerate(receivers):
            request = (Generation.V2_0, partition, IndexSet(index, index), receiver, credit)
            client.sendall(m.encode_partition_request(*request))
        for _ in range(4):
            self.step()
        payload = memoryview(os.urandom(size))
        for number in range(each):
            for index in range(subpartitions):
                stored.append(index, number, DataType.DATA_BUFFER_WITH_CLEAR_END, False, payload)
        self.spent_ns = 0
        self._consume(client, size + _HEADER_BYTES, each * subpartitions)
        client.close()
        spent = self.spent_ns
        for _ in range(4):
            self.step()
        return spent / (each * subpartitions) / 1000

    def _consume(self, client: socket.socket, frame: int, count: int) -> None:
        buffer = memoryview(bytearray(8 << 20))
        have = 0
        while count:
            self.step()
            try:
                have += client.recv_into(buffer[have:])
            except BlockingIOError:
                continue
            due: dict[bytes, int] = {}
            whole = have // frame * frame
            for position in range(0, whole, frame):
                receiver = _BUFFER.unpack_from(buffer, position)[3]
                due[receiver] = due.get(receiver, 0) + 1
            count -= whole // frame
            buffer[: have - whole] = bytes(buffer[whole:have])
            have -= whole
            if due:
                client.sendall(b"".join([m.encode_add_credit(receiver, n) for receiver, n in due.items()]))


def bare(size: int, subpartitions: int, credit: int, rounds: int) -> float:
    """us of CPU a buffer of nothing but system calls, for as many buffers at a time as the credit allows (at most 1 MB)."""
    client, server = connected()
    client.setblocking(False)
    poll = select.epoll()
    poll.register(server, select.EPOLLIN)
    at_a_time = max(1, min(subpartitions * credit, (1 << 20) // size))
    # As many different ones as a reader gets: from a cache the copy would cost less.
    data = [os.urandom(size + _HEADER_BYTES) for _ in range((16 << 20) // size)]
    into = bytearray(4 << 20)
    best = float("inf")
    for number in range(rounds):
        spent = total = 0
        for turn in range(40):
            first = (number * 40 + turn) * at_a_time % (len(data) - at_a_time)
            buffers = data[first : first + min(at_a_time, 1024)]
            client.send(b"x" * min(29 * at_a_time, 60_000))
            before = time.thread_time_ns()
            poll.poll(0)
            server.recv_into(into)
            sent = server.sendmsg(buffers)
            spent += time.thread_time_ns() - before
            total += sent
            while sent:
                try:
                    sent -= client.recv_into(into)
                except BlockingIOError:
                    pass
        best = min(best, spent / (total / (size + _HEADER_BYTES)) / 1000)
    poll.close()
    client.close()
    server.close()
    return best


def best_of(rounds: int, measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as directory:
        bench = Bench(directory)
        for size, subpartitions, credit, each in _CASES:
            ours = best_of(options.rounds, lambda: bench.read(size, subpartitions, credit, each))  # noqa: B023 - called here
            calls = bare(size, subpartitions, credit, options.rounds)
            print(
                f"{size:6} B {subpartitions:4} subpartitions, credit {credit:3}: {ours:6.2f} us a buffer,"
                f" bare system calls {calls:5.2f} us",
                flush=True,
            )


if __name__ == "__main__":
    main()
