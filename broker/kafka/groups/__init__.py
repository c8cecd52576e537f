"""Consumer groups: who is a member, who owns which partition, and how far each group has read.

``group.py`` decides (pure: events and ``now`` in, effects out), ``offsets.py`` remembers how far a group has read (pure),
``catalogue_writer.py`` makes both durable, ``coordinator.py`` joins them to clock, timer and catalogue.
"""

from broker.kafka.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
