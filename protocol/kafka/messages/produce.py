"""Produce, both sides, by hand. The broker serves versions 3 to 13, the client of this project speaks 3 to 12.

From version 13 on the topic's id stands in place of its name. Versions 10 to 12 look like 9, but for tagged fields that lead to
another leader (``leaders.py``).

The broker's side (``parse_request``, ``response``) reads the request in one pass and leaves the records where they lie in the
frame. Nearly every request of a Kafka client carries one partition of one topic: a few struct calls read that case, and one
template answers it. Every other request takes the general way, which gives the same result.

Most requests differ from an earlier one of the same client only in their records: a producer's requests for one partition have
the same bytes for API, version, client id, acks, timeout, topic and partition. ``Templates.learn`` parses one of them as a whole.
``Templates.follow`` finds the same bytes in the next ones, several at once, and needs to look only at lengths and correlation
ids. A template is of a request with one partition, acks 1 or all, no transactional id, and names of usual lengths; what it does
not recognise is left to ``parse_request``.

The client's side (``request_parts``, ``parse_response``) gives the request as parts to send one after the other, with the
batches among them as they are. Its reader skips the tagged fields that versions after 9 have added to the response.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import parse_request_header, request_header
from protocol.kafka.messages.leaders import Hints, endpoints_tag, leader_tag
from protocol.kafka.runs import Followed, Known, Layout, follow_in_c
from protocol.wire import UNLIMITED, BytesLike, Reader, Writer

MIN_VERSION, MAX_VERSION = 3, 13
CLIENT_MIN_VERSION, CLIENT_MAX_VERSION = 3, 12

FIRST_WITH_LEADERS = 10  # from this version on a response may lead to other leaders
FIRST_WITH_TOPIC_ID = 13  # from this version on a topic's id stands in place of its name

_FLEXIBLE = 9
_new = tuple.__new__  # skips the generated __new__: 0.15 us of 2 us


class ProduceRequest(NamedTuple):
    """``topics`` is flat: (topic, partition, records). Records are a view into the request, or None for null.

    A topic is given by its name, or from version 13 on by the 16 bytes of its id.
    """

    acks: int
    timeout_ms: int
    transactional_id: str | None
    topics: list[tuple[str | bytes, int, memoryview | None]]


class PartitionResult(NamedTuple):
    """The result for one partition's records. ``record_errors`` are (index in the batch, message), sent from v8 on.

    ``topic`` is as in the request: the name, or from version 13 on the 16 bytes of the id.
    """

    topic: str | bytes
    partition: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()


# -- request ----------------------------------------------------------------------------------------------------

# v3-v8 up to the topic's name: transactional id (null), acks, timeout, number of topics, length of the name.
_HEAD = struct.Struct(">hhiih")
# ... and after it: number of partitions, partition, length of the records.
_PARTITION = struct.Struct(">iii")
# The same for v9, where one byte holds each length as long as it is below 127.
_HEAD_9 = struct.Struct(">BhiBB")
_PARTITION_9 = struct.Struct(">Bi")
_HEAD_13 = struct.Struct(">BhiB16s")  # with the topic's id in place of its name


def parse_request(view: memoryview, version: int, pos: int = 0, max_entries: int = UNLIMITED) -> ProduceRequest:
    """The request that begins at ``pos`` in ``view``. Bytes after its end are ignored.

    ``max_entries``: the most topics and partitions, together, that it may have. Raises ProtocolError, or TooManyEntries for
    more.
    """
    try:
        if version < _FLEXIBLE:
            transactional_id, acks, timeout_ms, topics, size = _HEAD.unpack_from(view, pos)
            if transactional_id == -1 and topics == 1 and size >= 0:
                name = pos + 14
                end = name + size
                partitions, partition, size = _PARTITION.unpack_from(view, end)
                start = end + 12
                if partitions == 1 and 0 <= size <= len(view) - start:
                    topic = (str(view[name:end], "utf-8"), partition, view[start : start + size])
                    return _new(ProduceRequest, (acks, timeout_ms, None, [topic]))
        else:
            topic_id = None
            if version < FIRST_WITH_TOPIC_ID:
                transactional_id, acks, timeout_ms, topics, size = _HEAD_9.unpack_from(view, pos)
                end = pos + 8 + size
            else:
                transactional_id, acks, timeout_ms, topics, topic_id = _HEAD_13.unpack_from(view, pos)
                size, end = 1, pos + _HEAD_13.size
            if transactional_id == 0 and topics == 2 and 0 < size < 128:
                partitions, partition = _PARTITION_9.unpack_from(view, end)
                start = end + 6
                size = view[end + 5]
                if size > 127:
                    size += (view[start] << 7) - 128
                    start += 1
                    if size > 16383:
                        size += (view[start] << 14) - 16384
                        start += 1
                after = start + size - 1
                # Three tag sections end the partition, the topic and the request, in nearly every case empty.
                if partitions == 2 and 0 < size < 2097152 and bytes(view[after : after + 3]) == b"\0\0\0":
                    topic = (
                        str(view[pos + 9 : end], "utf-8") if topic_id is None else topic_id,
                        partition,
                        view[start:after],
                    )
                    return _new(ProduceRequest, (acks, timeout_ms, None, [topic]))
    except (struct.error, IndexError, UnicodeDecodeError):
        pass  # the general way raises the error
    return _parse_any(Reader(view, pos, max_entries), version)


def _parse_any(reader: Reader, version: int) -> ProduceRequest:
    flexible = version >= _FLEXIBLE
    transactional_id = reader.compact_nullable_string() if flexible else reader.nullable_string()
    acks = reader.i16()
    timeout_ms = reader.i32()
    topics: list[tuple[str | bytes, int, memoryview | None]] = []
    topic: str | bytes
    for _ in range(reader.compact_array(3) if flexible else reader.array(6)):
        if version >= FIRST_WITH_TOPIC_ID:
            topic = bytes(reader.take(16, "a topic id"))
        else:
            topic = reader.compact_string() if flexible else reader.string()
        for _ in range(reader.compact_array(6) if flexible else reader.array(8)):
            partition = reader.i32()
            records = reader.compact_nullable_bytes() if flexible else reader.nullable_bytes()
            if flexible:
                reader.skip_tags()
            topics.append((topic, partition, records))
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return ProduceRequest(acks, timeout_ms, transactional_id, topics)


# -- response ---------------------------------------------------------------------------------------------------

# Frame length, correlation id, one topic, length of its name; in v9 also the header's tags.
_PREFIX = struct.Struct(">iiih")
_PREFIX_9 = struct.Struct(">iiBBB")
_PREFIX_13 = struct.Struct(">iiBB16s")  # with the topic's id in place of its name
# One partition: count, index, error, base offset, append time, (v5) log start offset, (v8) no record errors and no
# message; then the throttle time. v9 has three tag sections between these.
_SUFFIX_3 = struct.Struct(">iihqqi")
_SUFFIX_5 = struct.Struct(">iihqqqi")
_SUFFIX_8 = struct.Struct(">iihqqqihi")
_SUFFIX_9 = struct.Struct(">BihqqqBBBBiB")
# The length that a frame states, but for the name.
_LENGTH_3 = _PREFIX.size + _SUFFIX_3.size - 4
_LENGTH_5 = _PREFIX.size + _SUFFIX_5.size - 4
_LENGTH_8 = _PREFIX.size + _SUFFIX_8.size - 4
_LENGTH_9 = _PREFIX_9.size + _SUFFIX_9.size - 4
_LENGTH_13 = _PREFIX_13.size + _SUFFIX_9.size - 4


def response(
    correlation_id: int,
    version: int,
    results: Sequence[PartitionResult],
    throttle_ms: int = 0,
    hints: Hints | None = None,
) -> bytes:
    """The whole response frame. Partitions of one topic are grouped, in the order of ``results``. ``hints``: from
    ``FIRST_WITH_LEADERS`` on."""
    if len(results) == 1 and hints is None:
        topic, partition, error, base_offset, append_time, start_offset, message, record_errors = results[0]
        if message is None and not record_errors:
            if isinstance(topic, bytes):
                return _PREFIX_13.pack(_LENGTH_13, correlation_id, 0, 2, topic) + _SUFFIX_9.pack(
                    2, partition, error, base_offset, append_time, start_offset, 1, 0, 0, 0, throttle_ms, 0
                )
            name = topic.encode()
            size = len(name)
            if version < 5:
                return (
                    _PREFIX.pack(size + _LENGTH_3, correlation_id, 1, size)
                    + name
                    + _SUFFIX_3.pack(1, partition, error, base_offset, append_time, throttle_ms)
                )
            if version < 8:
                return (
                    _PREFIX.pack(size + _LENGTH_5, correlation_id, 1, size)
                    + name
                    + _SUFFIX_5.pack(1, partition, error, base_offset, append_time, start_offset, throttle_ms)
                )
            if version < _FLEXIBLE:
                return (
                    _PREFIX.pack(size + _LENGTH_8, correlation_id, 1, size)
                    + name
                    + _SUFFIX_8.pack(1, partition, error, base_offset, append_time, start_offset, 0, -1, throttle_ms)
                )
            if size < 127:
                return (
                    _PREFIX_9.pack(size + _LENGTH_9, correlation_id, 0, 2, size + 1)
                    + name
                    + _SUFFIX_9.pack(
                        2, partition, error, base_offset, append_time, start_offset, 1, 0, 0, 0, throttle_ms, 0
                    )
                )
    return _response_any(correlation_id, version, results, throttle_ms, hints)


def _response_any(
    correlation_id: int, version: int, results: Sequence[PartitionResult], throttle_ms: int, hints: Hints | None
) -> bytes:
    topics: dict[str | bytes, list[PartitionResult]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    flexible = version >= _FLEXIBLE
    out = Writer(bytearray(4))
    out.i32(correlation_id)
    if flexible:
        out.no_tags()
        out.compact_array(len(topics))
    else:
        out.array(len(topics))
    for topic, partitions in topics.items():
        if isinstance(topic, bytes):
            out.raw(topic)
        elif flexible:
            out.compact_string(topic)
        else:
            out.string(topic)
        out.any_array(len(partitions), flexible)
        for result in partitions:
            leader = None if hints is None else hints.leaders.get((topic, result.partition))
            _write_partition(out, version, result, b"\0" if leader is None else leader_tag(0, leader))
        if flexible:
            out.no_tags()
    out.i32(throttle_ms)
    if flexible:
        out.data += b"\0" if hints is None else endpoints_tag(0, hints.endpoints)
    out.data[:4] = (len(out.data) - 4).to_bytes(4, "big")
    return out.getvalue()


def _write_partition(out: Writer, version: int, result: PartitionResult, tags: bytes) -> None:
    out.i32(result.partition)
    out.i16(result.error)
    out.i64(result.base_offset)
    out.i64(result.log_append_time_ms)
    if version >= 5:
        out.i64(result.log_start_offset)
    if version >= _FLEXIBLE:
        out.compact_array(len(result.record_errors))
        for index, message in result.record_errors:
            out.i32(index)
            out.compact_nullable_string(message)
            out.no_tags()
        out.compact_nullable_string(result.error_message)
        out.data += tags
    elif version == 8:
        out.array(len(result.record_errors))
        for index, message in result.record_errors:
            out.i32(index)
            out.nullable_string(message)
        out.nullable_string(result.error_message)


# -- requests that are like earlier ones ------------------------------------------------------------------------

_KIND = struct.Struct(">i").unpack_from  # API key and version as one number
_CLIENT_ID = 12  # where it begins in the frame, with its length
FIRST_IN_RUNS = 7  # the first version whose batches may have any codec
# From the beginning of the body to the topic's name, and from its end to the length of the records.
_BEFORE_NAME, _AFTER_NAME = 14, 8
_BEFORE_NAME_9, _AFTER_NAME_9 = 9, 5
_BEFORE_ID = 8
# Numbers by which a response's fields are found in its bytes. No topic has such a name, and no partition such a number.
_CORRELATION, _BASE, _START = 0x7FE1E2E3, 0x7FE1E2E3E4E5E6E7, 0x7FF1F2F3F4F5F6F7
_LONGEST_NAME_9 = 126  # a longer one has a length of two bytes
# Templates are kept, so a client cannot make them as long as it likes. A topic's name has 249 bytes at most.
_LONGEST_MIDDLE = 512


class Template:
    """``kind``: API key and version. ``middle``: the frame's bytes from the client id to the length of the records."""

    __slots__ = (
        "_answer",
        "acks",
        "client_id",
        "kind",
        "layout",
        "middle",
        "partition",
        "timeout_ms",
        "topic",
        "version",
    )

    def __init__(
        self,
        middle: bytes,
        kind: int,
        version: int,
        client_id: str | None,
        acks: int,
        timeout_ms: int,
        topic: str | bytes,
        partition: int,
    ) -> None:
        """``topic``: from version 13 on, its id."""
        self.middle = middle
        self.kind = kind
        self.version = version
        self.client_id = client_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topic = topic
        self.partition = partition
        self.layout = _layout(len(middle), version >= _FLEXIBLE)
        self._answer: tuple[Callable[..., bytes], list[bytes]] | None = None

    def answers(self, correlation_ids: Sequence[int], base_offsets: Sequence[int], start_offset: int) -> list[bytes]:
        """The responses to the first requests, as many as have a base offset. They differ in three numbers."""
        if self._answer is None:
            self._answer = _answer_of(self)
        pack, (first, second, third, fourth) = self._answer
        return [
            pack(first, correlation_ids[number], second, base_offset, third, start_offset, fourth)
            for number, base_offset in enumerate(base_offsets)
        ]


