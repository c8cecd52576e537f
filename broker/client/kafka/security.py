"""SASL over a connection: PLAIN and SCRAM. Passwords are sent in the exchange and appear nowhere else."""

from collections.abc import Callable

from broker.client.kafka.config import Sasl
from broker.client.kafka.errors import AuthenticationError
from broker.runtime.entropy import SystemEntropy
from protocol.errors import ProtocolError
from protocol.sasl.scram import HASHES, ScramClient

# Sends a token and returns the broker's. Raises AuthenticationError if the broker refuses.
Exchange = Callable[[bytes], bytes]


def authenticate(sasl: Sasl, where: str, exchange: Exchange) -> None:
    """Raises AuthenticationError."""
    if sasl.mechanism not in HASHES:
        exchange(f"\0{sasl.username}\0{sasl.password}".encode())
        return
    client = ScramClient(sasl.mechanism, sasl.username, sasl.password, SystemEntropy.bytes(18).hex())
    try:
        client.verify(exchange(client.final(exchange(client.first()))))
    except ProtocolError as error:
        raise AuthenticationError(f"{sasl.mechanism} with the broker at {where} failed: {error}") from None
