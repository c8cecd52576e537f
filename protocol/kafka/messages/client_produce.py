"""Produce as a client speaks it, versions 3 to 12: the request as parts to send one after the other, batches among them as
they are. Its answer is read by ``produce.parse_response``, which passes over what versions after 9 have added in tags.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import request_header
from protocol.wire import BytesLike, Writer

MIN_VERSION, MAX_VERSION = 3, 12

_FLEXIBLE = 9


def request_parts(
    correlation_id: int,
    client_id: str | None,
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, BytesLike]],
) -> list[BytesLike]:
    """``batches``: (topic, partition, one record batch), each partition at most once. The first part has the frame's length."""
    topics: dict[str, list[tuple[int, BytesLike]]] = {}
    for topic, partition, records in batches:
        topics.setdefault(topic, []).append((partition, records))
    flexible = version >= _FLEXIBLE
    out = Writer()
    out.raw(request_header(ApiKey.PRODUCE, version, correlation_id, client_id))
    if flexible:
        out.compact_nullable_string(transactional_id)
    else:
        out.nullable_string(transactional_id)
    out.i16(acks)
    out.i32(timeout_ms)
    out.any_array(len(topics), flexible)
    parts: list[BytesLike] = []
    size = 0
    for topic, partitions in topics.items():
        if flexible:
            out.compact_string(topic)
        else:
            out.string(topic)
        out.any_array(len(partitions), flexible)
        for partition, records in partitions:
            out.i32(partition)
            if flexible:
                out.uvarint(len(records) + 1)
            else:
                out.i32(len(records))
            size += len(out.data) + len(records)
            parts += (out.getvalue(), records)
            out = Writer()
            if flexible:
                out.no_tags()
        if flexible:
            out.no_tags()
    if flexible:
        out.no_tags()
    if out.data:
        size += len(out.data)
        parts.append(out.getvalue())
    parts[0] = size.to_bytes(4, "big") + bytes(parts[0])
    return parts
