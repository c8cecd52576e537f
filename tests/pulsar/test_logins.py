"""Clients that log in over a real socket, also the real client."""

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

from broker.client.embedded import Broker
from protocol.pulsar import pulsar_pb2 as pb
from tests.pulsar.wire import Type, Wire

KEY = b"0123456789abcdef0123456789abcdef"
Start = Callable[..., Broker]


def token(**claims: Any) -> bytes:
    return jwt.encode({"sub": "bob", **claims}, KEY, "HS256").encode()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(**settings: Any) -> Broker:
            settings.setdefault("pulsar_token_secret_key", base64.b64encode(KEY).decode())
            return stack.enter_context(
                Broker(
                    str(tmp_path),
                    listeners=["pulsar+sasl://127.0.0.1:0"],
                    sasl_enabled_mechanisms="PLAIN",
                    connection_failed_authentication_delay_ms=1,
                    **settings,
                )
            )

        yield start


def principals(broker: Broker) -> list[str]:
    return [
        str(connection.principal)
        for processor in broker.server.sockets.processors
        for connection in list(processor.connections)
    ]


def test_the_real_client_logs_in_with_a_token(start: Start) -> None:
    broker = start()
    client = pulsar.Client(
        f"pulsar://{broker.address('pulsar+sasl')}", authentication=pulsar.AuthenticationToken(token().decode())
    )
    client.create_producer("t").send(b"value")
    assert {"User:bob"} == set(principals(broker))
    client.close()


def test_client_without_credentials_is_refused_like_pulsar(start: Start) -> None:
    broker = start()
    for fields in ({}, {"auth_method_name": "token", "auth_data": b"wrong"}):
        wire = Wire(broker.address("pulsar+sasl"), connect=False)
        wire.say(Type.CONNECT, pb.CommandConnect(client_version="test", **fields))  # type: ignore[arg-type]
        kind, error = wire.hear()
        assert (Type.ERROR, 2**64 - 1) == (kind, error.request_id)
        assert pb.ServerError.AuthenticationError == error.error
        assert wire.is_closed()
        wire.close()


def test_a_client_without_a_proof_may_be_anonymous(start: Start) -> None:
    broker = start(pulsar_anonymous_user="guest")
    wire = Wire(broker.address("pulsar+sasl"), auth_method_name="unknown", auth_data=b"x:y")
    assert ["User:guest"] == principals(broker)
    wire.close()


def test_a_token_is_renewed_before_it_ends(start: Start) -> None:
    broker = start()
    clock = broker.server.runtime.clock
    wire = Wire(
        broker.address("pulsar+sasl"),
        auth_method_name="token",
        auth_data=token(exp=clock.time_ms() // 1000 + 4),
        feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
    )
    kind, challenge = wire.hear()
    assert (Type.AUTH_CHALLENGE, "token") == (kind, challenge.challenge.auth_method_name)
    answer = pb.AuthData(auth_method_name="token", auth_data=token())
    wire.say(Type.AUTH_RESPONSE, pb.CommandAuthResponse(response=answer))
    wire.say(Type.PING, pb.CommandPing())
    assert Type.PONG == wire.hear()[0]
    wire.close()


def test_a_client_cannot_become_somebody_else(start: Start) -> None:
    broker = start()
    wire = Wire(broker.address("pulsar+sasl"), auth_method_name="token", auth_data=token())
    answer = pb.AuthData(auth_method_name="token", auth_data=token(sub="eve"))
    wire.say(Type.AUTH_RESPONSE, pb.CommandAuthResponse(response=answer))
    assert Type.ERROR == wire.hear()[0]
    assert wire.is_closed()
    wire.close()


def test_client_not_renewing_token_is_disconnected(start: Start) -> None:
    broker = start()
    ends = broker.server.runtime.clock.time_ms() // 1000 + 2
    wire = Wire(broker.address("pulsar+sasl"), auth_method_name="token", auth_data=token(exp=ends))
    assert wire.is_closed()
    wire.close()
