"""Reading entries: the cache of all topics, and the threads that read logs."""
