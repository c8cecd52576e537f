r"""The formats of records in `consume` and `produce`: JSON, templates (--format), and plain text. Pure.

As JSON, `consume --json` writes a record as a line, and `produce --json` reads it:

{"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1785762000000, "time": "2026-08-03T13:00:00.000Z",
 "key": "42", "value": "one book", "headers": [["source", "shop"]]}

Key, value, and the names and values of headers are strings if they are UTF-8, else {"base64": "..."}, so that every
byte is preserved. For `produce` only ``value`` is required; it may also be any other JSON value, which is sent as JSON
text.

A template is text with a token for each field of a record, as in kcat's -f. `consume` formats records with it, and
`produce` parses them.

``%k`` key, ``%v`` or ``%s`` value, ``%h`` headers (name=value, with commas), ``%t`` topic, ``%p`` partition, ``%o`` offset,
``%T`` time in ms, ``%K`` and ``%S`` sizes of key and value (-1 for null), ``%R`` the size of the value as four bytes, ``%%`` a
percent sign; ``\n``, ``\t``, ``\r``, ``\0``, ``\\``, ``\xHH``. A line break ends each record, unless the text ends with one or
with ``\c``.

A record is any object with offset, timestamp (ms), key, value and headers: our own client's, or kafka-python's.
"""

import base64
import datetime
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import attrs
import click

from broker.cli.client import format_time

_LAST_MS = (1 << 63) - 1


class JsonRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    partition: int | None
    timestamp_ms: int | None


def json_bytes(data: bytes | None) -> Any:
    """The JSON value of bytes."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def record_line(
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    time: str,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[bytes, bytes | None]],
) -> bytes:
    """The line of one record, with its line break."""
    fields = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp_ms,
        "time": time,
        "key": json_bytes(key),
        "value": json_bytes(value),
        "headers": [[json_bytes(name), json_bytes(content)] for name, content in headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def parse_record(line: bytes) -> JsonRecord:
    """Raises ValueError with a text that says what is wrong with the line."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ValueError('it is no JSON object, such as {"key": "42", "value": "one book"}')
    if "value" not in fields:
        raise ValueError('it has no "value" (null is one: it deletes the key from a compacted topic)')
    partition = fields.get("partition")
    if partition is not None and not (_is_whole(partition) and 0 <= partition < 1 << 31):
        raise ValueError('its "partition" is no number of a partition')
    return JsonRecord(
        _to_bytes(fields.get("key"), "key"),
        _to_bytes(fields["value"], "value"),
        _headers(fields.get("headers") or []),
        partition,
        _timestamp(fields),
    )


def _to_bytes(value: Any, field: str) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
            return base64.b64decode(value["base64"], validate=True)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise ValueError(f'its "{field}" stands for no bytes ({error})') from None


def _headers(value: Any) -> list[tuple[bytes, bytes | None]]:
    pairs: Sequence[Any] = list(value.items()) if isinstance(value, dict) else value
    headers = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError('its "headers" are no list of pairs, such as [["source", "shop"]]')
        name = _to_bytes(pair[0], "headers")
        if name is None:
            raise ValueError("a header has no name")
        headers.append((name, _to_bytes(pair[1], "headers")))
    return headers


def _timestamp(fields: dict[str, Any]) -> int | None:
    timestamp = fields.get("timestamp")
    if timestamp is not None:
        # In Kafka, -1 means that a record has no time.
        if _is_whole(timestamp) and -1 <= timestamp <= _LAST_MS:
            return None if timestamp < 0 else int(timestamp)
        raise ValueError('its "timestamp" is no number of ms since 1970')
    time = fields.get("time")
    if time in (None, "-"):
        return None
    try:
        moment = datetime.datetime.fromisoformat(time)
        return max(0, int(moment.astimezone(datetime.UTC).timestamp() * 1000))
    except (TypeError, ValueError, OverflowError):
        raise ValueError('its "time" is no time, such as 2026-08-03T13:00:00Z') from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Token -> field. A field has one canonical token.
