"""What a Produce request costs a processor: ``python -m tests.bench.processor [--rounds N] [--only TEXT]``.

One thread: the processor's steps, with the Kafka service and the storage of an embedded broker, take turns with clients on real
TCP connections that send so many requests before each step and read the answers after it. Only the steps' CPU is counted, and the
best round of several is told: so other work on the machine, and who is woken when, hardly matter. Beside it the bare system calls
of the same conversation with the checksum: an epoll_wait, a recv, one write for each log, a send.

What waking up threads and handing over the interpreter cost is not in it: ``bench_broker`` measures the broker as a process.
"""

import argparse
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

import attrs

from broker.client import Broker
from broker.storage.log import append
from protocol.checksum import crc32c
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.bench.stepped import SteppedProcessor, connected

_SEQUENCE = struct.Struct(">i")
_SEQUENCE_AT = 53  # in a batch
_RECORDS_AT = 61
_VERSION = 9
# Each round is measured in so many pieces, of which the cheapest counts.
_PIECES = 20


@attrs.frozen
class Case:
    name: str
    connections: int = 1
    sent: int = 1  # requests of each connection before a step
    records: int = 1
    size: int = 100  # of a record
    partitions: int = 1  # in a request
    acks: int = 1
    producer: bool = False  # an idempotent one
    steps: int = 4000


_CASES = [
    Case("1 x 100 B, alone"),
    Case("1 x 100 B, 5 together", sent=5, steps=1500),
    Case("1 x 100 B, 64 together", sent=64, steps=200),
    Case("1 x 100 B, idempotent, alone", producer=True),
    Case("1 x 100 B, idempotent, 5 together", producer=True, sent=5, steps=1500),
    Case("1 x 100 B, 20 connections", connections=20, steps=400),
    Case("1 x 100 B to 8 partitions, alone", partitions=8, steps=1000),
    Case("1 x 100 B to 8 partitions, 5 together", partitions=8, sent=5, steps=300),
    Case("16 KB, alone", records=16, size=1000, steps=2000),
    Case("16 KB, 5 together", records=16, size=1000, sent=5, steps=500),
    Case("16 KB, 20 connections", connections=20, records=16, size=1000, steps=150),
]


class Client:
    """Sends the same request again and again. An idempotent one counts its batches."""

    def __init__(self, client: socket.socket, topic: str, case: Case, producer_id: int) -> None:
        self._socket = client
        self._sent = case.sent
        now = time.time_ns() // 1_000_000
        row = (None, os.urandom(case.size), (), now)
        producer = (producer_id, 0, 0) if case.producer else (-1, -1, -1)
        batch = build_batch(
            [row] * case.records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
        )
        self.batch = bytes(batch)
        data = [{"index": index, "records": self.batch} for index in range(case.partitions)]
        fields = {"acks": case.acks, "timeout": 30_000, "topic_data": [{"name": topic, "partition_data": data}]}
        self.frame = bytearray(control.encode_request(ApiKey.PRODUCE, _VERSION, 1, "bench", fields))
        self._positions = []
        at = self.frame.find(self.batch)
        while at >= 0:
            self._positions.append(at)
            at = self.frame.find(self.batch, at + 1)
        self._records = case.records
        self._number = 0
        self._counts = case.producer

    def frames(self) -> bytes:
        if not self._counts:
            return bytes(self.frame * self._sent)
        frames = []
        for _ in range(self._sent):
            for at in self._positions:
                batch = memoryview(self.frame)[at : at + len(self.batch)]
                _SEQUENCE.pack_into(batch, _SEQUENCE_AT, self._number)
                batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
            self._number += self._records
            frames.append(bytes(self.frame))
        return b"".join(frames)

    def send(self) -> None:
        self._socket.sendall(self.frames())

    def receive(self, answers: int) -> int:
        data = self._socket.recv(1 << 20, socket.MSG_DONTWAIT)
        at = 0
        while at < len(data):
            at += 4 + _SEQUENCE.unpack_from(data, at)[0]
            answers -= 1
        return answers


