"""Kafka's messages that are encoded and decoded by hand. A module has both sides of its message."""
