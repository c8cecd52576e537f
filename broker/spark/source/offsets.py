"""The position of a stream, which its checkpoint keeps: one offset for each partition, and the ids of the topics. Values only.

The JSON is that of Spark's Kafka connector, ``{"orders": {"0": 23}}``, with ``"#topics": {"orders": "<id>"}`` beside the topics:
the id tells a topic that was deleted and created again from the one that was read. A topic's name cannot contain ``#``.

Spark keeps the ends of batches. If it reads the first batch again after a restart, it asks again where the query begins, and by
then "latest" is another offset. So the end of the first batch also has its beginning: ``"#from": {"orders": {"0": 20}}``.

Spark compares offsets as text, so equal offsets are written equally: topics in order, partitions by number.

How far a stream is behind, computed from Spark's progress events. Pure.

Spark's Kafka connector reports the same in ``sources[].metrics``, which a Python data source cannot fill.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs

from broker.client.kafka.values import TopicPartition
from broker.errors import ConfigError

_IDS, _FIRST = "#topics", "#from"


@attrs.frozen
class StreamOffset:
    """The next offset to read of each partition. ``topic_ids``: those of topics whose broker has ids.

    ``first``: where the query began; set in its initial offset and in the end of its first batch, else None.
    """

    at: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = attrs.field(factory=dict)
    first: Mapping[TopicPartition, int] | None = None

    @property
    def is_initial(self) -> bool:
        """Whether nothing has been read yet."""
        return self.first is not None and self.first == self.at

    def to_json(self) -> dict[str, Any]:
        """The value for ``json.dumps``; the module's docstring describes it."""
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

    A source of another format, or one that has not reported yet, has an empty lag.
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
