"""Flink's shuffle partition protocol, and the frames by which writers fill partitions over the network: bytes <-> values."""
