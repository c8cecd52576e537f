"""Reading topics as DataFrames and streams."""
