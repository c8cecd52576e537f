"""Flink's shuffle partition protocol, and this project's frames for writers of partitions: bytes <-> values."""
