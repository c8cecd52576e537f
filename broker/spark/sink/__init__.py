"""Sinks: DataFrames and streams written to topics."""
