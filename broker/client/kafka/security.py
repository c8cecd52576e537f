"""SASL over a connection: PLAIN, SCRAM and OAUTHBEARER. Secrets are sent in the exchange and appear nowhere else.

Tests: tests/client/kafka/test_security.py.
"""

from collections.abc import Callable

from broker.client.kafka.errors import AuthenticationError
from broker.client.security_settings import OAUTHBEARER, Sasl, TokenFile
from broker.errors import ConfigError
from broker.runtime.entropy import SystemEntropy
from broker.runtime.text_file import read_text
from protocol.errors import ProtocolError
from protocol.sasl.scram import HASHES, ScramClient

# Sends a token and returns the broker's. Raises AuthenticationError if the broker refuses.
Exchange = Callable[[bytes], bytes]

_TOKEN_MAX_BYTES = 64 * 1024


def authenticate(sasl: Sasl, where: str, exchange: Exchange) -> None:
    """Raises AuthenticationError, and ConfigError for a token that cannot be had."""
    if sasl.mechanism == OAUTHBEARER:
        _bear(current_token(sasl), where, exchange)
    elif sasl.mechanism in HASHES:
        client = ScramClient(sasl.mechanism, sasl.username, sasl.password, SystemEntropy.bytes(18).hex())
        try:
            client.verify(exchange(client.final(exchange(client.first()))))
        except ProtocolError as error:
            raise AuthenticationError(f"{sasl.mechanism} with the broker at {where} failed: {error}.") from None
    else:
        exchange(f"\0{sasl.username}\0{sasl.password}".encode())


def _bear(token: str, where: str, exchange: Exchange) -> None:
    """RFC 7628."""
    refusal = exchange(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    if refusal:
        exchange(b"\x01")  # the client's part of a failed exchange; the broker's answer is the error
        raise AuthenticationError(
            f"The broker at {where} does not take the token: {refusal[:300].decode(errors='replace')}."
        )


def current_token(sasl: Sasl) -> str:
    """The token as it is now. Raises ConfigError."""
    source = sasl.token
    if isinstance(source, TokenFile):
        try:
            token = read_text(source.path, _TOKEN_MAX_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError(f"The token cannot be read: {error}.") from None
        where = source.path
    else:
        token = source() if callable(source) else source or ""
        where = "sasl.oauthbearer.token"
    token = str(token).strip()
    # RFC 6750. A line end in it would begin another field of the message.
    if not token or not token.isascii() or any(letter <= " " for letter in token):
        raise ConfigError(f"{where} must give a token of printable ASCII characters without spaces.")
    return token
