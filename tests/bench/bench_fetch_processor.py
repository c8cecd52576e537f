"""What a Fetch request costs a processor: ``python -m tests.bench.bench_fetch_processor [--rounds N] [--only TEXT]``.

One thread: the processor's steps, with the Kafka service and the storage of an embedded broker, take turns with clients on real
TCP connections. Only the CPU of the steps is counted (and of the append that wakes fetches), and the cheapest piece of many, so
that other work on the machine hardly matters. Beside it the bare system calls of the same conversation: an epoll_wait, a recv,
and for a few records a pread and a send, for many a send of the header and sendfile.

What waking up threads and handing over the interpreter cost is not in it: ``bench_fetch`` measures the broker as a process.
"""

import argparse
import os
import select
import socket
import struct
import time
from collections.abc import Sequence

import attrs

from broker.client import Broker
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.bench.stepped import SteppedProcessor, connected

# Each round is measured in so many pieces, of which the cheapest counts.
_PIECES = 20
_INT = struct.Struct(">i").unpack_from
_OFFSET = struct.Struct(">q")
_MARK = 0x1122334455667788  # stands where offsets are
_PREAD_MAX = 32 * 1024  # what the bare loop does not send from the file


@attrs.frozen
class Case:
    name: str
    version: int = 16
    connections: int = 1
    sent: int = 1  # requests of each connection before a step
    records: int = 1  # of a batch
    size: int = 100  # of a record
    batches: int = 1  # in a response, of each partition
    partitions: int = 1  # in a request
    fresh: bool = False  # each request gets the batch that was appended just before it
    tail: bool = False  # the clients wait for each batch at the end of the log
    committed: bool = False  # isolation level
    steps: int = 2000


_CASES = [
    Case("1 x 100 B, just appended", fresh=True),
    Case("1 x 100 B, just appended, version 11", fresh=True, version=11),
    Case("1 x 100 B, just appended, read_committed", fresh=True, committed=True),
    Case("1 x 100 B, just appended, 20 connections", fresh=True, connections=20, steps=200),
    Case("1 x 100 B of 50 partitions, just appended", fresh=True, partitions=50, steps=200),
    Case("16 KB, just appended", fresh=True, records=16, size=1000, steps=1000),
    Case("1 x 100 B of many, alone"),
    Case("1 x 100 B of many, 16 together", sent=16, steps=200),
    Case("16 KB of many, alone", records=16, size=1000, steps=1000),
    Case("100 KB of many, alone", records=100, size=1000, steps=500),
    Case("1 MB of many, alone", records=100, size=1000, batches=10, steps=100),
    Case("1 MB of small batches of many, alone", size=100, batches=6000, steps=100),
    Case("16 MB of many, alone", records=1000, size=1000, batches=16, steps=20),
    Case("waits, 1 consumer", tail=True),
    Case("waits, 1 consumer, read_committed", tail=True, committed=True),
    Case("waits, 10 consumers", connections=10, tail=True, steps=400),
    Case("waits, 100 consumers", connections=100, tail=True, steps=60),
    Case("waits for 50 partitions, 1 consumer", partitions=50, tail=True, steps=400),
    Case("waits, 16 KB, 10 consumers", records=16, size=1000, connections=10, tail=True, steps=400),
]


class Reader:
    """A client that reads on where it has stopped, from the beginning again after the last offset."""

    def __init__(self, client: socket.socket, topic: object, case: Case, batch_size: int) -> None:
        self.socket = client
        self._case = case
        self._topic = topic
        self._most = 1 << 20 if case.fresh or case.tail else batch_size * case.batches
        self.offset = 0
        self.end = 0
        self._buffer = memoryview(bytearray(1 << 20))
        self._left = 0
        self._frame = self._first_frame()
        mark = _OFFSET.pack(_MARK)
        self._positions = [at for at in range(len(self._frame)) if self._frame[at : at + 8] == mark]

    def frame(self, offset: int) -> bytes:
        """A request from ``offset`` on. Built once, so that what the client does costs little of the processor's caches."""
        for at in self._positions:
            _OFFSET.pack_into(self._frame, at, offset)
        return bytes(self._frame)

    def _first_frame(self) -> bytearray:
        case = self._case
        name = "topic_id" if case.version >= 13 else "topic"
        wanted = [
            {
                "partition": index,
                "fetch_offset": 0 if case.tail and index < case.partitions - 1 else _MARK,
                "partition_max_bytes": self._most,
            }
            for index in range(case.partitions)
        ]
        fields = {
            "max_wait": 30_000 if case.tail else 0,
            "min_bytes": 1,
            "max_bytes": 1 << 30,
            "isolation_level": int(case.committed),
            "topics": [{name: self._topic, "partitions": wanted}],
        }
        return bytearray(control.encode_request(ApiKey.FETCH, case.version, 1, "bench", fields))

    def send(self) -> None:
        frames = []
        for _ in range(self._case.sent):
            if self.end and self.offset >= self.end:
                self.offset = 0
            frames.append(self.frame(self.offset))
            self.offset += self._case.records * self._case.batches
        self.socket.sendall(b"".join(frames))

    def receive(self) -> int:
        """How many responses have ended in what has arrived."""
        ended = 0
        try:
            while True:
                got = self.socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
                assert got
                at = min(got, self._left)
                self._left -= at
                ended += at > 0 and not self._left
                while at < got:
                    (size,) = _INT(self._buffer, at)
                    at += 4 + size
                    self._left = max(0, at - got)
                    ended += not self._left
        except BlockingIOError:
            return ended


