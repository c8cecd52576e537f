"""Producing: from the batches of Produce requests to logs and results."""
