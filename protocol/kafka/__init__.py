"""Kafka's wire protocol: what the hot paths need by hand, everything else through kio's schemas."""
