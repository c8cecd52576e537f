"""Small requests that ask for much, connections that repeat them, and a neighbour that must not notice."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from protocol.wire import Writer
from tests.kafka_connection import LENGTH, KafkaConnection, fetch_fields, produce_fields
from tests.process.broker_process import PATIENCE_S, BrokerProcess

WIDE = "wide"  # a topic of many partitions
QUIET = "neighbour"  # the neighbour's own topic
GROUP = "group"

# The memory that the broker may take under all attacks (bytes): a fresh broker has about 60 MB.
RSS_MAX = 500_000_000


def frame(key: ApiKey, version: int, body: bytes, *, tags: bytes = b"\0") -> bytes:
    """A request with this raw body."""
    head = struct.pack(">hhih", key, version, 7, 1) + b"x"
    if control.request_header(key, version, 7, "x")[-1:] == b"\0":
        head += tags
    return LENGTH.pack(len(head + body)) + head + body


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def count(number: int) -> bytes:
    return LENGTH.pack(number)


def uvarint(number: int) -> bytes:
    out = Writer()
    out.uvarint(number)
    return out.getvalue()


def topic_id(number: int) -> bytes:
    """An id of no topic."""
    return number.to_bytes(16, "big")


class Neighbour:
    """Produces with acks=all and fetches its records, in turns."""

    def __init__(self, address: str) -> None:
        self._client = KafkaConnection(address)
        self.rounds = 0
        self.longest_s = 0.0
        self._batch = bytes(build_batch([(b"key", b"value", [], 1_700_000_000_000)]))

    def round(self) -> None:
        began = time.monotonic()
        produced = self._client.ask(ApiKey.PRODUCE, 7, **produce_fields(QUIET, self._batch))
        (partition,) = produced.responses[0].partition_responses
        assert partition.error_code == 0
        middle = time.monotonic()
        fetched = self._client.ask(ApiKey.FETCH, 11, **fetch_fields(QUIET, offset=partition.base_offset))
        assert fetched.responses[0].partitions[0].records
        self.longest_s = max(self.longest_s, middle - began, time.monotonic() - middle)
        self.rounds += 1

    def close(self) -> None:
        self._client.close()


class Attack:
    """``connections`` that resend ``request`` as soon as it was answered or they were closed, and read every response."""

    def __init__(self, address: str, request: bytes | Callable[[int], bytes], connections: int) -> None:
        self._address = address
        self._request = request
        self._ended = threading.Event()
        self.answers = [0] * connections
        self.bytes_received = 0
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(connections)]

    def _run(self, number: int) -> None:
        while not self._ended.is_set():
            try:
                with KafkaConnection(self._address) as client:
                    while not self._ended.is_set():
                        request = self._request if isinstance(self._request, bytes) else self._request(number)
                        client.socket.sendall(request)
                        self._receive(client.socket)
                        self.answers[number] += 1
            except OSError:
                self.answers[number] += 1
                self._ended.wait(0.01)

    def _receive(self, connection: socket.socket) -> None:
        """Reads and discards a response."""
        buffer = bytearray(1 << 16)
        head = b""
        connection.settimeout(0.2)
        while len(head) < 4 and not self._ended.is_set():
            try:
                piece = connection.recv(4 - len(head))
            except TimeoutError:
                continue
            if not piece:
                raise ConnectionError("closed")
            head += piece
        if len(head) < 4:
            return
        connection.settimeout(PATIENCE_S)
        left = LENGTH.unpack(head)[0]
        while left:
            got = connection.recv_into(buffer, min(left, len(buffer)))
            if not got:
                raise ConnectionError("closed")
            left -= got
            self.bytes_received += got

    def __enter__(self) -> "Attack":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


@contextmanager
def attacked_broker(directory: Any, *settings: str, partitions: int = 1000) -> Iterator[BrokerProcess]:
    """A broker with the attacks' topics and groups, which cannot take the machine's memory."""
    with BrokerProcess(directory, *settings, prefix=("prlimit", "--as=6000000000")) as broker:
        with KafkaConnection(broker.address) as client:
            wanted = ((QUIET, 1), (WIDE, partitions))
            topics = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in wanted]
            made = client.ask(ApiKey.CREATE_TOPICS, 5, topics=topics, timeout=120_000)
            assert [topic.error_code for topic in made.topics] == [0, 0]
            commits = [
                {"partition_index": number, "committed_offset": 1, "committed_metadata": "m" * 1000}
                for number in range(200)
            ]
            groups_topics = [{"name": WIDE, "partitions": commits}]
            committed = client.ask(ApiKey.OFFSET_COMMIT, 2, group_id=GROUP, topics=groups_topics)
            assert {partition.error_code for partition in committed.topics[0].partitions} == {0}
        yield broker


def outlives(
    broker: BrokerProcess, request: bytes | Callable[[int], bytes], connections: int, rounds: int = 20
) -> tuple[Attack, Neighbour]:
    """The neighbour makes ``rounds`` rounds, and more until each connection of the attack was answered or closed once."""
    neighbour = Neighbour(broker.address)
    try:
        with Attack(broker.address, request, connections) as attack:
            deadline = time.monotonic() + PATIENCE_S
            while neighbour.rounds < rounds or not all(attack.answers):
                neighbour.round()
                assert time.monotonic() < deadline, (neighbour.rounds, attack.answers)
    finally:
        neighbour.close()
    return attack, neighbour


def unknown_topics(number: int, of: int) -> bytes:
    """Metadata of ``of`` unknown topics, different for each connection."""
    names = b"".join(text(f"unknown-{number}-{name}") for name in range(of))
    return frame(ApiKey.METADATA, 4, count(of) + names + b"\1")


def markers(number: int) -> list[dict[str, Any]]:
    """Markers of ``number`` producers, over the partitions of the wide topic."""
    return [
        {"producer_id": each, "topics": [{"name": WIDE, "partition_indexes": [each % 1000]}]} for each in range(number)
    ]


def repeated_fetch(topic: str, partitions: Iterable[int], max_wait_ms: int = 100) -> bytes:
    """A fetch of these partitions of one topic, each from its first offset on."""
    wanted = [struct.pack(">iqi", number, 0, 1 << 20) for number in partitions]
    head = struct.pack(">iiiib", -1, max_wait_ms, 1, 1 << 20, 0) + count(1) + text(topic) + count(len(wanted))
    return frame(ApiKey.FETCH, 4, head + b"".join(wanted))


ATTACKS: dict[str, Callable[[], bytes]] = {
    "metadata of one wide topic, 20,000 times": lambda: frame(ApiKey.METADATA, 1, count(20_000) + text(WIDE) * 20_000),
    "offsets of one group, 20,000 times": lambda: frame(
        ApiKey.OFFSET_FETCH, 8, b"\xa1\x9c\x01" + (b"\x06group\0\0") * 20_000 + b"\0\0"
    ),
    "one group described, 20,000 times": lambda: frame(ApiKey.DESCRIBE_GROUPS, 0, count(20_000) + text(GROUP) * 20_000),
    "one topic's settings, 50,000 times": lambda: frame(
        ApiKey.DESCRIBE_CONFIGS, 1, count(50_000) + (b"\2" + text(WIDE) + b"\xff\xff\xff\xff") * 50_000 + b"\1"
    ),
    "fetch of one partition, 200,000 times": lambda: repeated_fetch(WIDE, [0] * 200_000),
    "fetch of one partition, 40,000 times": lambda: repeated_fetch(WIDE, [0] * 40_000),
    "fetch of a million partitions": lambda: repeated_fetch(WIDE, range(1_000_000)),
    "coordinators of 500,000 keys": lambda: frame(
        ApiKey.FIND_COORDINATOR, 4, b"\0" + b"\xa1\xc2\x1e" + b"\2k" * 500_000 + b"\0"
    ),
    "coordinators of 40,000 keys": lambda: frame(
        ApiKey.FIND_COORDINATOR,
        4,
        b"\0" + b"\xc1\xb8\x02" + b"".join(b"\6%05d" % number for number in range(40_000)) + b"\0",
    ),
    "reassignments, 4 MB": lambda: frame(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        struct.pack(">i", 1000) + b"\x81\x89\x7a" + b"\2t\1\0" * 2_000_000 + b"\0",
    ),
    "produce of 3,000,000 empty topics": lambda: frame(
        ApiKey.PRODUCE, 3, struct.pack(">hhi", -1, 1, 1000) + count(3_000_000) + (b"\0\0" + count(0)) * 3_000_000
    ),
    "produce to 45,000 unknown partitions": lambda: frame(
        ApiKey.PRODUCE,
        3,
        struct.pack(">hhi", -1, 1, 1000) + count(1) + text("none") + count(45_000) + (count(0) + count(-1)) * 45_000,
    ),
    "a million tagged fields in the header": lambda: frame(
        ApiKey.METADATA, 9, b"\0\0\0\0\0", tags=b"\xc0\x84\x3d" + b"\1\0" * 1_000_000
    ),
    "offsets after an epoch, of 45,000 partitions": lambda: frame(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        2,
        count(1) + text(WIDE) + count(45_000) + (count(0) + count(-1) + count(0)) * 45_000,
    ),
    "producers of one partition, 45,000 times": lambda: frame(
        ApiKey.DESCRIBE_PRODUCERS, 0, b"\2\5wide" + b"\xc9\xdf\x02" + count(0) * 45_000 + b"\0\0"
    ),
    "leaders elected of 45,000 partitions": lambda: frame(
        ApiKey.ELECT_LEADERS, 0, count(1) + text(WIDE) + count(45_000) + count(0) * 45_000 + count(1000)
    ),
    "sizes of one partition, 45,000 times": lambda: frame(
        ApiKey.DESCRIBE_LOG_DIRS, 1, count(1) + text(WIDE) + count(45_000) + count(0) * 45_000
    ),
    "16,000 markers": lambda: control.encode_request(ApiKey.WRITE_TXN_MARKERS, 1, 7, "x", {"markers": markers(16_000)}),
    "45,000 commits": lambda: frame(
        ApiKey.OFFSET_COMMIT,
        2,
        text(GROUP)
        + count(-1)
        + text("")
        + struct.pack(">q", -1)
        + count(1)
        + text(WIDE)
        + count(45_000)
        + b"".join(struct.pack(">iqh", number % 1000, number, -1) for number in range(45_000)),
    ),
    "45,000 members leave": lambda: frame(
        ApiKey.LEAVE_GROUP,
        3,
        text(GROUP) + count(45_000) + b"".join(text(f"{number:5}") + b"\xff\xff" for number in range(45_000)),
    ),
    "45,000 topic ids deleted": lambda: frame(
        ApiKey.DELETE_TOPICS, 6, b"\xc9\xdf\x02" + (b"\0" + b"i" * 16 + b"\0") * 45_000 + count(1000) + b"\0"
    ),
    "metadata of 49,000 unknown ids": lambda: frame(
        ApiKey.METADATA, 12, uvarint(49_001) + b"".join(topic_id(one) + b"\0\0" for one in range(49_000)) + b"\0\0\0"
    ),
    "metadata of one unknown id, 49,000 times": lambda: frame(
        ApiKey.METADATA, 12, uvarint(49_001) + (topic_id(1) + b"\0\0") * 49_000 + b"\0\0\0"
    ),
    "fetch of 20,000 unknown ids": lambda: frame(
        ApiKey.FETCH,
        17,
        struct.pack(">iiibii", 100, 1, 1 << 20, 0, 0, -1)
        + uvarint(20_001)
        + b"".join(
            topic_id(one) + b"\2" + struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1 << 20) + b"\0\0" for one in range(20_000)
        )
        + b"\1\1\0",
    ),
    "records for 20,000 unknown ids": lambda: frame(
        ApiKey.PRODUCE,
        13,
        b"\0"
        + struct.pack(">hi", 1, 1000)
        + uvarint(20_001)
        + b"".join(topic_id(one) + b"\2" + struct.pack(">i", 0) + b"\2x\0\0" for one in range(20_000))
        + b"\0",
    ),
    "offsets of 20,000 unknown ids": lambda: frame(
        ApiKey.OFFSET_COMMIT,
        10,
        b"\6group"
        + struct.pack(">i", -1)
        + b"\1\0"
        + uvarint(20_001)
        + b"".join(topic_id(one) + b"\2" + struct.pack(">iqi", 0, 1, -1) + b"\1\0\0" for one in range(20_000))
        + b"\0",
    ),
}
