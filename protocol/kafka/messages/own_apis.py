"""EndTxns, version 0: commit or abort the transactions of several producers by one decision.

This project's own API: it makes a micro-batch of many producers visible as a whole or not at all. It is encoded like Kafka's APIs
(flexible encoding, KIP-482), under a key far from theirs. The feature ``FEATURE`` in ApiVersions tells clients that a broker
serves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.frames import LENGTH
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import request_header, response_header
from protocol.wire import UNLIMITED, BytesLike, Reader, Writer

MIN_VERSION, MAX_VERSION = 0, 0

# The supported feature in ApiVersions (from version 3 on), and its level, which stands for version 0 of EndTxns.
FEATURE, FEATURE_LEVEL = "reactor.end_txns", 1

# The fewest bytes of a member: transactional id, producer id, epoch, tags.
_MEMBER_SMALLEST = 1 + 8 + 2 + 1


class Member(NamedTuple):
    """One producer's transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class EndTxnsRequest(NamedTuple):
    members: Sequence[Member]
    committed: bool


class EndTxnsResponse(NamedTuple):
    """``error_index``: the index in the request of the transaction that failed, or -1 for none or all."""

    throttle_ms: int
    error: int
    error_index: int


def parse_request(body: BytesLike, max_entries: int = UNLIMITED) -> EndTxnsRequest:
    """The request in ``body``, which begins after the header.

    ``max_entries``: the limit of transactions. Raises ProtocolError, or TooManyEntries for more.
    """
    reader = Reader(body, 0, max_entries)
    members = []
    for _ in range(reader.compact_array(_MEMBER_SMALLEST)):
        members.append(Member(reader.compact_string(), reader.i64(), reader.i16()))
        reader.skip_tags()
    committed = reader.bool()
    reader.skip_tags()
    return EndTxnsRequest(members, committed)


def request(correlation_id: int, client_id: str | None, members: Iterable[Member], committed: bool) -> bytes:
    """A whole request frame."""
    listed = list(members)
    out = Writer(bytearray(4))
    out.raw(request_header(ApiKey.END_TXNS, 0, correlation_id, client_id))
    out.compact_array(len(listed))
    for member in listed:
        out.compact_string(member.transactional_id)
        out.i64(member.producer_id)
        out.i16(member.producer_epoch)
        out.no_tags()
    out.bool(committed)
    out.no_tags()
    return _framed(out)


def response(correlation_id: int, error: int, error_index: int = -1, throttle_ms: int = 0) -> bytes:
    """A whole response frame."""
    out = Writer(bytearray(4))
    out.raw(response_header(correlation_id, 1))
    out.i32(throttle_ms)
    out.i16(error)
    out.i32(error_index)
    out.no_tags()
    return _framed(out)


def parse_response(frame: BytesLike) -> tuple[int, EndTxnsResponse]:
    """The correlation id and the response in a whole frame, its length included. Raises ProtocolError."""
    if len(frame) < LENGTH.size:
        raise ProtocolError(f"a response of {len(frame)} bytes has no length")
    reader = Reader(frame, LENGTH.size)
    correlation_id = reader.i32()
    reader.skip_tags()
    answer = EndTxnsResponse(reader.i32(), reader.i16(), reader.i32())
    reader.skip_tags()
    return correlation_id, answer


def _framed(out: Writer) -> bytes:
    LENGTH.pack_into(out.data, 0, len(out.data) - LENGTH.size)
    return out.getvalue()
