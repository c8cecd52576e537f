"""How far a stream has come: one offset a partition, and which topic that was. What a checkpoint keeps. Values only.

In JSON as Spark's Kafka connector writes it, ``{"orders": {"0": 23}}``, and beside the topics ``"#topics": {"orders": "<id>"}``:
by the id a topic that was deleted and created again is told from the one that was read. No topic's name can have a ``#``.

Spark keeps where batches end. If the first one is read again after a restart, it asks anew where the query begins, and by then
"latest" is somewhere else. So the offset that ends it also says where it begins: ``"#from": {"orders": {"0": 20}}``.

Spark compares offsets as text, so equal ones are written equally: topics in order, partitions by number.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from broker.client.kafka.values import TopicPartition
from broker.errors import ConfigError

_IDS, _FIRST = "#topics", "#from"


@attrs.frozen
class StreamOffset:
    """The next offset to read of each partition. ``topic_ids``: only of topics whose broker gives ids.

    ``first``: where the query began, in the offset that it begins with and the one that ends its first batch; else None.
    """

    at: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = attrs.field(factory=dict)
    first: Mapping[TopicPartition, int] | None = None

    @property
    def is_initial(self) -> bool:
        """Nothing has been read yet."""
        return self.first is not None and self.first == self.at

    def to_json(self) -> dict[str, Any]:
        """What ``json.dumps`` takes; see the module."""
        written = _nested(self.at)
        ids = {topic: self.topic_ids[topic] for topic in written if topic in self.topic_ids}
        if ids:
            written[_IDS] = ids
        if self.first is not None:
            written[_FIRST] = _nested(self.first)
        return written

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffset":
        """ConfigError if this is no offset of ours."""
        try:
            first = value.get(_FIRST)
            at = {topic: partitions for topic, partitions in value.items() if topic not in (_IDS, _FIRST)}
            return cls(_flat(at), dict(value.get(_IDS, {})), None if first is None else _flat(first))
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(f"The checkpoint holds what is no offset of this source: {value!r}.") from None

    def same_topic(self, topic: str, other: "StreamOffset") -> bool:
        """Whether a topic of this name is the same in both, as far as the ids tell."""
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
