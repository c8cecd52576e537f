"""Entries between the log and those who read them: the cache over all topics, and reading on threads that may wait."""
