"""Flink's own network stack as its tasks use it, in a JVM, reading from a broker (java/ReadPartitions.java)."""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.compat.flink.flink_program import FlinkProgram

_SOURCE = Path(__file__).parent / "java" / "ReadPartitions.java"
_MAIN = "org.apache.flink.runtime.io.network.partition.consumer.ReadPartitions"
_RECORD = struct.Struct(">ii")


def record(stream: int, content: bytes) -> bytes:
    """As ReadPartitions reads it; ``stream``: the subpartition, say."""
    return _RECORD.pack(stream, len(content)) + content


class Sum(NamedTuple):
    """Of the records of one stream: how many, and the CRC-32 of their sizes and contents."""

    count: int
    crc: int

    @classmethod
    def of(cls, contents: Iterable[bytes]) -> "Sum":
        count = crc = 0
        for content in contents:
            count += 1
            crc = zlib.crc32(content, zlib.crc32(len(content).to_bytes(4, "big"), crc))
        return cls(count, crc)


class Channel(NamedTuple):
    """What came through one input channel. ``floating``: the most floating buffers it ever had to spare."""

    buffers: int
    bytes: int
    streams: dict[int, Sum]
    events: list[str]
    floating: int
    backlog: int


class Result(NamedTuple):
    """``error``: what the gate threw, and its causes; ``finished``: every EndOfPartition has come."""

    channels: list[Channel]
    finished: bool
    error: list[str]


class Gate:
    """A SingleInputGate with a RemoteInputChannel for each partition (before 2.0: and subpartition)."""

    def __init__(self, reader: "FlinkReader", number: str) -> None:
        self._reader = reader
        self._number = number

    def start(self, most: int = 1 << 40, delay_us: int = 0) -> "Gate":
        """Begin to read, until the end or for ``most`` buffers, with a pause after each; -1: without looking into them."""
        self._reader.ask("read", self._number, str(most), str(delay_us))
        return self

    def result(self) -> Result:
        """When that has ended."""
        answer = self._reader.ask("result", self._number)
        channels = []
        for channel in answer["channels"]:
            streams = {int(stream): Sum(*both) for stream, both in channel.pop("streams").items()}
            channels.append(Channel(streams=streams, **channel))
        return Result(channels, answer["finished"], answer["error"])

    @property
    def buffers(self) -> int:
        """That it has read so far."""
        return int(self._reader.ask("buffers", self._number))

    def read(self) -> Result:
        return self.start().result()

    def announce_buffer_size(self, size: int) -> None:
        self._reader.ask("announce", self._number, str(size))

    def send_task_event(self) -> None:
        """A TerminationEvent."""
        self._reader.ask("event", self._number)

    def close(self) -> None:
        self._reader.ask("close", self._number)


class FlinkReader(FlinkProgram):
    def __init__(self, release: str, options: Sequence[str] = ("-XX:TieredStopAtLevel=1",)) -> None:
        """``options``: of the JVM."""
        super().__init__(release, _SOURCE, _MAIN, options=options)

    def configure(self, settings: Mapping[str, object]) -> None:
        """A new environment, with these of Flink's ``taskmanager.network`` settings."""
        self.ask("environment", *(f"taskmanager.network.{name}={value}" for name, value in settings.items()))

    def gate(self, address: str, *partitions: bytes, first: int = 0, last: int | None = None, kind: str) -> Gate:
        port = address.rsplit(":", 1)[1]
        words = (kind, str(first), str(first if last is None else last), port, *(each.hex() for each in partitions))
        return Gate(self, str(self.ask("gate", *words)))

    @property
    def connections(self) -> int:
        count: int = self.ask("state")["connections"]
        return count

    @property
    def buffers_in_use(self) -> int:
        count: int = self.ask("state")["buffers_in_use"]
        return count

    def ask(self, *words: str) -> Any:
        answer = json.loads(self._ask_line(*words))
        assert "ok" in answer, answer["error"]
        return answer["ok"]
