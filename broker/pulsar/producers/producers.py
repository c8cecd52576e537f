"""The producers that are connected to one topic.

The topic's lock guards it.

Tests: tests/pulsar/producers/test_producers.py.
"""

from collections.abc import Iterator
from typing import Protocol

from broker.pulsar.refusals import ProducerBusy


class TopicProducer(Protocol):
    """A producer as its topic sees it. ``producer.py`` has the class."""

    @property
    def name(self) -> str: ...

    def close(self) -> None:
        """Tell the client to look the topic up again, and take nothing more from this producer."""


class Producers:
    """By name."""

    def __init__(self) -> None:
        self._by_name: dict[str, TopicProducer] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[TopicProducer]:
        return iter(list(self._by_name.values()))

    def add(self, producer: TopicProducer) -> None:
        """Raises ProducerBusy."""
        if producer.name in self._by_name:
            raise ProducerBusy(f"Producer with name '{producer.name}' is already connected to topic")
        self._by_name[producer.name] = producer

    def remove(self, producer: TopicProducer) -> None:
        """Unknown: nothing."""
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
