"""The shuffle client: writing and reading result partitions of a broker, of Flink, or of this process."""
