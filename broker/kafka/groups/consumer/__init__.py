"""Consumer groups of KIP-848: the coordinator assigns the partitions, and members change over one by one.

The registry and the handlers call ``consumer_group.py``, which is pure: it knows no lock, clock, catalogue or log."""

from broker.kafka.groups.consumer.consumer_group import ConsumerGroup

__all__ = ["ConsumerGroup"]
