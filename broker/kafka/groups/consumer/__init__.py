"""Consumer groups of KIP-848: the coordinator assigns the partitions, and members change over one by one.

``consumer_group.py`` is what the registry and the handlers call; it decides by itself and knows no lock, clock, catalogue or
log."""

from broker.kafka.groups.consumer.consumer_group import ConsumerGroup

__all__ = ["ConsumerGroup"]
