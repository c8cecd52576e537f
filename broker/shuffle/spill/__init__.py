"""Buffers that no longer fit in memory: the spiller's thread and the files it writes."""
