"""Consumer groups: their members, the partitions of each member, and the committed offsets.

``classic_group.py`` decides (pure: events and ``now`` in, effects out) and ``offsets.py`` keeps the committed offsets (pure).
``registry.py`` gives each group its lock, its timer and its place in the catalogue; handlers call ``coordinator.py``.
"""

from broker.kafka.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
