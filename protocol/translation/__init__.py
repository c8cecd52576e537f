"""Kafka's records as Pulsar's messages, and vice versa."""
