"""The message of PLAIN (RFC 4616): user name and password."""

from typing import NamedTuple

from protocol.errors import ProtocolError


class PlainMessage(NamedTuple):
    """``authzid``: the user to act as; empty: the user who logs in."""

    authzid: str
    user: str
    password: str

    def __repr__(self) -> str:
        return "PlainMessage(...)"


def parse(message: bytes) -> PlainMessage:
    """Raises ProtocolError, whose text has nothing of the message."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise ProtocolError("a PLAIN message that is not UTF-8") from None
    if len(parts) != 3:
        raise ProtocolError("a PLAIN message without exactly three parts")
    authzid, user, password = parts
    if not user or not password:
        raise ProtocolError("a PLAIN message without a user name or without a password")
    return PlainMessage(authzid, user, password)
