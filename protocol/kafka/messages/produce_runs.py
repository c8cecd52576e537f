"""Produce requests that differ from an earlier one of the same client only in their records.

All requests of a producer for one partition look alike: API, version, client id, acks, timeout, topic and partition are the same
bytes in each. ``Templates.learn`` parses one of them as a whole. ``Templates.follow`` finds the same bytes in the next ones and
needs to look only at lengths and correlation ids. What it does not recognise is left to ``produce.parse_request``.

A template is of a request with one partition, acks 1 or all, no transactional id, and names of usual lengths.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.messages.produce import FIRST_WITH_TOPIC_ID, MAX_VERSION, PartitionResult, parse_request, response

_KIND = Struct(">i").unpack_from  # API key and version as one number
_CLIENT_ID = 12  # where it begins in the frame, with its length
FIRST_VERSION = 7  # the first whose batches may have any codec
LAST_VERSION = MAX_VERSION
_FLEXIBLE = 9
# From the beginning of the body to the topic's name, and from its end to the length of the records.
_BEFORE_NAME, _AFTER_NAME = 14, 8
_BEFORE_NAME_9, _AFTER_NAME_9 = 9, 5
_BEFORE_ID = 8
_new = tuple.__new__
_NO_TAGS = b"\0\0\0"  # they end the partition, the topic and the request
# Numbers by which a response's fields are found in its bytes. No topic has such a name, and no partition such a number.
_CORRELATION, _BASE, _START = 0x7FE1E2E3, 0x7FE1E2E3E4E5E6E7, 0x7FF1F2F3F4F5F6F7
_LONGEST_NAME_9 = 126  # a longer one has a length of two bytes
# Templates are kept, so a client cannot make them as long as it likes. A topic's name has 249 bytes at most.
_LONGEST_MIDDLE = 512


class Layout(NamedTuple):
    """Of requests with equally long middles. ``unpack`` gives, of the frame at a position: its length, its kind, the correlation
    id, the middle, and the length of the records, which is a number or the first three bytes of one. That is ``size`` bytes."""

    unpack: Callable[[memoryview, int], tuple[Any, ...]]
    size: int


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
    layout = Struct(f">iii{middle_size}s{'BBB' if is_flexible else 'i'}")
    return Layout(layout.unpack_from, layout.size)


@lru_cache(256)  # as above
def _packer(first: int, second: int, third: int, fourth: int) -> Callable[..., bytes]:
    """What packs a response out of four parts of these sizes and the three numbers between them."""
    return Struct(f">{first}si{second}sq{third}sq{fourth}s").pack


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


class Templates:
    """The templates of one client, whose requests have the same client id, and versions that are alike."""

    __slots__ = ("_by_middle", "_client_id", "_is_flexible", "_layouts", "_tells_layout")

    def __init__(self) -> None:
        self._by_middle: dict[bytes, Template] = {}
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
            if key != ApiKey.PRODUCE or not FIRST_VERSION <= version <= LAST_VERSION:
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
        self._by_middle[template.middle] = template
        self._layouts[template.middle[tells_layout - _CLIENT_ID]] = template.layout

    def follow(self, data: memoryview, most: int, most_bytes: int) -> Run | None:
        """The whole requests at the beginning of ``data``, as far as each has a template, and the same version, acks and timeout
        as the first. At most ``most`` requests and ``most_bytes``. None: the first one has no template, or is not whole."""
        templates: list[Template] = []
        correlation_ids: list[int] = []
        records: list[memoryview] = []
        layouts, tells_layout, is_flexible = self._layouts, self._tells_layout, self._is_flexible
        position, limit = 0, min(len(data), most_bytes)
        middle, template, is_uniform = b"", None, True
        first_kind = acks = timeout_ms = 0
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
            if template is None or its_middle != middle:
                middle, template = its_middle, self._by_middle.get(its_middle)
                if template is None:
                    break
                if not templates:
                    first_kind, acks, timeout_ms = template.kind, template.acks, template.timeout_ms
                elif template.kind != first_kind or template.acks != acks or template.timeout_ms != timeout_ms:
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
        return _new(Run, (templates, correlation_ids, records, position, is_uniform)) if templates else None