class Bench:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        server = broker.server
        service = server._parts["kafka"].service(server.config.listeners[0])
        self._processor = SteppedProcessor(server.config, server.runtime, service, "kafka")
        self._topics = 0

    def measure(self, case: Case) -> float:
        """us of CPU a request."""
        self._topics += 1
        topic = f"bench-{self._topics}"
        logs = self._broker.server.kafka.logs
        info = logs.create_topic(topic, case.partitions)
        clients = []
        for number in range(case.connections):
            client = self._processor.connect()
            clients.append((client, Client(client, topic, case, 1000 + number)))
        for _ in range(4):
            self._processor.step(0)
        steps = max(1, case.steps // _PIECES)
        spent = min(self._exchange(clients, case, steps) for _ in range(_PIECES))
        for client, _ in clients:
            client.close()
        for _ in range(4):
            self._processor.step(0)
        logs.delete_topic(info.name)
        return spent / (steps * case.sent * case.connections) / 1000

    def _exchange(self, clients: Sequence[tuple[socket.socket, Client]], case: Case, steps: int) -> int:
        spent = 0
        step = self._processor.step
        for _ in range(steps):
            for _, client in clients:
                client.send()
            due = [case.sent] * len(clients)
            while any(due):
                before = time.thread_time_ns()
                step(0)
                spent += time.thread_time_ns() - before
                for index, (_, client) in enumerate(clients):
                    try:
                        due[index] = client.receive(due[index]) if due[index] else 0
                    except BlockingIOError:
                        continue
        return spent


def bare(case: Case, path: str) -> float:
    """us of CPU a request for an epoll_wait, and for each connection a recv, the checksums, a write for each partition,
    and a send."""
    clients = []
    servers = {}
    with select.epoll() as poller:
        for _ in range(case.connections):
            client, server = connected()
            clients.append((client, Client(client, "bench", case, 1)))
            poller.register(server, select.EPOLLIN)
            servers[server.fileno()] = server
        answers = b"a" * 56 * case.sent
        fds = [os.open(f"{path}/bare-{index}", os.O_RDWR | os.O_CREAT) for index in range(case.partitions)]
        buffer = memoryview(bytearray(256 * 1024))
        batch_size = len(clients[0][1].batch)
        position = 0
        pieces = []
        steps = max(1, case.steps // _PIECES)
        for number in range(steps * _PIECES):
            if number % steps == 0:
                pieces.append(0)
            for _, sender in clients:
                sender.send()
            left = case.connections * len(clients[0][1].frames())
            while left:
                before = time.thread_time_ns()
                for fd, _ in poller.poll(0):
                    server = servers[fd]
                    size = server.recv_into(buffer)
                    left -= size
                    batches = [buffer[at : at + batch_size] for at in range(0, size - batch_size + 1, batch_size)]
                    for batch in batches:
                        crc32c(batch[21:])
                    for fd in fds:
                        position += os.pwritev(fd, batches[:: len(fds)], position) if batches else 0
                    server.send(answers)
                pieces[-1] += time.thread_time_ns() - before
            for client, _ in clients:
                client.recv(1 << 20)
        for fd in fds:
            os.close(fd)
        for server in servers.values():
            server.close()
    return min(pieces) / (steps * case.sent * case.connections) / 1000


def best(measure: Callable[[], float], rounds: int) -> float:
    return min(measure() for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="only the cases with this in their names")
    options = parser.parse_args()
    print(f"{'us of CPU a request':42} {'broker':>8} {'bare':>8}")
    append.SLOW_WRITE_S = float("inf")  # there are no handlers for what follows a slow append
    with Broker(logging_level="warning") as broker:
        bench = Bench(broker)
        for case in _CASES:
            if options.only in case.name:
                cost = best(lambda case=case: bench.measure(case), options.rounds)  # type: ignore[misc]
                least = best(lambda case=case: bare(case, broker.data_dir), options.rounds)  # type: ignore[misc]
                print(f"{case.name:42} {cost:8.2f} {least:8.2f}", flush=True)


if __name__ == "__main__":
    main()