class Run(NamedTuple):
    """Requests that were followed: of each its template, correlation id and records. They end at ``end``."""

    templates: list[Template]
    correlation_ids: list[int]
    records: list[memoryview]
    end: int
    is_uniform: bool  # all have the same template


@lru_cache(256)  # a client has one for each of its templates: shared, they take a third of the memory
def _layout(middle_size: int, is_flexible: bool) -> Layout:
    layout = struct.Struct(f">iii{middle_size}s{'BBB' if is_flexible else 'i'}")
    return Layout(layout.unpack_from, layout.size)


@lru_cache(256)  # as above
def _packer(first: int, second: int, third: int, fourth: int) -> Callable[..., bytes]:
    """What packs a response out of four parts of these sizes and the three numbers between them."""
    return struct.Struct(f">{first}si{second}sq{third}sq{fourth}s").pack


def _answer_of(template: Template) -> tuple[Callable[..., bytes], list[bytes]]:
    """What packs a response out of four constant parts and the three numbers between them."""
    result = PartitionResult(template.topic, template.partition, 0, _BASE, -1, _START, None)
    rest = response(_CORRELATION, template.version, [result], 0)
    parts: list[bytes] = []
    for mark, size in ((_CORRELATION, 4), (_BASE, 8), (_START, 8)):
        before, found, rest = rest.partition(mark.to_bytes(size, "big"))
        assert found
        parts.append(before)
    parts.append(rest)
    return _packer(*map(len, parts)), parts


