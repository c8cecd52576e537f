"""Logins byte by byte, over a raw connection."""

from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.faults.raw import Raw
from tests.scram import ScramClient

USER, PASSWORD = "alice", "a password to be recognised"


def handshake(raw: Raw, mechanism: str, version: int = 1) -> Any:
    return raw.ask(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)


def authenticate(raw: Raw, token: bytes, version: int = 2) -> Any:
    return raw.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=token)


def plain_token(user: str = USER, password: str = PASSWORD) -> bytes:
    return b"\0" + user.encode() + b"\0" + password.encode()


def log_in(raw: Raw, mechanism: str = "SCRAM-SHA-256", user: str = USER, password: str = PASSWORD) -> Any:
    """The last answer: of SaslHandshake if that refuses, of SaslAuthenticate otherwise."""
    answer = handshake(raw, mechanism)
    if answer.error_code:
        return answer
    if mechanism == "PLAIN":
        return authenticate(raw, plain_token(user, password))
    scram = ScramClient(mechanism, user, password, "nonce")
    answer = authenticate(raw, scram.first())
    if answer.error_code:
        return answer
    answer = authenticate(raw, scram.final(answer.auth_bytes))
    assert answer.error_code or scram.is_genuine(answer.auth_bytes)
    return answer


def is_in(raw: Raw) -> bool:
    """The connection's requests are answered."""
    return not raw.ask(ApiKey.LIST_GROUPS, 4).error_code


def asks_in_vain(raw: Raw) -> bool:
    """The broker closes the connection at any request."""
    raw.try_send(control.encode_request(ApiKey.METADATA, 5, 7, "raw", {"topics": None}))
    return raw.rest() == b""
