"""Requests that are small and ask for much, connections that send them again and again, and a neighbour who must not notice."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from protocol.wire import Writer
from tests.process.broker_process import PATIENCE_S, BrokerProcess

LENGTH = struct.Struct(">i")
WIDE = "wide"  # a topic of many partitions
QUIET = "neighbour"  # the neighbour's own topic
GROUP = "group"

# What all attacks together may make the broker take (bytes): a fresh one has about 60 MB.
RSS_MAX = 500_000_000


def frame(key: ApiKey, version: int, body: bytes, *, tags: bytes = b"\0") -> bytes:
    """A request whose body is given as it is."""
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
    """One that nobody has."""
    return number.to_bytes(16, "big")


class Client:
    """A blocking connection."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        self.socket.sendall(control.encode_request(key, version, 7, "x", fields))
        return control.parse_response(key, version, self.response())[1]

    def response(self) -> bytes:
        head = self._exactly(4)
        return head + self._exactly(LENGTH.unpack(head)[0])

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionError("closed")
            data += piece
        return bytes(data)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class Neighbour:
    """Produces with acks=all and fetches what it has written, one after the other."""

    def __init__(self, address: str) -> None:
        self._client = Client(address)
        self.rounds = 0
        self.longest_s = 0.0
        batch = bytes(build_batch([(b"key", b"value", [], 1_700_000_000_000)]))
        self._produce = control.encode_request(
            ApiKey.PRODUCE,
            7,
            7,
            "n",
            {
                "acks": -1,
                "timeout": 30_000,
                "topic_data": [{"name": QUIET, "partition_data": [{"index": 0, "records": batch}]}],
            },
        )

    def round(self) -> None:
        began = time.monotonic()
        self._client.socket.sendall(self._produce)
        produced: Any = control.parse_response(ApiKey.PRODUCE, 7, self._client.response())[1]
        (partition,) = produced.responses[0].partition_responses
        assert partition.error_code == 0
        middle = time.monotonic()
        fetched = self._client.ask(
            ApiKey.FETCH,
            11,
            max_wait=0,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[
                {
                    "topic": QUIET,
                    "partitions": [
                        {"partition": 0, "fetch_offset": partition.base_offset, "partition_max_bytes": 1 << 20}
                    ],
                }
            ],
        )
        assert fetched.responses[0].partitions[0].records
        self.longest_s = max(self.longest_s, middle - began, time.monotonic() - middle)
        self.rounds += 1

    def close(self) -> None:
        self._client.socket.close()


class Attack:
    """``connections`` that send ``request`` again as soon as it was answered or they were closed, and read all that comes."""

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
                with Client(self._address) as client:
                    while not self._ended.is_set():
                        request = self._request if isinstance(self._request, bytes) else self._request(number)
                        client.socket.sendall(request)
                        self._receive(client.socket)
                        self.answers[number] += 1
            except OSError:
                self.answers[number] += 1
                self._ended.wait(0.01)

    def _receive(self, connection: socket.socket) -> None:
        """One response, thrown away."""
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


def peak_bytes(broker: BrokerProcess) -> int:
    """The most memory that the process has ever had (VmHWM)."""
    with open(f"/proc/{broker.process.pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@contextmanager
def attacked_broker(directory: Any, *settings: str, partitions: int = 1000) -> Iterator[BrokerProcess]:
    """A broker with what the attacks use, which cannot take the machine's memory."""
    with BrokerProcess(directory, *settings, prefix=("prlimit", "--as=6000000000")) as broker:
        with Client(broker.address) as client:
            made = client.ask(
                ApiKey.CREATE_TOPICS,
                5,
                topics=[
                    {"name": QUIET, "num_partitions": 1, "replication_factor": 1},
                    {"name": WIDE, "num_partitions": partitions, "replication_factor": 1},
                ],
                timeout=120_000,
            )
            assert [topic.error_code for topic in made.topics] == [0, 0]
            committed = client.ask(
                ApiKey.OFFSET_COMMIT,
                2,
                group_id=GROUP,
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[
                    {
                        "name": WIDE,
                        "partitions": [
                            {"partition_index": number, "committed_offset": 1, "committed_metadata": "m" * 1000}
                            for number in range(200)
                        ],
                    }
                ],
            )
            assert {one.error_code for one in committed.topics[0].partitions} == {0}
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
    """Metadata of ``of`` topics that nobody has, other ones for each connection."""
    names = b"".join(text(f"unknown-{number}-{name}") for name in range(of))
    return frame(ApiKey.METADATA, 4, count(of) + names + b"\1")


def long_fetch(topic: str, partitions: int, max_wait_ms: int) -> bytes:
    """A fetch of that many partitions, each from a far offset on where nothing is."""
    return frame(
        ApiKey.FETCH,
        4,
        struct.pack(">iiiib", -1, max_wait_ms, 1, 1 << 20, 0)
        + count(1)
        + text(topic)
        + count(partitions)
        + b"".join(struct.pack(">iqi", number, 0, 1 << 20) for number in range(partitions)),
    )


ATTACKS: dict[str, Callable[[], bytes]] = {
    "metadata of one wide topic, 20,000 times": lambda: frame(ApiKey.METADATA, 1, count(20_000) + text(WIDE) * 20_000),
    "offsets of one group, 20,000 times": lambda: frame(
        ApiKey.OFFSET_FETCH, 8, b"\xa1\x9c\x01" + (b"\x06group\0\0") * 20_000 + b"\0\0"
    ),
    "one group described, 20,000 times": lambda: frame(ApiKey.DESCRIBE_GROUPS, 0, count(20_000) + text(GROUP) * 20_000),
    "one topic's settings, 50,000 times": lambda: frame(
        ApiKey.DESCRIBE_CONFIGS, 1, count(50_000) + (b"\2" + text(WIDE) + b"\xff\xff\xff\xff") * 50_000 + b"\1"
    ),
    "fetch of one partition, 200,000 times": lambda: frame(
        ApiKey.FETCH,
        4,
        struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0)
        + count(1)
        + text(WIDE)
        + count(200_000)
        + struct.pack(">iqi", 0, 0, 1 << 20) * 200_000,
    ),
    "fetch of one partition, 40,000 times": lambda: frame(
        ApiKey.FETCH,
        4,
        struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0)
        + count(1)
        + text(WIDE)
        + count(40_000)
        + struct.pack(">iqi", 0, 0, 1 << 20) * 40_000,
    ),
    "fetch of a million partitions": lambda: frame(
        ApiKey.FETCH,
        4,
        struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0)
        + count(1)
        + text(WIDE)
        + count(1_000_000)
        + b"".join(struct.pack(">iqi", number, 0, 1 << 20) for number in range(1_000_000)),
    ),
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
    "16,000 markers": lambda: control.encode_request(
        ApiKey.WRITE_TXN_MARKERS,
        1,
        7,
        "x",
        {
            "markers": [
                {"producer_id": number, "topics": [{"name": WIDE, "partition_indexes": [number % 1000]}]}
                for number in range(16_000)
            ]
        },
    ),
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
