"""A result partition in memory: its subpartitions, their buffers, and the budget that all partitions share."""
