"""Consumers of share groups (KIP-932): queues with an acknowledgement for each record.

``share_consumer.py`` is what users call. Below it, ``membership.py``, ``session.py`` and ``acquired.py`` are pure: who the
consumer is to its group, what it may ask a broker next, and what becomes of each record. ``broker_link.py`` speaks to one broker,
``heartbeats.py`` to the group's coordinator.
"""
