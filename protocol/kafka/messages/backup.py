"""Backup, version 0: pin the files of a backup, keep them pinned, release them.

This project's own API: `broker backup` uses it to pin files, which it then copies by itself on the broker's machine. It is
encoded like Kafka's APIs (flexible encoding, KIP-482), under a key far from theirs. The feature ``FEATURE`` in ApiVersions
tells clients that a broker serves it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.frames import LENGTH
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import request_header, response_header
from protocol.wire import BytesLike, Reader, Writer

MIN_VERSION, MAX_VERSION = 0, 0

# The supported feature in ApiVersions (from version 3 on), and its level, which stands for version 0 of this API.
FEATURE, FEATURE_LEVEL = "reactor.backup", 1


class Action(IntEnum):
    BEGIN = 0
    RENEW = 1  # the client is still copying
    END = 2


class BackupRequest(NamedTuple):
    """``backup_id`` is empty in BEGIN."""

    action: Action
    backup_id: str


class BackupResponse(NamedTuple):
    """``message`` explains an error. The answer to BEGIN has the backup's id and the directory of its files."""

    throttle_ms: int = 0
    error: int = 0
    message: str = ""
    backup_id: str = ""
    directory: str = ""


def parse_request(body: BytesLike) -> BackupRequest:
    """The request in ``body``, which begins after the header. Raises ProtocolError."""
    reader = Reader(body)
    number, backup_id = reader.i8(), reader.compact_string()
    reader.skip_tags()
    try:
        return BackupRequest(Action(number), backup_id)
    except ValueError:
        raise ProtocolError(f"a backup has no action {number}") from None


def request(correlation_id: int, client_id: str | None, action: int, backup_id: str = "") -> bytes:
    """A whole request frame."""
    out = Writer(bytearray(4))
    out.raw(request_header(ApiKey.BACKUP, 0, correlation_id, client_id))
    out.i8(action)
    out.compact_string(backup_id)
    out.no_tags()
    return _framed(out)


def response(correlation_id: int, answer: BackupResponse) -> bytes:
    """A whole response frame."""
    out = Writer(bytearray(4))
    out.raw(response_header(correlation_id, 1))
    out.i32(answer.throttle_ms)
    out.i16(answer.error)
    out.compact_string(answer.message)
    out.compact_string(answer.backup_id)
    out.compact_string(answer.directory)
    out.no_tags()
    return _framed(out)


def parse_response(frame: BytesLike) -> tuple[int, BackupResponse]:
    """The correlation id and the response in a whole frame, its length included. Raises ProtocolError."""
    if len(frame) < LENGTH.size:
        raise ProtocolError(f"a response of {len(frame)} bytes has no length")
    reader = Reader(frame, LENGTH.size)
    correlation_id = reader.i32()
    reader.skip_tags()
    answer = BackupResponse(
        reader.i32(), reader.i16(), reader.compact_string(), reader.compact_string(), reader.compact_string()
    )
    reader.skip_tags()
    return correlation_id, answer


def _framed(out: Writer) -> bytes:
    LENGTH.pack_into(out.data, 0, len(out.data) - LENGTH.size)
    return out.getvalue()
