"""The positions at which a read may begin or end, and their text in options. Pure; ``resolve.py`` turns them into offsets.

| text | value |
|---|---|
| ``earliest``, ``latest`` | ``Edge`` |
| ``{"orders": {"0": 23, "1": -2}}`` | ``Offsets``; -2 is earliest, -1 latest |
| ``-100 offsets`` | ``Back``: this many before the end of each partition |
| ``-10 minutes`` | ``Ago`` |
| ``1700000000000``, ``2026-11-21T10:00:00Z`` | ``Since``, in ms |
| ``{"orders": {"0": 1700000000000}}`` as timestamps | ``Timestamps``, in ms |
"""

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from broker.client.kafka.values import EARLIEST, LATEST, TopicPartition
from broker.errors import ConfigError


@attrs.frozen
class Edge:
    """``at`` is EARLIEST or LATEST, for all partitions."""

    at: int


@attrs.frozen
class Offsets:
    """An offset, EARLIEST or LATEST for each partition."""

    at: Mapping[TopicPartition, int]


@attrs.frozen
class Back:
    offsets: int


@attrs.frozen
class Ago:
    milliseconds: int


@attrs.frozen
class Since:
    timestamp_ms: int


@attrs.frozen
class Timestamps:
    at_ms: Mapping[TopicPartition, int]


Position = Edge | Offsets | Back | Ago | Since | Timestamps

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "w": 604_800_000,
    "week": 604_800_000,
}
_MOST = 2**63 - 1


def parse_duration_ms(name: str, text: str) -> int:
    """``15m``, ``10 minutes``, ``500ms``; a bare number is ms."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.strip().lower())
    unit = match and (_UNITS_MS.get(match[2] or "ms") or _UNITS_MS.get(match[2].removesuffix("s")))
    if not (match and unit):
        raise ConfigError(f"{name} must be a time such as 15m or '10 minutes', not {text!r}.")
    return int(match[1]) * unit


def parse_offsets(name: str, text: str, *, forbidden: int | None) -> Position:
    """The value of startingOffsets or endingOffsets. ``forbidden``: EARLIEST, LATEST or None."""
    text = text.strip()
    position: Position
    if text.lower() in ("earliest", "latest"):
        position = Edge(EARLIEST if text.lower() == "earliest" else LATEST)
        at = {position.at}
    elif text.startswith("{"):
        position = Offsets(_per_partition(name, text, least=EARLIEST))
        at = set(position.at.values())
    elif match := re.fullmatch(r"-\s*([0-9]{1,18})\s*(?:offsets?|records?)", text.lower()):
        return Back(int(match[1]))
    elif text.startswith("-"):
        return Ago(parse_duration_ms(name, text[1:]))
    else:
        raise ConfigError(
            f"{name} must be earliest, latest, offsets by partition such as "
            f'{{"topic": {{"0": 23}}}}, "-100 offsets" or "-10 minutes", not {text!r}.'
        )
    if forbidden is not None and forbidden in at:
        raise ConfigError(
            f"{name} of a batch read cannot be {'latest (-1)' if forbidden == LATEST else 'earliest (-2)'}: "
            f"nothing would be read."
        )
    return position


def parse_timestamp(name: str, text: str) -> Position:
    """The value of startingTimestamp or endingTimestamp: ms since the epoch, ISO 8601 with a time zone, or how long ago."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Since(int(text))
    if text.startswith("-"):
        return Ago(parse_duration_ms(name, text[1:]))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError(
            f"{name} must be ms since 1970, a time with its zone such as 2026-11-21T10:00:00Z, or '-10 minutes', not {text!r}."
        )
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return Since(max(0, since // datetime.timedelta(milliseconds=1)))


def parse_timestamps(name: str, text: str) -> Position:
    """The value of startingOffsetsByTimestamp or endingOffsetsByTimestamp."""
    return Timestamps(_per_partition(name, text, least=0))


def parse_assignment(name: str, text: str) -> tuple[TopicPartition, ...]:
    """``{"orders": [0, 1]}``."""
    assignment = _object(name, text, '{"topic": [0, 1]}')
    pairs: set[TopicPartition] = set()
    for topic, partitions in assignment.items():
        for partition in partitions if isinstance(partitions, list) else [None]:
            pairs.add((topic, _whole(name, partition, 0, 2**31 - 1, '{"topic": [0, 1]}')))
    if not pairs:
        raise ConfigError(f"{name} names no partition.")
    return tuple(sorted(pairs))


def _per_partition(name: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    example = '{"topic": {"0": 23}}'
    values: dict[TopicPartition, int] = {}
    for topic, partitions in _object(name, text, example).items():
        if topic.startswith("#"):
            continue  # ids of topics, in an offset that a user has copied from a checkpoint or progress event
        for partition, value in partitions.items() if isinstance(partitions, dict) else [("0", None)]:
            number = _whole(
                name, int(partition) if re.fullmatch(r"[0-9]{1,9}", partition) else None, 0, 2**31 - 1, example
            )
            values[topic, number] = _whole(name, value, least, _MOST, example)
    return values


def _object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be JSON such as {example}, not {text!r}.")
    return value


def _whole(name: str, value: object, least: int, most: int, example: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} must be JSON such as {example}, with whole numbers from {least}; it has {value!r}.")
    return value
