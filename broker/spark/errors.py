"""What goes wrong while a topic is read, beside the Kafka client's own errors. One sentence each."""

from broker.errors import BrokerError


class DataLossError(BrokerError):
    """Records that the query was to read are gone, or may be. Raised only while ``failOnDataLoss`` is true."""
