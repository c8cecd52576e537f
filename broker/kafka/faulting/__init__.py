"""Faults on demand in Kafka's protocol: what a request is about, what a fault does to it, and its answer with an error code."""
