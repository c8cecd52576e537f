"""How far a stream is behind, computed from Spark's progress events. Pure.

Spark's Kafka connector reports the same in ``sources[].metrics``, which a Python data source cannot fill.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs

from broker.client.kafka.values import TopicPartition
from broker.errors import ConfigError
from broker.spark.source.offsets import StreamOffset


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
