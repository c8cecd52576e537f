"""The errors that the wire codecs raise.

Tests: tests/protocol/test_wire.py, tests/protocol/kafka/schema/test_budget.py.
"""


class ProtocolError(Exception):
    """The peer sent bytes that the protocol does not define. The receiver closes the connection."""


class TooManyEntries(ProtocolError):
    """A message has more array elements than its reader allows. Raised before any element is read."""


class MessageTooLarge(Exception):
    """A message would become longer than its writer allows."""
