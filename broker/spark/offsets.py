"""How far a stream has come: one offset a partition, and which topic that was. What a checkpoint keeps. Values only.

In JSON as Spark's Kafka connector writes it, ``{"orders": {"0": 23}}``, and beside the topics ``"#topics": {"orders": "<id>"}``:
by the id a topic that was deleted and created again is told from the one that was read. No topic's name can have a ``#``.
Spark compares offsets as text, so equal ones are written equally: topics in order, partitions by number.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from broker.client.kafka.values import TopicPartition
from broker.errors import ConfigError

_IDS = "#topics"


@attrs.frozen
class StreamOffset:
    """The next offset to read of each partition. ``topic_ids``: only of topics whose broker gives ids."""

    at: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = attrs.field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What ``json.dumps`` takes; see the module."""
        topics: dict[str, Any] = {}
        for topic, partition in sorted(self.at):
            topics.setdefault(topic, {})[str(partition)] = self.at[topic, partition]
        ids = {topic: self.topic_ids[topic] for topic in topics if topic in self.topic_ids}
        return topics | ({_IDS: ids} if ids else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "StreamOffset":
        """ConfigError if this is no offset of ours."""
        strange = ConfigError(f"The checkpoint holds what is no offset of this source: {value!r}.")
        try:
            ids = dict(value.get(_IDS, {}))
            at = {
                (topic, int(partition)): offset
                for topic, partitions in value.items()
                if topic != _IDS
                for partition, offset in partitions.items()
            }
        except (AttributeError, TypeError, ValueError):
            raise strange from None
        if not all(type(offset) is int and offset >= 0 and "#" not in topic for (topic, _), offset in at.items()):
            raise strange
        return cls(at, ids)

    def same_topic(self, topic: str, other: "StreamOffset") -> bool:
        """Whether a topic of this name is the same in both, as far as the ids tell."""
        mine, theirs = self.topic_ids.get(topic), other.topic_ids.get(topic)
        return mine is None or theirs is None or mine == theirs
