"""The settings of a Kafka client, by the names of Kafka's Java clients and librdkafka, and SASL logins over a
connection.

A ``ClientConfig`` is a value: it can be pickled and sent to the process in which the client will run. Passwords appear
neither in its repr nor in any message of this module. Unknown names are kept in ``unknown``, so that a caller can
report them; an invalid value is a ConfigError.

``authenticate`` supports PLAIN, SCRAM and OAUTHBEARER. Secrets are sent in the exchange and appear nowhere else.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from broker.client.kafka.errors import AuthenticationError
from broker.client.kafka.values import ISOLATION_LEVELS, READ_UNCOMMITTED
from broker.client.security_settings import OAUTHBEARER, Sasl, SecuritySettings, TokenFile, setting_value
from broker.errors import ConfigError
from broker.runtime.client_tls import TlsSettings
from broker.runtime.entropy import SystemEntropy
from broker.runtime.files import read_text
from protocol.errors import ProtocolError
from protocol.sasl.scram import HASHES, ScramClient

Address = tuple[str, int]

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@attrs.frozen
class ClientConfig:
    """Times are in ms, sizes in bytes. The defaults are those of Kafka's Java clients unless said otherwise."""

    bootstrap: tuple[Address, ...]
    client_id: str = "reactor-broker"
    tls: TlsSettings | None = None
    sasl: Sasl | None = None
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    # For a call with all its attempts.
    api_timeout_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    isolation_level: str = READ_UNCOMMITTED
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1024 * 1024
    acks: str = "all"
    enable_idempotence: bool | None = None
    compression_type: str = "none"
    # 1 MB: below the 1 MiB that a Kafka broker accepts by default, and large enough that the cost of each batch does
    # not matter.
    batch_size: int = 1_000_000
    max_request_size: int = 1_048_576
    max_in_flight: int = 5
    transaction_timeout_ms: int = 60_000
    # Settings with names that this client does not know.
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> "ClientConfig":
        """Raises ConfigError with one sentence that says what to change."""
        settings = {str(name): setting_value(value) for name, value in properties.items()}
        fields: dict[str, Any] = {}
        for name, (field, parse) in _SETTINGS.items():
            if name in settings:
                fields[field] = parse(name, settings.pop(name))
        if "bootstrap" not in fields:
            raise ConfigError("Set bootstrap.servers to the address of a broker, such as localhost:9092.")
        security = SecuritySettings.take(settings)
        return cls(**fields, tls=security.tls, sasl=security.sasl, unknown=tuple(sorted(settings)))

    @property
    def security(self) -> SecuritySettings:
        return SecuritySettings(self.tls, self.sasl)


def parse_addresses(name: str, text: str) -> tuple[Address, ...]:
    """``host:port,host:port``; IPv6 addresses in brackets."""
    addresses = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = re.sub(r"^[A-Za-z_]+://", "", part).rpartition(":")
        if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(f"{name} must be host:port or several with commas between them, not {part!r}.")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not addresses:
        raise ConfigError(f"{name} names no broker.")
    return tuple(addresses)


def _number(least: int, most: int = 2**31 - 1) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise ConfigError(f"{name} must be a whole number from {least} to {most}, not {text!r}.")
        return int(text)

    return parse


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.lower() not in allowed:
            raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {text!r}.")
        return text.lower()

    return parse


def _flag(name: str, text: str) -> bool:
    return _one_of("true", "false")(name, text) == "true"


def _acks(name: str, text: str) -> str:
    return _one_of("all", "1", "0")(name, "all" if text == "-1" else text)


def _string(_name: str, text: str) -> str:
    return text


_SETTINGS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "metadata.broker.list": ("bootstrap", parse_addresses),  # librdkafka's name; Java's name, below, takes precedence
    "bootstrap.servers": ("bootstrap", parse_addresses),
    "client.id": ("client_id", _string),
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", _number(1)),
    "request.timeout.ms": ("request_timeout_ms", _number(1)),
    "default.api.timeout.ms": ("api_timeout_ms", _number(1)),
    "delivery.timeout.ms": ("delivery_timeout_ms", _number(1)),
    "retry.backoff.ms": ("retry_backoff_ms", _number(0)),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", _number(0)),
    "isolation.level": ("isolation_level", _one_of(*ISOLATION_LEVELS)),
    "fetch.min.bytes": ("fetch_min_bytes", _number(0)),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", _number(0)),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", _number(1, 1 << 30)),
    "acks": ("acks", _acks),
    "enable.idempotence": ("enable_idempotence", _flag),
    "compression.type": ("compression_type", _one_of(*COMPRESSIONS)),
    "batch.size": ("batch_size", _number(1, 1 << 30)),
    "max.request.size": ("max_request_size", _number(1, 1 << 30)),
    "max.in.flight.requests.per.connection": ("max_in_flight", _number(1, 5)),
    "transaction.timeout.ms": ("transaction_timeout_ms", _number(1)),
}


# Sends a token and returns the broker's. Raises AuthenticationError if the broker refuses.
Exchange = Callable[[bytes], bytes]

_TOKEN_MAX_BYTES = 64 * 1024


def authenticate(sasl: Sasl, where: str, exchange: Exchange) -> None:
    """Raises AuthenticationError, and ConfigError for a token that cannot be obtained."""
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
    """OAUTHBEARER, RFC 7628."""
    refusal = exchange(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    if refusal:
        exchange(b"\x01")  # the client's part of a failed exchange; the broker's answer is the error
        raise AuthenticationError(
            f"The broker at {where} does not take the token: {refusal[:300].decode(errors='replace')}."
        )


def current_token(sasl: Sasl) -> str:
    """The token for a login now. Raises ConfigError."""
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
    # RFC 6750. A line end would begin another field of the message.
    if not token or not token.isascii() or any(letter <= " " for letter in token):
        raise ConfigError(f"{where} must give a token of printable ASCII characters without spaces.")
    return token
