"""The messages of OAUTHBEARER (RFC 7628): a token, and the error for a token that is not accepted."""

import re
from typing import NamedTuple

from protocol.errors import ProtocolError

# The client's answer to an error, which ends the exchange.
ABORT = b"\x01"
INVALID_TOKEN = b'{"status":"invalid_token"}'

_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>(?:[^\0,=]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)+)\x01"
)
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[-A-Za-z0-9._~+/]+=*)")


class BearerMessage(NamedTuple):
    """``authzid``: the user to act as; empty: the token's own."""

    authzid: str
    token: str

    def __repr__(self) -> str:
        return "BearerMessage(...)"


def parse(message: bytes, max_bytes: int) -> BearerMessage:
    """Extensions are ignored, as in Kafka. Raises ProtocolError, whose text has nothing of the message."""
    if len(message) > max_bytes:
        raise ProtocolError("an OAUTHBEARER message that is too long")
    try:
        match = _FIRST.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise ProtocolError("an OAUTHBEARER message that cannot be read")
    values = [
        value for name, _, value in (pair.partition("=") for pair in match["pairs"].split("\x01")) if name == "auth"
    ]
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if bearer is None:
        raise ProtocolError("an OAUTHBEARER message without exactly one bearer token")
    authzid = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return BearerMessage(authzid, bearer["token"])
