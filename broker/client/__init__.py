"""What users import: a broker in a ``with`` block (and as a pytest fixture, see ``pytest_plugin``)."""

from broker.client.embedded import Broker

__all__ = ["Broker"]
