"""The messages of Kafka's that are read and written by hand, one module each for both sides."""
