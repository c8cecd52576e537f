"""Flink's shuffle partition protocol on the reactor: result partitions, written over the network and read by credit."""
