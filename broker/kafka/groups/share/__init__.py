"""Share groups (KIP-932): who is a member, and who reads which partitions.

What members acquire and acknowledge is the business of ``broker/kafka/share``. All but ``share_coordinator.py`` is pure.
"""
