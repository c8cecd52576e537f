"""What the wire codecs raise."""


class ProtocolError(Exception):
    """The peer broke the protocol: the bytes cannot mean anything. The connection that sent them is closed."""


class TooManyEntries(ProtocolError):
    """A message has more array elements than its reader was given a budget for. Raised before any of them is read."""


class MessageTooLarge(Exception):
    """A message that is being written would be longer than the limit that its writer was given."""
