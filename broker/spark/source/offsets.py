"""The positions of a stream: offsets in its checkpoint, its lag, and the positions that options may name. Values only.

``StreamOffset`` is kept by the checkpoint: an offset for each partition, and the ids of the topics. Its JSON is that of
Spark's Kafka connector, ``{"orders": {"0": 23}}``, with ``"#topics": {"orders": "<id>"}`` beside the topics: the id
distinguishes a topic that was deleted and created again. A topic's name cannot contain ``#``. Spark keeps the ends of
batches. If it reads the first batch again after a restart, it asks again where the query begins, and by then "latest"
is another offset. So the end of the first batch also has its beginning: ``"#from": {"orders": {"0": 20}}``. Spark
compares offsets as text, so equal offsets are written equally: topics in order, partitions by number.

``lag`` computes how far a stream is behind from Spark's progress events. Spark's Kafka connector reports the same in
``sources[].metrics``, which a Python data source cannot fill.

A read may begin or end at these positions (``resolve.py`` turns them into offsets):

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

_IDS, _FIRST = "#topics", "#from"


@attrs.frozen
class StreamOffset:
    """The next offset to read of each partition. ``topic_ids``: those of topics with ids.

    ``first``: the beginning of the query; set in its initial offset and in the end of its first batch, else None.
    """

    at: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = attrs.field(factory=dict)
    first: Mapping[TopicPartition, int] | None = None

    @property
    def is_initial(self) -> bool:
        """Whether nothing has been read yet."""
        return self.first is not None and self.first == self.at

    def to_json(self) -> dict[str, Any]:
        """The value for ``json.dumps``; see the module's docstring."""
        written = _nested(self.at)
        ids = {topic: self.topic_ids[topic] for topic in written if topic in self.topic_ids}
        if ids:
            written[_IDS] = ids
        if self.first is not None:
            written[_FIRST] = _nested(self.first)
        return written

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffset":
        """Raises ConfigError for a value that ``to_json`` did not write."""
        try:
            first = value.get(_FIRST)
            at = {topic: partitions for topic, partitions in value.items() if topic not in (_IDS, _FIRST)}
            return cls(_flat(at), dict(value.get(_IDS, {})), None if first is None else _flat(first))
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(f"The checkpoint holds what is no offset of this source: {value!r}.") from None

    def same_topic(self, topic: str, other: "StreamOffset") -> bool:
        """Whether the topic is the same in both. If an id is unknown, it counts as the same."""
        mine, theirs = self.topic_ids.get(topic), other.topic_ids.get(topic)
        return mine is None or theirs is None or mine == theirs


def _nested(at: Mapping[TopicPartition, int]) -> dict[str, Any]:
    topics: dict[str, Any] = {}
    for topic, partition in sorted(at):
        topics.setdefault(topic, {})[str(partition)] = at[topic, partition]
    return topics


def _flat(topics: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    at: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        for partition, offset in partitions.items():
            if "#" in topic or type(offset) is not int or offset < 0:
                raise ValueError(topic)
            at[topic, int(partition)] = offset
    return at


@attrs.frozen
class Lag:
    """The number of records between the end of a micro-batch and the end of each partition at that time."""

    by_partition: Mapping[TopicPartition, int]

    @property
    def source(self) -> str:
        """The source by the name that Spark's Kafka connector would have: ``Broker[Subscribe[orders]]``.
        Spark shows a Python source as its JVM object, ``PythonMicroBatchStream@...``: that class has no ``toString``.
                Spark shows a Python source as its JVM object, ``PythonMicroBatchStream@...``: that class has no ``toString``.
        """
        return f"Broker[Subscribe[{', '.join(sorted({topic for topic, _ in self.by_partition}))}]]"

    @property
    def total(self) -> int:
        return sum(self.by_partition.values())

    @property
    def most(self) -> int:
        return max(self.by_partition.values(), default=0)

    @property
    def least(self) -> int:
        return min(self.by_partition.values(), default=0)

    @property
    def mean(self) -> float:
        return self.total / len(self.by_partition) if self.by_partition else 0.0


def lag(progress: Any) -> list[Lag]:
    """The lag of each source, in order. ``progress``: ``query.lastProgress``, a listener's ``event.progress``, or its JSON.

    A source of another format, or a source that has not reported yet, has an empty lag.
    """
    if isinstance(progress, str):
        progress = json.loads(progress)
    return [_of(source) for source in _field(progress, "sources") or ()]


def _of(source: Any) -> Lag:
    latest, end = (_offset(_field(source, name)) for name in ("latestOffset", "endOffset"))
    if latest is None or end is None:
        return Lag({})
    return Lag({where: max(0, offset - end.at.get(where, 0)) for where, offset in latest.at.items()})


def _offset(value: Any) -> StreamOffset | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    try:
        return StreamOffset.from_json(value) if isinstance(value, Mapping) else None
    except ConfigError:
        return None


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


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
