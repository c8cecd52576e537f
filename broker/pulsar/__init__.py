"""The Pulsar service: topics, subscriptions and their dispatch, on the same reactor and log as Kafka's."""
