"""Kafka's API on the reactor. ``handlers/`` has one file an API: its listing is the support matrix."""
