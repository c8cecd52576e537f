"""TLS of one listener: what it is made of, reloading, and who its clients are."""

import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from broker.config import load
from broker.errors import ConfigError
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.security import tls_listener
from broker.security.principal import ANONYMOUS, NoRuleMatches, Principal
from broker.security.tls_listener import TlsListener
from tests import certificates
from tests.certificates import LOCAL, Files, Identity, authority


class Events:
    """Stands in for the log."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **values: self.seen.append((event, values))

    def names(self) -> list[str]:
        return [event for event, _ in self.seen]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    events = Events()
    monkeypatch.setattr(tls_listener, "log", events)
    return events


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return certificates.server().write(tmp_path)


def listener(**settings: Any) -> TlsListener:
    return TlsListener("kafka", load(**settings), SystemDisk(), SystemClock())


def shown(tls: TlsListener, directory: Path) -> bytes:
    """The certificate that a new client sees."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls._loaded.context.wrap_bio(up, down, server_side=True)
    client = certificates.client_context(directory=directory).wrap_bio(down, up, server_hostname="localhost")
    for _ in range(5):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return client.getpeercert(True) or b""


def put(identity: Identity, at: Path) -> None:
    at.write_text(identity.key + identity.certificate)


# -- what it is made of -----------------------------------------------------------------------------------------------


def test_certificate_is_accepted_in_every_form(files: Files, tmp_path: Path) -> None:
    server = certificates.server()
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_text(server.key_pem("geheim"))
    for settings in (
        {"ssl_keystore_location": str(files.both)},
        {"ssl_keystore_location": str(files.pkcs12), "ssl_keystore_password": "changeit"},
        {"ssl_keystore_key": server.key, "ssl_keystore_certificate_chain": server.certificate},
        {"ssl_keystore_key": str(files.key), "ssl_keystore_certificate_chain": str(files.certificate)},
        {
            "ssl_keystore_key": str(encrypted),
            "ssl_keystore_certificate_chain": server.certificate,
            "ssl_key_password": "geheim",
        },
    ):
        assert shown(listener(**settings), tmp_path) == x509_der(server)


def x509_der(identity: Identity) -> bytes:
    return ssl.PEM_cert_to_DER_cert(identity.certificate)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "ssl_keystore_location, or ssl_keystore_key"),
        ({"ssl_keystore_location": "BOTH", "ssl_keystore_key": "x"}, "not both"),
        ({"ssl_keystore_location": "/nowhere/geheim.pem"}, r"/nowhere/geheim\.pem cannot be read \(No such file"),
        ({"ssl_keystore_key": "/nowhere/geheim"}, r"the file in ssl_keystore_key cannot be read \(No such file"),
        ({"ssl_keystore_location": "CA"}, "the key store has no private key"),
        ({"ssl_keystore_location": "P12", "ssl_keystore_password": "geheim"}, "cannot be read as PKCS#12"),
        ({"ssl_keystore_location": "BOTH", "ssl_client_auth": "required"}, "no ssl_truststore_location says which"),
        (
            {"ssl_keystore_location": "BOTH", "ssl_client_auth": "required", "ssl_truststore_location": "KEY"},
            "the trust store has no certificates",
        ),
        (
            {"ssl_keystore_location": "BOTH", "ssl_truststore_location": "CA", "ssl_truststore_certificates": "x"},
            "ssl_truststore_location and ssl_truststore_certificates are both set",
        ),
        ({"ssl_keystore_location": "BOTH", "ssl_cipher_suites": ("NONSENSE",)}, "no cipher suite 'NONSENSE'"),
        ({"ssl_keystore_location": "BOTH", "ssl_principal_mapping_rules": "x"}, "ssl_principal_mapping_rules"),
    ],
)
def test_impossible_settings_are_reported_at_the_start(settings: dict[str, Any], words: str, files: Files) -> None:
    paths = {"BOTH": files.both, "CA": files.authority, "P12": files.pkcs12, "KEY": files.key}
    with pytest.raises(ConfigError, match=words):
        listener(**{key: str(paths[value]) if value in paths else value for key, value in settings.items()})  # type: ignore[call-overload]


# -- reloading --------------------------------------------------------------------------------------------------------


def test_renewed_certificate_is_loaded_and_unchanged_kept(files: Files, tmp_path: Path, events: Events) -> None:
    tls = listener(ssl_keystore_location=str(files.both))
    assert tls.reload() is None
    assert (tls.reloads, events.names()) == (0, [])
    renewed = authority().issue("broker", hosts=[*LOCAL, "more.example"])
    put(renewed, files.both)
    assert tls.reload() is None
    assert shown(tls, tmp_path) == x509_der(renewed)
    assert (tls.reloads, tls.failed_reloads, events.names()) == (1, 0, ["certificate_reloaded"])


