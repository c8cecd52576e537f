"""Sources: topics read as DataFrames and as streams."""
