"""Flink's own encoders and decoders, in a JVM that answers questions (java/FrameTool.java)."""

import base64
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.compat.flink.jars import classpath

_SOURCE = Path(__file__).parent / "java" / "FrameTool.java"
_MAIN = "org.apache.flink.runtime.io.network.netty.FrameTool"
_STOP_S = 10.0


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


class FrameTool:
    def __init__(self, release: str) -> None:
        self.release = release
        command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", classpath(release, _SOURCE), _MAIN]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
        )

    def __enter__(self) -> "FrameTool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_STOP_S)

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
        found = []
        for described in filter(None, self._ask(command, frames.hex(), str(piece))):
            name, *fields = described.split(" ")
            found.append(Received(name, dict(field.split("=", 1) for field in fields)))
        return found

    def _ask(self, *words: str) -> list[str]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\t".join(words) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, "the JVM has ended"
        outcome, *answer = line.rstrip("\n").split("\t")
        if outcome != "ok":
            raise FlinkError(answer[0], text_of(answer[1]))
        return answer


def text_of(word: str) -> str | None:
    """A text as FrameTool writes it."""
    return None if word == "-" else base64.b64decode(word).decode("utf-16-be", "replace")
