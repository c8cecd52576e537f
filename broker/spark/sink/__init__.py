"""Writing DataFrames and streams to topics."""