_NO_TAGS = b"\0\0\0"  # they end the partition, the topic and the request


def follow_python(
    by_middle: Mapping[bytes, Known],
    layouts: Mapping[int, Layout],
    tells_layout: int,
    is_flexible: bool,
    data: memoryview,
    most: int,
    most_bytes: int,
) -> Followed | None:
    """The whole requests at the beginning of ``data`` that have templates, and the same kind and settings as the first. At most
    ``most`` requests and ``most_bytes``. None: the first one has no template, or is not whole.

    ``by_middle``: by the bytes of a frame from the client id to the length of the records. ``layouts``: by the byte at
    ``tells_layout`` in a frame. ``is_flexible``: the requests have Kafka's compact lengths, and tags.
    """
    templates: list[Any] = []
    correlation_ids: list[int] = []
    records: list[memoryview] = []
    position, limit = 0, min(len(data), most_bytes)
    middle, known, is_uniform = b"", None, True
    first_kind, settings = 0, (0, 0)
    while position + tells_layout < limit and len(templates) < most:
        layout = layouts.get(data[position + tells_layout])
        if layout is None:
            break
        unpack, size = layout
        start = position + size
        if start > limit:
            break
        if is_flexible:
            length, kind, correlation_id, its_middle, count, second, third = unpack(data, position)
        else:
            length, kind, correlation_id, its_middle, count = unpack(data, position)
        if known is None or its_middle != middle:
            middle, known = its_middle, by_middle.get(its_middle)
            if known is None:
                break
            template, its_kind, its_settings = known
            if not templates:
                first_kind, settings = its_kind, its_settings
            elif its_kind != first_kind or its_settings != settings:
                break
            else:
                is_uniform = False
        end = position + 4 + length
        if kind != first_kind or end > limit:
            break
        after = end
        if is_flexible:
            after -= 3
            if count < 128:
                start -= 2
            elif second < 128:
                count += (second << 7) - 128
                start -= 1
            elif third < 128:
                count += (second << 7) + (third << 14) - 16512
            else:
                break
            count -= 1
            if data[after:end] != _NO_TAGS:
                break
        if count <= 0 or start + count != after:
            break
        templates.append(template)
        correlation_ids.append(correlation_id)
        records.append(data[start:after])
        position = end
    return (templates, correlation_ids, records, position, is_uniform) if templates else None


