"""The messages of Kafka that are read and written by hand. A module has both sides of its message."""
