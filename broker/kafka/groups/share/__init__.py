"""Share groups (KIP-932): their members, and the partitions that each member reads.

``broker/kafka/share`` handles the acquired and acknowledged records. Everything but ``share_coordinator.py`` is pure.
"""