follow = follow_python if follow_in_c is None else follow_in_c


class Templates:
    """The templates of one client, whose requests have the same client id, and versions that are alike."""

    __slots__ = ("_by_middle", "_client_id", "_is_flexible", "_layouts", "_tells_layout")

    def __init__(self) -> None:
        self._by_middle: dict[bytes, Known] = {}
        # By the byte of the frame that tells them apart: the length of the topic's name, where requests have names.
        self._layouts: dict[int, Layout] = {}
        self._tells_layout = 0  # the position of that byte
        self._is_flexible = False
        self._client_id: str | None = None

    def __len__(self) -> int:
        return len(self._by_middle)

    def clear(self) -> None:
        self._by_middle.clear()
        self._layouts.clear()

    def learn(self, frame: memoryview) -> bool:
        """Add the template of the request that is ``frame``. False: it has none."""
        try:
            key, version, _, client_id, body = parse_request_header(frame)
            if key != ApiKey.PRODUCE or not FIRST_IN_RUNS <= version <= MAX_VERSION:
                return False
            parsed = parse_request(frame, version, body, 2)
        except ProtocolError:
            return False
        if parsed.transactional_id is not None or len(parsed.topics) != 1 or parsed.acks not in (1, -1):
            return False
        topic, partition, records = parsed.topics[0]
        name = len(topic.encode() if isinstance(topic, str) else topic)
        if not records or (version >= _FLEXIBLE and name > _LONGEST_NAME_9):
            return False
        if version < _FLEXIBLE:
            before, after = _BEFORE_NAME, _AFTER_NAME
        else:
            before, after = _BEFORE_NAME_9 if version < FIRST_WITH_TOPIC_ID else _BEFORE_ID, _AFTER_NAME_9
        middle = bytes(frame[_CLIENT_ID : body + before + name + after])
        if len(middle) > _LONGEST_MIDDLE:
            return False
        fields = (version, client_id, parsed.acks, parsed.timeout_ms, topic, partition)
        template = Template(middle, _KIND(frame, 4)[0], *fields)
        self._add(template, body + before - 1)
        run = self.follow(frame, 1, len(frame))
        # Both end where the frame does, so it suffices to compare the lengths.
        if run is not None and run.end == len(frame) and len(run.records[0]) == len(records):
            return True
        del self._by_middle[middle]
        return False

    def _add(self, template: Template, tells_layout: int) -> None:
        """``tells_layout``: where the byte before the topic is."""
        is_flexible, client_id = template.version >= _FLEXIBLE, template.client_id
        if (tells_layout, is_flexible, client_id) != (self._tells_layout, self._is_flexible, self._client_id):
            self.clear()  # the client has changed its id, or its version
            self._tells_layout, self._is_flexible, self._client_id = tells_layout, is_flexible, client_id
        self._by_middle[template.middle] = Known(template, template.kind, (template.acks, template.timeout_ms))
        self._layouts[template.middle[tells_layout - _CLIENT_ID]] = template.layout

    def follow(self, data: memoryview, most: int, most_bytes: int) -> Run | None:
        """The whole requests at the beginning of ``data`` that have templates, and the same version, acks and timeout as the
        first. At most ``most`` requests and ``most_bytes``. None: the first one has no template, or is not whole."""
        followed = follow(self._by_middle, self._layouts, self._tells_layout, self._is_flexible, data, most, most_bytes)
        return None if followed is None else _new(Run, followed)