_TOKENS = {"s": "v"} | {token: token for token in "kvhtpoTKSR"}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\x00", "\\": b"\\"}
_PIECE = re.compile(r"%(?P<token>.?)|\\x(?P<hex>[0-9A-Fa-f]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.S)


@attrs.frozen
class Template:
    """``literals`` has one more item than ``fields``: the texts before, between and after them."""

    text: str
    fields: tuple[str, ...]
    literals: tuple[bytes, ...]


def parse_template(text: str) -> Template:
    """Raises click.UsageError, which names the error."""
    fields: list[str] = []
    literals = [b""]
    ends = False
    for piece in _PIECE.finditer(text):
        if ends:
            raise click.UsageError(r"Write \c only at the end of --format: it means that no line break follows.")
        token, escape = piece["token"], piece["escape"]
        if token == "%":
            literals[-1] += b"%"
        elif token is not None:
            if token not in _TOKENS:
                raise click.UsageError(
                    f"--format knows no %{token}: it has {', '.join('%' + name for name in _TOKENS)}."
                )
            fields.append(_TOKENS[token])
            literals.append(b"")
        elif piece["hex"]:
            literals[-1] += bytes.fromhex(piece["hex"])
        elif escape == "c":
            ends = True
        elif escape is not None:
            if escape not in _ESCAPES:
                raise click.UsageError(rf"--format knows no \{escape}: it has \n, \t, \r, \0, \\, \xHH and \c.")
            literals[-1] += _ESCAPES[escape]
        else:
            literals[-1] += piece["text"].encode("utf-8", "surrogateescape")
    if not ends and not literals[-1].endswith(b"\n"):
        literals[-1] += b"\n"
    return Template(text, tuple(fields), tuple(literals))


_PATTERNS = {"k": b"(.*?)", "v": b"(.*?)", "h": b"(.*?)", "t": b"(.*?)"}
_NUMBER = rb"(-?[0-9]{1,19})"


def line_parser(template: Template) -> Callable[[bytes], Sequence[bytes] | None]:
    """A parser of lines, without line breaks, that `consume` has written with this template: it returns the fields in
    order, or None for a line of another form. A field ends at the first occurrence of the text that follows it. Raises
    click.UsageError for a template that cannot be parsed."""
    if "v" not in template.fields:
        raise click.UsageError("Write %v, for the value, in --format.")
    if "R" in template.fields:
        raise click.UsageError("Leave %R out of --format: lines cannot have binary sizes in them.")
    literals = list(template.literals)
    literals[-1] = literals[-1].removesuffix(b"\n")
    if any(b"\n" in literal for literal in literals):
        raise click.UsageError(r"Leave \n out of the middle of --format: a record is one line of the input.")
    if not all(literals[1:-1]):
        raise click.UsageError(
            "Write something between the tokens of --format, so that one can see where a field ends."
        )
    repeated = {field for field in template.fields if template.fields.count(field) > 1}
    if repeated:
        raise click.UsageError(f"Write %{min(repeated)} only once in --format.")
    pattern = re.escape(literals[0])
    for field, literal in zip(template.fields, literals[1:], strict=True):
        pattern += _PATTERNS.get(field, _NUMBER) + re.escape(literal)
    fullmatch = re.compile(pattern, re.S).fullmatch

    def parse(line: bytes) -> Sequence[bytes] | None:
        match = fullmatch(line)
        return None if match is None else match.groups()

    return parse


# Called with topic, partition and record.
Renderer = Callable[[str, int, Any], bytes]


def text_line(separator: bytes | None, headers: bool) -> Renderer:
    """The value; before it the key and ``separator``, before that the headers and a tab."""

    def render(_topic: str, _partition: int, record: Any) -> bytes:
        line: bytes = (record.value or b"") + b"\n"
        if separator is not None:
            line = (record.key or b"") + separator + line
        if headers:
            line = _record_output_headers(record) + b"\t" + line
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
    """Names that are not UTF-8 contain surrogates."""
    return name.encode("utf-8", "surrogateescape")


def _record_output_headers(record: Any) -> bytes:
    return b",".join(_name(name) + b"=" + (value or b"") for name, value in record.headers)


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


_FIELDS: dict[str, Renderer] = {
    "k": lambda _topic, _partition, record: record.key or b"",
    "v": lambda _topic, _partition, record: record.value or b"",
    "h": lambda _topic, _partition, record: _record_output_headers(record),
    "t": lambda topic, _partition, _record: topic.encode(),
    "p": lambda _topic, partition, _record: b"%d" % partition,
    "o": lambda _topic, _partition, record: b"%d" % record.offset,
    "T": lambda _topic, _partition, record: b"%d" % record.timestamp,
    "K": lambda _topic, _partition, record: b"%d" % _size(record.key),
    "S": lambda _topic, _partition, record: b"%d" % _size(record.value),
    "R": lambda _topic, _partition, record: _size(record.value).to_bytes(4, "big", signed=True),
}
