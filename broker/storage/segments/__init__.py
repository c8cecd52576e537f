"""One segment of a log: its file of record batches and its indexes, in Kafka's formats."""
