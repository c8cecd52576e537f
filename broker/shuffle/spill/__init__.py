"""Buffers that no longer fit in memory: the spiller's thread and its files."""
