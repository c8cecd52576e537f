"""The one exception the wire codecs raise."""


class ProtocolError(Exception):
    """The peer broke the protocol: the bytes cannot mean anything. The connection that sent them is closed."""
