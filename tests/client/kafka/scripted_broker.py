"""A broker of one topic with configurable versions, for the behaviour that our own broker lacks: topic ids, torn
batches, throttling, leaders that move, and invalid answers.

It keeps produced records in memory, in one partition, and answers by Kafka's own schemas.
"""

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, Self
from uuid import UUID

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.records.batch import batches, read_header, stamp
from protocol.kafka.schema import control
from tests.client.gate import Gate

TOPIC, TOPIC_ID = "topic", UUID(int=7)
_LENGTH = struct.Struct(">i")

DEFAULT_VERSIONS = {
    ApiKey.PRODUCE: (0, 9),
    ApiKey.FETCH: (4, 12),
    ApiKey.METADATA: (0, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.API_VERSIONS: (0, 3),
}


class ScriptedBroker(Gate):
    """``script``: the answers to the next fetches in place of records, as fields of the partition or raw bytes."""

    def __init__(self, versions: Mapping[ApiKey, tuple[int, int]] | None = None, tears: bool = False) -> None:
        super().__init__()
        self.versions = DEFAULT_VERSIONS | dict(versions or {})
        self.tears = tears  # cuts at max_bytes, wherever that is, as Kafka did before KIP-74
        self.log = bytearray()
        self.end = 0
        self.next_sequence = 0
        self.topic_id = TOPIC_ID
        self.leader = self  # of the only partition
        self.script: deque[dict[str, Any] | bytes] = deque()
        self.asked: list[tuple[ApiKey, int]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def append(self, data: bytes | bytearray) -> int:
        """The base offset."""
        base = self.end
        batch = bytearray(data)
        for position, header in batches(batch):
            stamp(batch, position, self.end, 0)
            self.end += header.last_offset_delta + 1
        self.log += batch
        return base

    def hand_over_to(self, other: "ScriptedBroker") -> None:
        """The other broker leads from now on, with the same records."""
        other.log, other.end, other.next_sequence = self.log, self.end, self.next_sequence
        self.leader = other

    def serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            while length := stream.read(4):
                frame = length + stream.read(_LENGTH.unpack(length)[0])
                header = parse_request_header(frame)
                key = ApiKey(header.api_key)
                self.asked.append((key, header.api_version))
                least, most = self.versions[key]
                if not least <= header.api_version <= most:
                    assert key == ApiKey.API_VERSIONS, (key, header.api_version)
                    client.sendall(control.encode_response(key, 0, header.correlation_id, self._versions(35)))
                    continue
                request = control.parse_request(key, header.api_version, frame[header.body_offset :])
                answer = getattr(self, key.name.lower())(request)
                if isinstance(answer, bytes):
                    client.sendall(answer)
                else:
                    client.sendall(control.encode_response(key, header.api_version, header.correlation_id, answer))

    # APIs -----------------------------------------------------------------------------------------------------------

    def _versions(self, error: int = 0) -> dict[str, Any]:
        ranges = [{"api_key": int(key), "min_version": a, "max_version": b} for key, (a, b) in self.versions.items()]
        return {"error_code": error, "api_keys": ranges}

    def api_versions(self, request: Any) -> dict[str, Any]:
        return self._versions()

    def metadata(self, request: Any) -> dict[str, Any]:
        topic = {
            "name": TOPIC,
            "topic_id": self.topic_id,
            "partitions": [{"partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}],
        }
        leader = self.leader
        return {"brokers": [{"node_id": 1, "host": leader.host, "port": leader.port}], "topics": [topic]}

    def list_offsets(self, request: Any) -> dict[str, Any]:
        answers = [
            {"partition_index": wanted.partition_index, "offset": self.end if wanted.timestamp == -1 else 0}
            for wanted in request.topics[0].partitions
        ]
        return {"topics": [{"name": TOPIC, "partitions": answers}]}

    def init_producer_id(self, request: Any) -> dict[str, Any]:
        return {"producer_id": 5, "producer_epoch": 0}

    def produce(self, request: Any) -> dict[str, Any]:
        ((topic, (partition,)),) = [(topic_data.name, topic_data.partition_data) for topic_data in request.topic_data]
        answer = {"index": partition.index}
        header = read_header(partition.records)
        if self.leader is not self:
            answer["error_code"] = ErrorCode.not_leader_or_follower
        elif header.base_sequence != self.next_sequence:
            answer["error_code"] = ErrorCode.out_of_order_sequence_number
        else:
            self.next_sequence += header.record_count
            answer["base_offset"] = self.append(partition.records)
        return {"responses": [{"name": topic, "partition_responses": [answer]}]}

    def fetch(self, request: Any) -> dict[str, Any] | bytes:
        scripted = self.script.popleft() if self.script else {}
        if isinstance(scripted, bytes):
            return scripted
        (topic,) = request.topics
        (wanted,) = topic.partitions
        throttle = scripted.pop("throttle_time", 0)
        data = {
            "partition_index": wanted.partition,
            "high_watermark": self.end,
            "last_stable_offset": self.end,
            "log_start_offset": 0,
            "records": self._records(wanted.fetch_offset, wanted.partition_max_bytes),
        } | scripted
        if data.get("error_code"):
            data["records"] = b""
        name = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"topic": topic.topic}
        return {"throttle_time": throttle, "responses": [name | {"partitions": [data]}]}

    def _records(self, offset: int, most: int) -> bytes:
        following = [(position, header) for position, header in batches(self.log) if header.next_offset > offset]
        if not following:
            return b""
        start, first = following[0]
        return bytes(self.log[start : start + (most if self.tears else max(most, first.size))])
