"""A broker whose clients log in, and raw connections to it that may send anything in any order."""

from typing import Any, Self

from broker.client import Broker
from broker.runtime.entropy import SystemEntropy
from broker.security.credentials import make_row
from protocol.kafka.api_keys import ApiKey
from protocol.sasl.scram import ScramClient
from tests.kafka_connection import LENGTH, KafkaConnection

USER, PASSWORD = "alice", "s3cret-Ä"
CLIENT = {"client_software_name": "test", "client_software_version": "1"}


class SaslBroker(Broker):
    """``listeners`` and other settings are optional. The user ``alice`` exists with both kinds of SCRAM."""

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "listeners": ("kafka+sasl://127.0.0.1:0",),
            "sasl_enabled_mechanisms": ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"),
            "connection_failed_authentication_delay_ms": 0,
        }
        super().__init__(**defaults | settings)

    def __enter__(self) -> Self:
        super().__enter__()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            self.add(USER, mechanism, PASSWORD)
        return self

    def add(self, user: str, mechanism: str, password: str) -> None:
        self.server.security.credentials.alter([make_row(user, mechanism, password, SystemEntropy())], [])

    def connect(self) -> "Connection":
        return Connection(self.bootstrap_servers)

    def logins(self) -> dict[str, float]:
        """Their numbers by result, over all mechanisms."""
        counted: dict[str, float] = {}
        for (_, _, result), count in self.server.security.logins.read().items():
            counted[result] = counted.get(result, 0) + count
        return counted


class Connection(KafkaConnection):
    """``with broker.connect() as connection``."""

    def token(self, token: bytes) -> bytes:
        """After version 0 of SaslHandshake."""
        self.send(LENGTH.pack(len(token)) + token)
        return self.frame()[4:]

    def handshake(self, mechanism: str = "SCRAM-SHA-256", version: int = 1) -> Any:
        return self.ask(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        return self.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=token)

    def log_in(
        self, mechanism: str = "SCRAM-SHA-256", user: str = USER, password: str = PASSWORD, version: int = 2
    ) -> Any:
        """The last answer of a login; an earlier one if it is an error."""
        answer = self.handshake(mechanism)
        if answer.error_code:
            return answer
        if mechanism == "PLAIN":
            return self.authenticate(f"\0{user}\0{password}".encode(), version)
        client = ScramClient(mechanism, user, password, "nonce")
        answer = self.authenticate(client.first(), version)
        if not answer.error_code:
            answer = self.authenticate(client.final(answer.auth_bytes), version)
        if not answer.error_code:
            client.verify(answer.auth_bytes)
        return answer

    def metadata(self) -> Any:
        """A request that needs a login."""
        return self.ask(ApiKey.METADATA, 9, topics=[], allow_auto_topic_creation=False)