def test_bad_file_keeps_certificate_and_logs_once(files: Files, tmp_path: Path, events: Events) -> None:
    tls = listener(ssl_keystore_location=str(files.both))
    before = shown(tls, tmp_path)
    good = files.both.read_bytes()
    other = authority().issue("broker", hosts=LOCAL)
    for bad in (b"", good[:200], certificates.server().key.encode() + other.certificate.encode()):
        files.both.write_bytes(bad)
        for _ in range(3):
            assert "the key store" in (tls.reload() or "")
        assert shown(tls, tmp_path) == before
    files.both.unlink()
    assert "cannot be read" in (tls.reload() or "")
    assert (tls.reloads, tls.failed_reloads) == (0, 4)
    assert events.names() == ["certificate_refused"] * 4
    files.both.write_bytes(good)  # as it was
    assert tls.reload() is None
    files.both.unlink()
    assert tls.reload() is not None
    assert events.names() == ["certificate_refused"] * 5  # bad again, and said again


@pytest.mark.parametrize(
    ("new", "setting", "words"),
    [
        (
            lambda: authority().issue("other", hosts=LOCAL),
            "ssl_allow_dn_changes",
            "CN=other and the old one for CN=broker",
        ),
        (
            lambda: authority().issue("broker", hosts=["localhost"]),
            "ssl_allow_san_changes",
            r"lacks the names 127\.0\.0\.1, ::1",
        ),
    ],
)
def test_certificate_of_another_name_needs_permission(
    new: Any, setting: str, words: str, files: Files, tmp_path: Path
) -> None:
    original = files.both.read_bytes()
    replacement = new()
    for allowed in (False, True):
        files.both.write_bytes(original)
        tls = listener(ssl_keystore_location=str(files.both), **{setting: allowed})
        put(replacement, files.both)
        reason = tls.reload()
        assert (reason is None) == allowed
        assert (shown(tls, tmp_path) == x509_der(replacement)) == allowed
        if reason is not None:
            with pytest.raises(AssertionError, match=words):
                raise AssertionError(reason)


def test_reload_takes_new_settings_or_changes_nothing(files: Files) -> None:
    tls = listener(ssl_keystore_location=str(files.both))
    certificate = x509_der(certificates.client())
    assert tls.principal(certificate) == Principal("User", "CN=alice")
    good = {"ssl_keystore_location": str(files.both), "ssl_principal_mapping_rules": "RULE:^CN=(.*)$/$1/U"}
    assert "no rule" not in (tls.reload(load(**good, ssl_client_auth="required")) or "")  # type: ignore[arg-type]
    assert tls.principal(certificate) == Principal("User", "CN=alice")
    assert tls.reload(load(**good)) is None  # type: ignore[arg-type]
    assert tls.principal(certificate) == Principal("User", "ALICE")


def test_the_trust_store_is_reloaded(files: Files, tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    shutil.copy(files.authority, trust)
    tls = listener(
        ssl_keystore_location=str(files.both), ssl_truststore_location=str(trust), ssl_client_auth="required"
    )
    before = tls._loaded.context.get_ca_certs(True)
    trust.write_text(authority("another").pem)
    assert tls.reload() is None
    assert tls._loaded.context.get_ca_certs(True) != before


def test_a_certificate_that_expires_soon_is_announced(tmp_path: Path, events: Events) -> None:
    files = authority().issue("broker", hosts=LOCAL, valid_days=(-1, 10)).write(tmp_path)
    tls = listener(ssl_keystore_location=str(files.both))
    assert events.names() == ["certificate_expires"]
    assert tls.expires_s == pytest.approx(SystemClock().time_ms() / 1000 + 10 * 86_400, abs=600)


# -- who clients are --------------------------------------------------------------------------------------------------


def test_principals(files: Files) -> None:
    tls = listener(ssl_keystore_location=str(files.both), ssl_principal_mapping_rules="RULE:^CN=([a-z]+),O=ACME$/$1/,")
    organisation = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ACME"), x509.NameAttribute(NameOID.COMMON_NAME, "bob")]
    )
    assert tls.principal(None) == ANONYMOUS
    assert tls.principal(x509_der(authority().issue(subject=organisation))) == Principal("User", "bob")
    with pytest.raises(NoRuleMatches):
        tls.principal(x509_der(certificates.client("alice")))


def test_no_secret_is_in_a_repr(files: Files) -> None:
    tls = listener(ssl_keystore_location=str(files.both))
    assert "PRIVATE" not in repr(tls) + repr(tls._loaded) + repr(tls._loaded.sources)
