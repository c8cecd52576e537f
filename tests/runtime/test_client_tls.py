"""What a client trusts and shows, from every form of a key and a certificate; and in which words a handshake fails."""

import ssl
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from broker.runtime.client_tls import TlsRefused, TlsSettings, refusal, tls_context
from tests import certificates

PASSWORD = "s3cret-Ä"


@pytest.fixture
def files(tmp_path: Path) -> certificates.Files:
    """Of the client alice."""
    return certificates.client().write(tmp_path, password=PASSWORD)


@pytest.fixture
def server(tmp_path: Path) -> ssl.SSLContext:
    """Asks for a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=certificates.authority().pem)
    written = certificates.server().write(tmp_path, "server")
    context.load_cert_chain(written.certificate, written.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def shown(settings: TlsSettings, server: ssl.SSLContext) -> str:
    """The name in the certificate that the server sees, after a handshake in memory."""
    seen = certificates.shake_hands(tls_context(settings), server, "localhost").getpeercert()
    assert seen is not None
    (((_, name),),) = seen["subject"]  # type: ignore[misc]
    return str(name)


def test_every_form_of_key_and_certificate_is_equal(
    tmp_path: Path, files: certificates.Files, server: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, authority = certificates.client(), certificates.authority()
    trusted = tmp_path / "trusted.p12"
    trusted.write_bytes(
        pkcs12.serialize_key_and_certificates(
            None, None, None, [authority.identity.x509], BestAvailableEncryption(PASSWORD.encode())
        )
    )
    passing = tmp_path / "passing"
    passing.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(passing))
    ca = str(files.authority)
    encrypted = alice.key_pem(PASSWORD)
    for settings in (
        TlsSettings(ca_file=ca, certificate_file=str(files.both)),
        TlsSettings(ca_file=ca, certificate_file=str(files.certificate), key_file=str(files.key)),
        TlsSettings(ca_data=authority.pem, certificate_data=alice.certificate, key_data=alice.key),
        TlsSettings(ca_data=authority.pem, certificate_data=alice.key + alice.certificate),
        TlsSettings(ca_file=ca, certificate_data=alice.certificate, key_data=encrypted, key_password=PASSWORD),
        TlsSettings(ca_file=ca, key_pkcs12=str(files.pkcs12), key_password=PASSWORD),
        TlsSettings(ca_pkcs12=str(trusted), ca_password=PASSWORD, certificate_file=str(files.both)),
    ):
        assert settings.has_certificate
        assert "alice" == shown(settings, server)
        assert PASSWORD not in repr(settings)
        assert "PRIVATE KEY" not in repr(settings)
        assert [] == list(passing.iterdir())


def test_unusable_input_is_named_without_showing_the_password(tmp_path: Path, files: certificates.Files) -> None:
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_text(certificates.client().key_pem(PASSWORD) + certificates.client().certificate)
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for settings, said in (
        (TlsSettings(ca_file="/no/such.pem"), "/no/such.pem: No such file"),
        (TlsSettings(ca_file=str(nothing)), "nothing.pem: no"),
        (TlsSettings(ca_pkcs12="/no/such.p12"), "/no/such.p12"),
        (TlsSettings(ca_pkcs12=str(files.pkcs12), ca_password="wrong-one"), "another password"),
        (TlsSettings(certificate_file="/no/such.pem"), "/no/such.pem: No such file"),
        (TlsSettings(certificate_file=str(nothing)), "nothing.pem: no"),
        (TlsSettings(certificate_file=str(files.certificate)), "tls.crt: "),
        (TlsSettings(certificate_file=str(encrypted)), "its key has another password"),
        (TlsSettings(certificate_file=str(encrypted), key_password="wrong-one"), "its key has another password"),
        (TlsSettings(certificate_data=encrypted.read_text(), key_password="wrong-one"), "another password"),
        (TlsSettings(key_pkcs12=str(files.pkcs12), key_password="wrong-one"), "another password"),
        (TlsSettings(key_pkcs12=str(nothing), key_password="wrong-one"), "no PKCS#12 store"),
    ):
        with pytest.raises((OSError, ValueError)) as failure:
            tls_context(settings)
        assert said in str(failure.value), settings
        assert "wrong-one" not in str(failure.value)


def test_old_versions_are_not_spoken() -> None:
    assert ssl.TLSVersion.TLSv1_2 == tls_context(TlsSettings()).minimum_version


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("WRONG_VERSION_NUMBER", "speaks no TLS"),
        ("UNEXPECTED_EOF_WHILE_READING", "as a listener without TLS does"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "asks for a certificate of this client"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "asks for a certificate of this client"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not accept the certificate of this client"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "does not accept the certificate of this client"),
        ("NO_SHARED_CIPHER", "no shared cipher"),
    ],
)
def test_a_failed_handshake_says_what_to_change(reason: str, said: str) -> None:
    error = ssl.SSLError(1, "text")
    error.reason = reason
    assert isinstance(refusal(error), TlsRefused)
    assert said in str(refusal(error))
