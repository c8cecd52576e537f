"""Consumers of share groups (KIP-932): queues with an acknowledgement for each record.

Users call ``share_consumer.py``. Below it, ``membership.py`` (the consumer in its group) and ``acquired.py`` (the state
of each record) are pure. ``engine.py`` decides which broker to ask next, ``broker_link.py`` exchanges requests with one
broker, and ``requests.py`` has the requests, the share session and the thread that sends heartbeats to the group's
coordinator.
"""
