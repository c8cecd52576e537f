"""A Kafka-style reactor broker."""
