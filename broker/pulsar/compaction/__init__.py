"""Pulsar's compaction: beside the log, a file with the latest message of each key, for those who read compacted."""
