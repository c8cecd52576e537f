"""Consumer groups: which clients are members, which partitions each of them owns, and how far each group has read.

``classic_group.py`` decides (pure: events and ``now`` in, effects out) and ``offsets.py`` keeps the committed offsets (pure).
``registry.py`` gives each group its lock, its timer and its place in the catalogue; ``coordinator.py`` is what handlers call.
"""

from broker.kafka.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
