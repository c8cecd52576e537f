"""Records as lines of JSON, as `consume --json` writes and `produce --json` reads them.

{"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1785762000000, "time": "2026-08-03T13:00:00.000Z",
 "key": "42", "value": "one book", "headers": [["source", "shop"]]}

Key, value, and the names and values of headers are strings if they are UTF-8, else {"base64": "..."}, so that every byte comes
back. For `produce` only ``value`` is required; it may also be any other JSON value, which is sent as JSON text. Pure.
"""

import base64
import datetime
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_LAST_MS = (1 << 63) - 1


class JsonRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    partition: int | None
    timestamp_ms: int | None


def json_bytes(data: bytes | None) -> Any:
    """Bytes for JSON."""
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
    """Raises ValueError, whose text says what is wrong with the line."""
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


def _to_bytes(value: Any, what: str) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
            return base64.b64decode(value["base64"], validate=True)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise ValueError(f'its "{what}" stands for no bytes ({error})') from None


def _headers(given: Any) -> list[tuple[bytes, bytes | None]]:
    pairs: Sequence[Any] = list(given.items()) if isinstance(given, dict) else given
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
        # -1 is how Kafka says that a record has no time.
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
