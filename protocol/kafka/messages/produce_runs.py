"""Produce requests that differ from an earlier one of the same client only in their records.

A producer that does not wait for answers has sent several requests when the broker reads the next time, and all those for one
partition look alike: API, version, client id, acks, timeout, topic and partition are the same bytes in each. ``template_of``
parses one of them as a whole. ``follow`` finds the same bytes in the next ones and needs to look only at lengths and correlation
ids. What it does not recognise it leaves to ``produce.parse_request``.

A template is of a request with one partition, acks 1 or all, no transactional id, and names of usual lengths.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, NamedTuple

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.messages.produce import FIRST_WITH_TOPIC_ID, MAX_VERSION, PartitionResult, parse_request, response

_KIND = Struct(">i").unpack_from  # API key and version as one number
_CLIENT_ID = 12  # where it begins in the frame, with its length
FIRST_VERSION = 5  # the first whose response has the log start offset
LAST_VERSION = MAX_VERSION
_FLEXIBLE = 9
# From the beginning of the body to the topic's name, and from its end to the length of the records.
_BEFORE_NAME, _AFTER_NAME = 14, 8
_BEFORE_NAME_9, _AFTER_NAME_9 = 9, 5
_BEFORE_ID = 8
_NO_TAGS = b"\0\0\0"  # they end the partition, the topic and the request
_new = tuple.__new__
# Numbers by which a response's fields are found in its bytes. No topic has such a name, and no partition such a number.
_CORRELATION, _BASE, _START = 0x7FE1E2E3, 0x7FE1E2E3E4E5E6E7, 0x7FF1F2F3F4F5F6F7
# Who keeps templates keeps this much of each. Names of clients and topics of 249 characters fit.
_LONGEST_MIDDLE = 600
_LONGEST_NAME_9 = 126  # a longer one has a length of two bytes
# Templates are kept, so a client cannot make them as long as it likes. A topic's name has 249 bytes at most.
_LONGEST_MIDDLE = 512


class Layout(NamedTuple):
    """Of requests with equally long middles. ``unpack`` gives, of the frame at a position: its length, its kind, the correlation
    id, the middle, and the length of the records, which is a number or the first three bytes of one. That is ``size`` bytes."""

    unpack: Callable[[memoryview, int], tuple[Any, ...]]
    size: int
    is_flexible: bool


class Template(NamedTuple):
    """``kind``: API key and version. ``middle``: the frame's bytes from the client id to the length of the records."""

    layout: Layout
    kind: int
    middle: bytes
    version: int
    acks: int
    timeout_ms: int
    topic: str | bytes  # from version 13 on, its id
    partition: int


class Followed(NamedTuple):
    """One request of a run."""

    template: Template
    correlation_id: int
    records: memoryview


def _layout(middle_size: int, is_flexible: bool) -> Layout:
    layout = Struct(f">iii{middle_size}s{'BBB' if is_flexible else 'i'}")
    return Layout(layout.unpack_from, layout.size, is_flexible)


def template_of(frame: memoryview) -> Template | None:
    """What the whole request in ``frame`` has in common with others like it. None: it is not one that has a template."""
    try:
        key, version, _, _, body = parse_request_header(frame)
        if key != ApiKey.PRODUCE or not FIRST_VERSION <= version <= LAST_VERSION:
            return None
        parsed = parse_request(frame, version, body, 2)
    except ProtocolError:
        return None
    if parsed.transactional_id is not None or len(parsed.topics) != 1 or parsed.acks not in (1, -1):
        return None
    topic, partition, records = parsed.topics[0]
    name = len(topic.encode() if isinstance(topic, str) else topic)
    if not records or (version >= _FLEXIBLE and name > _LONGEST_NAME_9):
        return None
    if version < _FLEXIBLE:
        before, after = _BEFORE_NAME, _AFTER_NAME
    else:
        before, after = _BEFORE_NAME_9 if version < FIRST_WITH_TOPIC_ID else _BEFORE_ID, _AFTER_NAME_9
    middle = bytes(frame[_CLIENT_ID : body + before + name + after])
    if len(middle) > _LONGEST_MIDDLE:
        return None
    layout = _layout(len(middle), version >= _FLEXIBLE)
    template = Template(layout, _KIND(frame, 4)[0], middle, version, parsed.acks, parsed.timeout_ms, topic, partition)
    found, end = follow({middle: template}, layout, frame, 1, len(frame))
    # Both end where the frame does, so it suffices to compare the lengths.
    return template if found and end == len(frame) and len(found[0].records) == len(records) else None


def follow(
    templates: Mapping[bytes, Template], layout: Layout, data: memoryview, most: int, most_bytes: int
) -> tuple[list[Followed], int]:
    """The whole requests at the beginning of ``data``, as far as each has one of the templates (by ``middle``; all have this
    layout), and the same version and acks as the first; and where the last one ends. At most ``most`` requests and
    ``most_bytes``."""
    found: list[Followed] = []
    unpack, size_of_lengths, is_flexible = layout
    position, limit = 0, min(len(data), most_bytes) - size_of_lengths
    middle, template = b"", None
    acks = first_kind = 0
    while position <= limit and len(found) < most:
        if is_flexible:
            length, kind, correlation_id, its_middle, count, second, third = unpack(data, position)
        else:
            length, kind, correlation_id, its_middle, count = unpack(data, position)
        if template is None or its_middle != middle:
            middle, template = its_middle, templates.get(its_middle)
            if template is None:
                break
            if not found:
                acks, first_kind = template.acks, template.kind
        end = position + 4 + length
        start = position + size_of_lengths
        if not kind == template.kind == first_kind or template.acks != acks or end > len(data) or end > most_bytes:
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
        found.append(_new(Followed, (template, correlation_id, data[start:after])))
        position = end
    return found, position


class Answers:
    """The responses to requests of one template that have succeeded, which differ in three numbers."""

    __slots__ = ("_pack", "_parts")

    def __init__(self, template: Template) -> None:
        result = PartitionResult(template.topic, template.partition, 0, _BASE, -1, _START, None)
        rest = response(_CORRELATION, template.version, [result], 0)
        self._parts: list[bytes] = []
        for mark, size in ((_CORRELATION, 4), (_BASE, 8), (_START, 8)):
            before, found, rest = rest.partition(mark.to_bytes(size, "big"))
            assert found
            self._parts.append(before)
        self._parts.append(rest)
        first, second, third, fourth = map(len, self._parts)
        self._pack = Struct(f">{first}si{second}sq{third}sq{fourth}s").pack

    def one(self, correlation_id: int, base_offset: int, start_offset: int) -> bytes:
        first, second, third, fourth = self._parts
        return self._pack(first, correlation_id, second, base_offset, third, start_offset, fourth)
