"""Who Pulsar's client is, over which connections, and what it may do then."""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests import certificates
from tests.certificates import Files
from tests.compat.pulsar.conftest import quiet_logger
from tests.compat.pulsar.helpers import numbered, receive, send, texts
from tests.compat.served import Served
from tests.process.broker_process import BrokerProcess

KEY = b"k" * 32
SCHEMES = ("pulsar+ssl", "pulsar+sasl", "pulsar+sasl+ssl", "http", "http+ssl", "kafka")

Connect = Callable[..., pulsar.Client]


def token(user: str, key: bytes = KEY, **claims: Any) -> str:
    return jwt.encode({"sub": user, **claims}, key, "HS256")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    directory = tmp_path_factory.mktemp("certificates")
    identities = {"server": certificates.server(), "alice": certificates.client("alice")}
    return {name: identity.write(directory, name) for name, identity in identities.items()}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Files]) -> Iterator[BrokerProcess]:
    with Served(
        tmp_path_factory.mktemp("guarded"),
        "authorizer_class_name=acl",
        "super_users=User:ANONYMOUS;User:root;User:CN=alice",
        f"pulsar_token_secret_key={base64.b64encode(KEY).decode()}",
        f"ssl_keystore_location={files['server'].both}",
        f"ssl_truststore_location={files['server'].authority}",
        "ssl_client_auth=requested",
        "listener.name.pulsar+sasl+ssl.ssl.client.auth=requested",
        "sasl_enabled_mechanisms=SCRAM-SHA-256,PLAIN",
        "connection_failed_authentication_delay_ms=0",
        listener="pulsar://127.0.0.1:0",
        more_listeners=[f"{scheme}://127.0.0.1:0" for scheme in SCHEMES],
    ) as broker:
        yield broker
        assert broker.stop() == 0
        assert [] == broker.errors


@pytest.fixture(scope="module")
def admin(guarded: BrokerProcess) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": guarded.addresses["kafka"]})
    secret = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    for future in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("root", secret, b"wonderland")]
    ).values():
        future.result(30)
    return admin


@pytest.fixture
def guests(guarded: BrokerProcess, files: dict[str, Files]) -> Iterator[Connect]:
    """Makes clients of a scheme's listener, which are closed at the end."""
    made: list[pulsar.Client] = []

    def connect(scheme: str, authentication: Any = None, patience_s: int = 30) -> pulsar.Client:
        protocol = scheme.partition("+")[0] + ("s" if scheme.startswith("http") and "ssl" in scheme else "")
        if scheme.startswith("pulsar") and "ssl" in scheme:
            protocol = "pulsar+ssl"
        client = pulsar.Client(
            f"{protocol}://{guarded.addresses[scheme]}",
            authentication,
            operation_timeout_seconds=patience_s,
            tls_trust_certs_file_path=str(files["server"].authority),
            tls_validate_hostname=True,
            logger=quiet_logger(),
        )
        made.append(client)
        return client

    yield connect
    for client in made:
        client.close()


def exchange(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    send(client.create_producer(topic), 3)
    assert numbered(3) == texts(receive(consumer, 3))


@pytest.mark.parametrize("scheme", ["pulsar+ssl", "pulsar+sasl+ssl"])
def test_encrypted(guests: Connect, name: str, scheme: str) -> None:
    exchange(guests(scheme, pulsar.AuthenticationToken(token("root"))), name)


def test_a_broker_that_the_client_does_not_trust(guarded: BrokerProcess, tmp_path: Path, name: str) -> None:
    stranger = certificates.untrusted().write(tmp_path)
    client = pulsar.Client(
        f"pulsar+ssl://{guarded.addresses['pulsar+ssl']}",
        tls_trust_certs_file_path=str(stranger.authority),
        operation_timeout_seconds=2,
        logger=quiet_logger(),
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(name)
    client.close()


@pytest.mark.parametrize("scheme", ["pulsar+ssl", "pulsar+sasl+ssl"])
def test_a_certificate_says_who_the_client_is(guests: Connect, files: dict[str, Files], name: str, scheme: str) -> None:
    alice = pulsar.AuthenticationTLS(str(files["alice"].certificate), str(files["alice"].key))
    exchange(guests(scheme, alice), name)


def test_tokens(guests: Connect, name: str) -> None:
    exchange(guests("pulsar+sasl", pulsar.AuthenticationToken(token("root"))), name)


def test_tokens_from_a_function_are_renewed(guests: Connect, name: str) -> None:
    asked = []

    def supply() -> str:
        asked.append(time.time())
        return token("root", exp=int(time.time()) + 2)

    client = guests("pulsar+sasl", pulsar.AuthenticationToken(supply))
    producer = client.create_producer(name)
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline or len(asked) < 2:
        producer.send(b"value")
        time.sleep(0.1)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(token("root", b"another key, also of 32 bytes...."), id="another key"),
        pytest.param(token("root", exp=1), id="expired"),
        pytest.param("nonsense", id="nonsense"),
    ],
)
def test_tokens_that_are_not_good(guests: Connect, name: str, bad: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        guests("pulsar+sasl", pulsar.AuthenticationToken(bad), patience_s=5).create_producer(name)


def test_client_without_proof_is_refused(guests: Connect, name: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        guests("pulsar+sasl", patience_s=5).create_producer(name)


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("scheme", ["pulsar+sasl", "http"])
def test_passwords(guests: Connect, name: str, scheme: str) -> None:
    good = pulsar.AuthenticationBasic("root", "wonderland")
    bad = pulsar.AuthenticationBasic("root", "looking-glass")
    exchange(guests("pulsar+sasl", good), name)
    with pytest.raises(pulsar.PulsarException):
        guests(scheme, bad, patience_s=5).create_producer(name)


def test_rights(guests: Connect, admin: AdminClient, name: str) -> None:
    visitor = guests("pulsar+sasl", pulsar.AuthenticationToken(token("visitor")))
    root = guests("pulsar+sasl", pulsar.AuthenticationToken(token("root")))
    root.create_producer(name).send(b"value")
    for attempt in (lambda: visitor.create_producer(name), lambda: visitor.subscribe(name, "sub")):
        with pytest.raises(pulsar.PulsarException):
            attempt()
    allow(admin, ResourceType.TOPIC, name, AclOperation.WRITE)
    visitor.create_producer(name).send(b"value")
    with pytest.raises(pulsar.AuthorizationError):
        visitor.subscribe(name, "sub")
    allow(admin, ResourceType.TOPIC, name, AclOperation.READ)
    with pytest.raises(pulsar.AuthorizationError):
        visitor.subscribe(name, "sub")
    allow(admin, ResourceType.GROUP, "sub", AclOperation.READ)
    assert visitor.subscribe(name, "sub")


def allow(admin: AdminClient, kind: ResourceType, name: str, operation: AclOperation) -> None:
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:visitor", "*", operation, AclPermissionType.ALLOW
    )
    for future in admin.create_acls([binding]).values():
        future.result(30)
