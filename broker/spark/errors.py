"""Errors while a topic is read, beside those of the Kafka client.

Tests: tests/spark/source/test_reading.py, tests/spark/source/test_stream_source.py.
"""

from broker.errors import BrokerError


class DataLossError(BrokerError):
    """Records that the query should have read were deleted, or may have been. Raised only if ``failOnDataLoss`` is true."""
