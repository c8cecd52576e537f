"""Records to what `consume` prints: lines of text, a template, or JSON. Pure.

A record is anything with offset, timestamp (ms), key, value and headers: our own client's, or kafka-python's.
"""

from collections.abc import Callable
from typing import Any

from broker.cli.client import format_time
from broker.cli.record_json import record_line
from broker.cli.record_template import Template

# Of topic, partition and record.
Renderer = Callable[[str, int, Any], bytes]


def text_line(separator: bytes | None, headers: bool) -> Renderer:
    """The value; before it the key and ``separator``, before that the headers and a tab."""

    def render(_topic: str, _partition: int, record: Any) -> bytes:
        line: bytes = (record.value or b"") + b"\n"
        if separator is not None:
            line = (record.key or b"") + separator + line
        if headers:
            line = _headers(record) + b"\t" + line
        return line

    return render


def by_template(template: Template) -> Renderer:
    first, *after = template.literals
    pairs = [(_FIELDS[field], literal) for field, literal in zip(template.fields, after, strict=True)]

    def render(topic: str, partition: int, record: Any) -> bytes:
        parts = [first]
        for field, literal in pairs:
            parts += (field(topic, partition, record), literal)
        return b"".join(parts)

    return render


def json_line(topic: str, partition: int, record: Any) -> bytes:
    headers = [(_name(name), value) for name, value in record.headers]
    return record_line(
        topic,
        partition,
        record.offset,
        record.timestamp,
        format_time(record.timestamp),
        record.key,
        record.value,
        headers,
    )


def _name(name: str) -> bytes:
    """Names that are no UTF-8 come as surrogates."""
    return name.encode("utf-8", "surrogateescape")


def _headers(record: Any) -> bytes:
    return b",".join(_name(name) + b"=" + (value or b"") for name, value in record.headers)


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


_FIELDS: dict[str, Renderer] = {
    "k": lambda _topic, _partition, record: record.key or b"",
    "v": lambda _topic, _partition, record: record.value or b"",
    "h": lambda _topic, _partition, record: _headers(record),
    "t": lambda topic, _partition, _record: topic.encode(),
    "p": lambda _topic, partition, _record: b"%d" % partition,
    "o": lambda _topic, _partition, record: b"%d" % record.offset,
    "T": lambda _topic, _partition, record: b"%d" % record.timestamp,
    "K": lambda _topic, _partition, record: b"%d" % _size(record.key),
    "S": lambda _topic, _partition, record: b"%d" % _size(record.value),
    "R": lambda _topic, _partition, record: _size(record.value).to_bytes(4, "big", signed=True),
}
