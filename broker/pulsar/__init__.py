"""Pulsar's protocol: topics, subscriptions and their dispatch, on the reactor and the log that Kafka's has."""
