"""Kafka's wire protocol: the messages of the hot paths by hand, all others through kio's schemas."""
