"""One broker with a listener of each kind, for all clients: certificates, two users, and an authority for tokens."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests import certificates
from tests.compat.security.access import Access
from tests.process.broker_process import BrokerProcess

USER, PASSWORD = "alice", "Secret-of-Alice, to be recognised: =1"
MUTUAL, PLAIN_ONLY = "mutual", "plain-only"
LISTENERS = (
    "kafka+ssl://127.0.0.1:0",
    f"kafka+ssl://127.0.0.1:0?name={MUTUAL}",
    "kafka+sasl://127.0.0.1:0",
    "kafka+sasl+ssl://127.0.0.1:0",
    f"kafka+sasl://127.0.0.1:0?name={PLAIN_ONLY}",
)
AUDIENCE = "broker"


@attrs.frozen
class Secured:
    """The broker, and what its clients need."""

    process: BrokerProcess
    files: Path
    token_key: rsa.RSAPrivateKey

    def servers(self, listener: str) -> str:
        # By name: 127.0.0.1 would do, and some clients send no SNI for an address.
        return self.process.addresses[listener].replace("127.0.0.1", "localhost")

    def token(self, user: str = USER, *, lifetime_s: float = 3600, audience: str = AUDIENCE) -> str:
        now = time.time()
        claims = {"sub": user, "aud": audience, "iat": int(now), "exp": int(now + lifetime_s)}
        return jwt.encode(claims, self.token_key, algorithm="RS256", headers={"kid": "test"})


def jwks(key: rsa.RSAPrivateKey) -> str:
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return json.dumps({"keys": [{**public, "kid": "test", "alg": "RS256", "use": "sig"}]})


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("security")
    server = certificates.server().write(directory, "server")
    certificates.client(USER).write(directory, "client")
    key = rsa.generate_private_key(65537, 2048)
    (directory / "jwks.json").write_text(jwks(key))
    settings = (
        "group_min_session_timeout_ms=500",
        f"ssl_keystore_location={server.both}",
        f"ssl_truststore_location={server.authority}",
        "ssl_client_auth=requested",
        f"listener.name.{MUTUAL}.ssl.client.auth=required",
        "sasl_enabled_mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"listener.name.{PLAIN_ONLY}.sasl.enabled.mechanisms=PLAIN",
        f"sasl_oauthbearer_jwks_endpoint_url=file://{directory}/jwks.json",
        f"sasl_oauthbearer_expected_audience={AUDIENCE}",
        "logging_level=debug",
    )
    with BrokerProcess(directory, *settings, more_listeners=LISTENERS) as broker:
        put_user(broker.address, USER, PASSWORD)
        yield Secured(broker, directory, key)
        assert broker.stop() == 0
        assert [] == broker.errors
        for secret in (PASSWORD, hashlib.sha256(PASSWORD.encode()).hexdigest(), "BEGIN PRIVATE KEY", "eyJ"):
            assert secret not in broker.output


def put_user(servers: str, user: str, password: str) -> None:
    from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    admin = AdminClient({"bootstrap.servers": servers})
    changes = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for change in changes:  # one mechanism of a user in one request
        for result in admin.alter_user_scram_credentials([change]).values():
            result.result(30)


def access(secured: Secured, protocol: str, mechanism: str = "", *, certificate: bool = False) -> Access:
    """A client that is let in."""
    files = secured.files
    encrypted, logs_in = protocol.endswith("SSL"), bool(mechanism)
    with_password = logs_in and mechanism != "OAUTHBEARER"
    return Access(
        protocol,
        mechanism,
        user=USER if with_password else "",
        password=PASSWORD if with_password else "",
        token=secured.token() if mechanism == "OAUTHBEARER" else "",
        trust=files / "server-ca.crt" if encrypted else None,
        certificate=files / "client.crt" if certificate else None,
        key=files / "client.key" if certificate else None,
    )