class Bench:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        server = broker.server
        service = server._parts["kafka"].service(server.config.listeners[0])
        self._processor = SteppedProcessor(server.config, server.runtime, service, "kafka")
        self._topics = 0

    def measure(self, case: Case, rounds: int) -> float:
        """us of CPU a request."""
        self._topics += 1
        name = f"bench-{self._topics}"
        logs = self._broker.server.kafka.logs
        info = logs.create_topic(name, case.partitions)
        now_ms = time.time_ns() // 1_000_000
        records = build_batch([(None, os.urandom(case.size), (), now_ms)] * case.records)
        partitions = [logs.partitions[name, index] for index in range(case.partitions)]
        grows = case.tail or case.fresh
        count = 0 if grows else max(4, min(20_000, (64 << 20) // len(records) // case.partitions))
        count = count // case.batches * case.batches
        for log in partitions:
            for _ in range(count):
                log.append(memoryview(bytearray(records)), now_ms=now_ms)
        readers = []
        for _ in range(case.connections):
            client = self._processor.connect()
            self._processor.step(0)
            reader = Reader(client, info.topic_id if case.version >= 13 else name, case, len(records))
            reader.end = count * case.records
            readers.append(reader)
        for _ in range(4):
            self._processor.step(0)
        steps = max(1, case.steps // _PIECES)
        spent = min(self._exchange(readers, case, steps, partitions, records, now_ms) for _ in range(_PIECES * rounds))
        for reader in readers:
            reader.socket.close()
        for _ in range(4):
            self._processor.step(0)
        logs.delete_topic(name)
        return spent / (steps * case.sent * case.connections) / 1000

    def _exchange(
        self, readers: Sequence[Reader], case: Case, steps: int, logs: Sequence[Log], records: bytearray, now_ms: int
    ) -> int:
        spent = 0
        step, now = self._processor.step, time.thread_time_ns
        for _ in range(steps):
            if case.fresh:
                for log in logs:
                    log.append(memoryview(records), now_ms=now_ms)
            for reader in readers:
                reader.send()
            if case.tail:
                before = now()
                step(0)
                logs[-1].append(memoryview(records), now_ms=now_ms)
                spent += now() - before
            due = case.sent * len(readers)
            while due > 0:
                before = now()
                step(0)
                spent += now() - before
                for reader in readers:
                    due -= reader.receive()
        return spent


def bare(case: Case, path: str, rounds: int) -> float:
    """us of CPU a request for the system calls alone, best of many pieces."""
    now = time.thread_time_ns
    records = os.urandom(case.size * case.records + 70)
    size = len(records) * case.batches
    fd = os.open(f"{path}/bare", os.O_RDWR | os.O_CREAT)
    for number in range(case.batches):
        os.pwrite(fd, records, number * len(records))
    header = b"h" * 60
    pairs = [connected() for _ in range(case.connections)]
    sink = memoryview(bytearray(1 << 20))
    pieces = []
    steps = max(1, case.steps // _PIECES)
    with select.epoll() as poller:
        servers = {}
        for _, server in pairs:
            poller.register(server, select.EPOLLIN)
            servers[server.fileno()] = server
        frame = Reader(pairs[0][0], "bench", attrs.evolve(case, version=11), 1).frame(0)
        buffer = memoryview(bytearray(256 * 1024))
        for number in range(steps * _PIECES * rounds):
            if number % steps == 0:
                pieces.append(0)
            for client, _ in pairs:
                client.sendall(frame * case.sent)
            left = len(pairs) * case.sent * len(frame)
            while left:
                before = now()
                for ready, _ in poller.poll(0):
                    server = servers[ready]
                    left -= server.recv_into(buffer)
                    if size <= _PREAD_MAX:
                        answers = [
                            header + os.pread(fd, size, 0) for _ in range(case.partitions if not case.tail else 1)
                        ]
                        server.send(b"".join(answers * case.sent))
                        continue
                    server.send(header, socket.MSG_MORE)
                    sent = 0
                    while sent < size:
                        try:
                            sent += os.sendfile(server.fileno(), fd, sent, size - sent)
                        except BlockingIOError:
                            pieces[-1] += now() - before
                            _drain(pairs[0][0], sink)
                            before = now()
                pieces[-1] += now() - before
            for client, _ in pairs:
                _drain(client, sink)
        for client, server in pairs:
            client.close()
            server.close()
    os.close(fd)
    return min(pieces) / (steps * case.sent * case.connections) / 1000


def _drain(client: socket.socket, sink: memoryview) -> None:
    try:
        while client.recv_into(sink, 0, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only the cases with this in their names")
    options = parser.parse_args()
    print(f"{'us of CPU a request':42} {'broker':>8} {'bare':>8}")
    with Broker(logging_level="warning") as broker:
        bench = Bench(broker)
        for case in _CASES:
            if options.only in case.name:
                cost = bench.measure(case, options.rounds)
                print(f"{case.name:42} {cost:8.2f} {bare(case, broker.data_dir, options.rounds):8.2f}", flush=True)


if __name__ == "__main__":
    main()
