"""Every message that no hot path uses: requests to values, mappings to responses, by Kafka's schemas.

Requests are read into kio's dataclasses (fields as in ``kio.schema.<api>.v<version>.request``; durations are timedeltas, see
``milliseconds``). Responses are written from nested mappings of kio's field names, so that one mapping serves all versions: a
field missing in a version is left out, and a missing key gets the schema's default. A kio module is imported when its version of
an API is first used. Any thread.

Tests: tests/protocol/kafka/schema/test_control.py, tests/protocol/kafka/schema/test_budget.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

from protocol.errors import ProtocolError
from protocol.frames import LENGTH
from protocol.kafka.api_keys import response_header_version
from protocol.kafka.messages.headers import request_header, response_header
from protocol.kafka.schema.schema_reader import Message, Read, field_specs, milliseconds, reader_of
from protocol.kafka.schema.schema_writer import Counted, Write, output, writer_of
from protocol.wire import UNLIMITED, BytesLike, Reader

__all__ = [
    "Counted",
    "encode_request",
    "encode_response",
    "milliseconds",
    "parse_request",
    "parse_response",
    "request_classes",
    "response_class",
]


def parse_request(api_key: int, version: int, body: BytesLike, max_entries: int = UNLIMITED) -> Any:
    """The request in ``body``, which begins after the header. Bytes after its end are ignored, as in Kafka.

    ``max_entries``: the limit of array elements, over all arrays. Raises ProtocolError, also for a version that
    Kafka does not have, or TooManyEntries for more elements.
    """
    return _request_reader(api_key, version)(Reader(body, 0, max_entries))


def encode_response(
    api_key: int,
    version: int,
    correlation_id: int,
    fields: Mapping[str, Any],
    max_bytes: int = UNLIMITED,
    on_errors: Callable[[Mapping[int, int]], object] | None = None,
) -> bytes | bytearray:
    """A whole response frame. Raises MessageTooLarge soon after it has grown longer than ``max_bytes``.

    ``on_errors`` gets the number of errors by error code, if there are any.

    ``fields`` may use the names of any version; a name that no version has raises KeyError, because the caller is wrong.
    Durations are timedeltas or ints (ms), times are datetimes or ints (ms since 1970), error codes are any ints. An array is
    a collection, or a ``Counted``, whose elements are created one by one while the response is written.
    """
    header = response_header(correlation_id, response_header_version(api_key, version))
    return _frame(header, _response_writer(api_key, version), fields, max_bytes, on_errors)


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, fields: Mapping[str, Any]
) -> bytes:
    """A whole request frame, from the same kind of mapping as ``encode_response``."""
    header = request_header(api_key, version, correlation_id, client_id)
    return bytes(_frame(header, _request_writer(api_key, version), fields, UNLIMITED))


def parse_response(api_key: int, version: int, frame: BytesLike) -> tuple[int, Any]:
    """The correlation id and kio dataclass in a whole response frame, length prefix included. Raises ProtocolError."""
    reader = Reader(frame, 4)
    correlation_id = reader.i32()
    if response_header_version(api_key, version):
        reader.skip_tags()
    return correlation_id, _response_reader(api_key, version)(reader)


# A frame longer than this (bytes) stays a bytearray: a copy to make it immutable would cost too much.
_COPY_MAX_BYTES = 64 * 1024


def _frame(
    header: bytes,
    write: Write,
    fields: Mapping[str, Any],
    max_bytes: int,
    on_errors: Callable[[Mapping[int, int]], object] | None = None,
) -> bytes | bytearray:
    out = output(max_bytes)
    out += b"\0\0\0\0"
    out += header
    write(out, fields)
    if out.errors is not None and on_errors is not None:
        on_errors(out.errors)
    LENGTH.pack_into(out, 0, len(out) - 4)
    return bytes(out) if len(out) <= _COPY_MAX_BYTES else out


# Each of the four caches by (API key, version). If two threads compile the same function at once, one result is discarded, which
# costs only a little time.


@cache
def _request_reader(api_key: int, version: int) -> Read:
    return _reader(_request_class, api_key, version)


@cache
def _response_reader(api_key: int, version: int) -> Read:
    return _reader(response_class, api_key, version)


@cache
def _request_writer(api_key: int, version: int) -> Write:
    return _writer(_request_class, api_key, version)


@cache
def _response_writer(api_key: int, version: int) -> Write:
    return _writer(response_class, api_key, version)


LoadClass = Callable[[int, int], Message]


def _reader(load: LoadClass, api_key: int, version: int) -> Read:
    try:
        return reader_of(load(api_key, version))
    except LookupError:
        raise ProtocolError(f"API {api_key} has no version {version}") from None


def _writer(load: LoadClass, api_key: int, version: int) -> Write:
    def unknown(path: tuple[str, ...], keys: Collection[str]) -> None:
        for key in keys:
            if not _some_version_has(load, api_key, (*path, key)):
                raise KeyError(f"no version of API {api_key} has the field {'.'.join((*path, key))}")

    return writer_of(load(api_key, version), unknown)


def _some_version_has(load: LoadClass, api_key: int, path: tuple[str, ...]) -> bool:
    # Newest first: callers write for the newest version, so older modules are rarely imported for this check.
    return any(_has(load(api_key, version), path) for version in sorted(_versions(api_key), reverse=True))


def _has(cls: Message, path: tuple[str, ...]) -> bool:
    for spec in field_specs(cls):
        if spec.name == path[0]:
            return len(path) == 1 or (spec.entity is not None and _has(spec.entity, path[1:]))
    return False


def _versions(api_key: int) -> Collection[int]:
    from kio.schema.index import api_key_map, schema_name_map

    return schema_name_map[api_key_map[api_key]].keys()


def _request_class(api_key: int, version: int) -> Message:
    from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema

    try:
        return load_request_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity):
        raise LookupError(f"API {api_key} has no version {version}") from None


def request_classes(api_key: int) -> Iterator[Message]:
    """kio's dataclasses of all versions of a request."""
    for version in sorted(_versions(api_key)):
        yield _request_class(api_key, version)


def response_class(api_key: int, version: int) -> Message:
    """kio's dataclass of a response. Raises LookupError for a version that Kafka does not have."""
    from kio.index import UnknownAPIKey, UnknownEntity, load_response_schema

    try:
        return load_response_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity):
        raise LookupError(f"API {api_key} has no version {version}") from None
