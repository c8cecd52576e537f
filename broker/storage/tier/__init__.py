"""Segments in the object store: how they get there, how they are read, how they leave."""
