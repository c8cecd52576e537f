"""Copies of a data directory that are consistent while the broker runs: making, checking and restoring them."""
