"""Flink's own encoders and decoders, in a JVM that answers questions (java/FrameTool.java)."""

import base64
from pathlib import Path
from typing import NamedTuple

from tests.compat.flink.flink_program import FlinkProgram

_SOURCE = Path(__file__).parent / "java" / "FrameTool.java"
_MAIN = "org.apache.flink.runtime.io.network.netty.FrameTool"


class FlinkError(Exception):
    """What Flink threw."""


class Received(NamedTuple):
    """A message as Flink understood it: the name of its class, and its fields as text."""

    name: str
    fields: dict[str, str]


class ReadEvent(NamedTuple):
    """An event that Flink has read, and what it wrote of it."""

    name: str
    data_type: str
    serialized: bytes


class FrameTool(FlinkProgram):
    def __init__(self, release: str) -> None:
        super().__init__(release, _SOURCE, _MAIN)

    def received_by_server(self, frames: bytes, piece: int = 1 << 20) -> list[Received]:
        return self._received("from-client", frames, piece)

    def received_by_client(self, frames: bytes, piece: int = 1 << 20) -> list[Received]:
        return self._received("from-server", frames, piece)

    def error(self, kind: str, message: str | None, receiver: bytes | None, partition: bytes = b"") -> bytes:
        """The frame of an ErrorResponse. ``kind``: see FrameTool.throwable."""
        text = "-" if message is None else base64.b64encode(message.encode("utf-16-be")).decode()
        return bytes.fromhex(self._ask("error", kind, text, partition.hex(), (receiver or b"").hex())[0])

    def event(self, serialized: bytes) -> ReadEvent:
        name, data_type, again, _ = self._ask("event", serialized.hex())
        return ReadEvent(name, data_type, bytes.fromhex(again))

    def compress(self, codec: str, data: bytes) -> bytes:
        return bytes.fromhex(self._ask("compress", codec, data.hex())[0])

    def decompress(self, codec: str, data: bytes) -> bytes:
        return bytes.fromhex(self._ask("decompress", codec, data.hex())[0])

    def _received(self, command: str, frames: bytes, piece: int) -> list[Received]:
        received = []
        for described in filter(None, self._ask(command, frames.hex(), str(piece))):
            name, *fields = described.split(" ")
            received.append(Received(name, dict(field.split("=", 1) for field in fields)))
        return received

    def _ask(self, *words: str) -> list[str]:
        outcome, *answer = self._ask_line(*words).split("\t")
        if outcome != "ok":
            raise FlinkError(answer[0], text_of(answer[1]))
        return answer


def text_of(word: str) -> str | None:
    """A text as FrameTool writes it."""
    return None if word == "-" else base64.b64decode(word).decode("utf-16-be", "replace")
