"""Flink's shuffle partition protocol on the reactor: result partitions, written over the network, read by credit."""
