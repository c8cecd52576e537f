"""Result partitions that are written and read in one process."""
