"""Flink's shuffle partition protocol, and the frames by which our own writers fill partitions: bytes <-> values."""
