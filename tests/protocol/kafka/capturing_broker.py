"""A broker made of the codecs alone: it answers a producer so that it sends batches, which it keeps.

Blocking, one connection at a time per thread: enough for a client to send what it would send to Kafka.
"""

import contextlib
import socket
from typing import Self

from protocol.frames import split_frames
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import api_versions, metadata, produce
from protocol.kafka.messages.headers import parse_request_header
from tests.client.gate import Gate

# librdkafka infers lz4 support from FindCoordinator (10), and zstd support from Fetch 10.
RANGES = {0: (0, 9), 1: (4, 12), 3: (0, 9), 10: (0, 4), 18: (0, 4)}


class CapturingBroker(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[bytes] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def serve(self, client: socket.socket) -> None:
        waiting = b""
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                waiting += data
                frames, used = split_frames(waiting)
                for frame in frames:
                    client.sendall(self._answer(frame))
                waiting = waiting[used:]

    def _answer(self, frame: memoryview) -> bytes:
        header = parse_request_header(frame)
        key, version, number = header.api_key, header.api_version, header.correlation_id
        if key == ApiKey.API_VERSIONS:
            return api_versions.response(number, version, 0, RANGES)
        if key == ApiKey.METADATA:
            brokers = [metadata.BrokerInfo(1, "127.0.0.1", self.port)]
            names = metadata.parse_request(frame, version, header.body_offset).topics or []
            partition = metadata.PartitionMetadata(0, 0, 1, 0, [1], [1])
            topics = [metadata.TopicMetadata(0, name, False, [partition]) for name in names]
            return metadata.response(number, version, brokers, "cluster", 1, topics)
        assert key == ApiKey.PRODUCE
        results = []
        for topic, partition_index, records in produce.parse_request(frame, version, header.body_offset).topics:
            assert records is not None
            self.batches.append(bytes(records))
            results.append(produce.PartitionResult(topic, partition_index, 0, 0))
        return produce.response(number, version, results)
