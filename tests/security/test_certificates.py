"""Certificates as a TLS client and server take them, in memory."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from broker.errors import ConfigError
from broker.runtime.clock import SystemClock
from broker.security.certificates import (
    Identity,
    load_authority,
    make_authority,
    sign_client,
    sign_server,
)
from tests.certificates import shake_hands

DAYS = 7


def now() -> float:
    return SystemClock.time_ms() / 1000


@pytest.fixture
def authority() -> Identity:
    return make_authority("test", now(), DAYS)


def context(tmp_path: Path, identity: Identity | None, authority: Identity, *, server: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(cadata=authority.certificate_pem.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    if identity is not None:
        path = tmp_path / f"{server}.pem"
        path.write_bytes(identity.key_pem() + identity.certificate_pem)
        made.load_cert_chain(path)
    return made


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "broker.example"])
def test_client_and_server_accept_every_name(tmp_path: Path, authority: Identity, name: str) -> None:
    server = sign_server(authority, ["localhost", "127.0.0.1", "[::1]", "broker.example"], now(), DAYS)
    client = sign_client(authority, "alice, the first", now(), DAYS)
    seen = shake_hands(
        context(tmp_path, client, authority, server=False), context(tmp_path, server, authority, server=True), name
    ).getpeercert()
    assert seen is not None
    assert ((("commonName", "alice, the first"),),) == seen["subject"]


def test_another_name_is_refused(tmp_path: Path, authority: Identity) -> None:
    server = sign_server(authority, ["localhost"], now(), DAYS)
    client = sign_client(authority, "alice", now(), DAYS)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(
            context(tmp_path, client, authority, server=False),
            context(tmp_path, server, authority, server=True),
            "127.0.0.1",
        )


def test_a_client_s_certificate_serves_no_server(tmp_path: Path, authority: Identity) -> None:
    client = sign_client(authority, "localhost", now(), DAYS)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(
            context(tmp_path, client, authority, server=False),
            context(tmp_path, client, authority, server=True),
            "localhost",
        )


def test_an_authority_signs_again_after_it_was_loaded(tmp_path: Path, authority: Identity) -> None:
    loaded = load_authority(authority.certificate_pem, authority.key_pem())
    server = sign_server(loaded, ["localhost"], now(), DAYS)
    client = sign_client(loaded, "alice", now(), DAYS)
    shake_hands(
        context(tmp_path, client, authority, server=False),
        context(tmp_path, server, authority, server=True),
        "localhost",
    )


def test_invalid_authority_is_not_loaded(authority: Identity) -> None:
    other = make_authority("other", now(), DAYS)
    client = sign_client(authority, "alice", now(), DAYS)
    for certificate, key in (
        (authority.certificate_pem, other.key_pem()),
        (client.certificate_pem, client.key_pem()),
        (b"", b""),
        (authority.certificate_pem, authority.key_pem("secret")),
    ):
        with pytest.raises(ConfigError) as failure:
            load_authority(certificate, key)
        assert "PRIVATE" not in str(failure.value)


@pytest.mark.parametrize("name", ["", " ", "a b", "host:9092", "h/x", "ä.example", "x" * 254])
def test_invalid_host_name_is_refused(authority: Identity, name: str) -> None:
    with pytest.raises(ConfigError):
        sign_server(authority, ["localhost", name], now(), DAYS)


@pytest.mark.parametrize("name", ["", " ", "x" * 65])
def test_invalid_subject_is_refused(authority: Identity, name: str) -> None:
    with pytest.raises(ConfigError):
        sign_client(authority, name, now(), DAYS)


def test_a_key_store_has_key_certificate_and_authority(authority: Identity) -> None:
    client = sign_client(authority, "alice", now(), DAYS)
    key, certificate, more = pkcs12.load_key_and_certificates(client.pkcs12("alice", "secret"), b"secret")
    assert key is not None
    assert client.key.private_numbers() == key.private_numbers()  # type: ignore[union-attr]
    assert (client.certificate, [authority.certificate]) == (certificate, more)


def test_the_key_does_not_show(authority: Identity) -> None:
    assert "key=" not in repr(authority)
