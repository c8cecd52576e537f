"""A record as JSON: keys and values as text where they are text, else in base64, and cut at a bound. Pure.

What producers have sent may be hostile. Nothing here is decompressed or parsed any further than is shown: whether a value is JSON
is found out by parsing it, which takes bounded time, and its parsed form is not kept.

Tests: tests/kafka/views/test_record_json.py.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocol.kafka.records.records import Record

# Of a key or a value; of all headers of a record.
PART_MAX_BYTES: Final = 64 * 1024
HEADERS_MAX: Final = 100
_HEADER_MAX_BYTES: Final = 1024
_NAME_MAX = 300
# Characters of a key or a value of a shortened record: at most 24,000 bytes as JSON. Divisible by 4, for base64.
_SHORT_MAX: Final = 2000
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # not: tabs, line ends, escape


def part(data: bytes | None, most: int = PART_MAX_BYTES) -> dict[str, Any] | None:
    """``{"text": ...}`` or ``{"base64": ...}``; with ``truncated`` if it was cut, ``json`` if it is an object or array."""
    if data is None:
        return None
    shown = data[:most]
    truncated = len(shown) < len(data)
    text = _text(shown, truncated)
    found: dict[str, Any] = {"base64": b64encode(shown).decode()} if text is None else {"text": text}
    if truncated:
        found["truncated"] = True
    elif text is not None and _is_json(text):
        found["json"] = True
    return found


def headers(given: Sequence[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    return [{"key": name[:_NAME_MAX], "value": part(value, _HEADER_MAX_BYTES)} for name, value in given[:HEADERS_MAX]]


def size_of(record: Record) -> int:
    """Of key, value and headers, in bytes."""
    of_headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + of_headers


def shown(partition: int, record: Record, batch: Mapping[str, Any]) -> dict[str, Any]:
    """``batch``: what is the same for all records of a batch."""
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp >= 0 else None,
        "key": part(record.key),
        "value": part(record.value),
        "headers": headers(record.headers),
        "size": size_of(record),
        **batch,
    }


def shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record that was ``shown``, with less of its key and value and without its headers."""
    return {**record, "key": _shortened(record["key"]), "value": _shortened(record["value"]), "headers": []}


def _shortened(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    form = "text" if "text" in found else "base64"
    if len(found[form]) <= _SHORT_MAX:
        return dict(found)
    return {form: found[form][:_SHORT_MAX], "truncated": True}


def _text(data: bytes, truncated: bool) -> str | None:
    """None for what is not UTF-8, or has control characters that text does not have."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not truncated or error.start < len(data) - 3 or not error.start:
            return None
        text = data[: error.start].decode()  # cut within a character
    return None if _CONTROLS.search(text) else text


def _is_json(text: str) -> bool:
    if text[:1] not in ("{", "["):  # an object or an array: a lone number or word is as well text
        return False
    try:
        json.loads(text, parse_constant=_refuse, parse_int=_skip, parse_float=_skip)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(_text: str) -> None:
    raise ValueError


def _skip(_text: str) -> None:
    """A number: its digits are not of interest, and many of them would take long."""