# -- the client's side ------------------------------------------------------------------------------------------


def request_parts(
    correlation_id: int,
    client_id: str | None,
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, BytesLike]],
) -> list[BytesLike]:
    """``batches``: (topic, partition, one record batch), each partition at most once. The first part begins with the frame's
    length."""
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


def parse_response(frame: memoryview, version: int) -> tuple[int, list[PartitionResult]]:
    """The correlation id and the results in a whole response frame, its length included. Raises ProtocolError."""
    flexible = version >= _FLEXIBLE
    reader = Reader(frame, 4)
    correlation_id = reader.i32()
    if flexible:
        reader.skip_tags()
    results: list[PartitionResult] = []
    for _ in range(reader.compact_array(3) if flexible else reader.array(6)):
        topic = reader.compact_string() if flexible else reader.string()
        for _ in range(reader.compact_array(22) if flexible else reader.array(22)):
            results.append(_read_partition(reader, version, topic))
        if flexible:
            reader.skip_tags()
    return correlation_id, results


def _read_partition(reader: Reader, version: int, topic: str) -> PartitionResult:
    flexible = version >= _FLEXIBLE
    partition, error, base_offset, append_time = reader.i32(), reader.i16(), reader.i64(), reader.i64()
    start_offset = reader.i64() if version >= 5 else -1
    message: str | None = None
    record_errors: list[tuple[int, str | None]] = []
    if version >= 8:
        for _ in range(reader.compact_array(6) if flexible else reader.array(6)):
            index = reader.i32()
            record_errors.append((index, reader.compact_nullable_string() if flexible else reader.nullable_string()))
            if flexible:
                reader.skip_tags()
        message = reader.compact_nullable_string() if flexible else reader.nullable_string()
    if flexible:
        reader.skip_tags()
    return PartitionResult(topic, partition, error, base_offset, append_time, start_offset, message, record_errors)
