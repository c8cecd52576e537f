"""Key stores and trust stores, as tools write them and as they should not be."""

import base64

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from broker.security.key_store import read_key_store, read_trust_store
from tests import certificates
from tests.certificates import authority


def key_in(form: PrivateFormat) -> str:
    return certificates.server("rsa").private.private_bytes(Encoding.PEM, form, NoEncryption()).decode()


def test_pem_key_and_certificates_have_any_order() -> None:
    server = authority().intermediate().issue("broker", hosts=["localhost"])
    first, second = server.certificate.split("-----END CERTIFICATE-----\n", 1)
    first += "-----END CERTIFICATE-----\n"
    for text in (
        server.key + first + second,
        first + second + server.key,
        second + "Bag Attributes\n" + server.key + first,
    ):
        store = read_key_store(text.encode(), None, None)
        assert store.certificate == server.x509
        assert store.certificates_pem == first + second


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_both_forms_of_rsa_keys_are_read(form: PrivateFormat) -> None:
    store = read_key_store((key_in(form) + certificates.server("rsa").certificate).encode(), None, None)
    assert store.certificate == certificates.server("rsa").x509


def test_a_key_with_a_password() -> None:
    server = certificates.server()
    data = (server.key_pem("geheim") + server.certificate).encode()
    assert read_key_store(data, None, "geheim").key_pem == server.key
    with pytest.raises(ValueError, match="cannot be read with this ssl_key_password"):
        read_key_store(data, None, "falsch")
    with pytest.raises(ValueError, match="set ssl_key_password"):
        read_key_store(data, None, None)
    # A password that is not needed does no harm, as in Kafka.
    assert read_key_store((server.key + server.certificate).encode(), None, "geheim").key_pem == server.key


def test_pkcs12() -> None:
    server = authority().intermediate().issue("broker", hosts=["localhost"])
    store = read_key_store(server.pkcs12("geheim"), "geheim", None)
    assert (store.certificates, store.key_pem) == ([server.x509, *server.chain], server.key)
    for password in ("falsch", None, ""):
        with pytest.raises(ValueError, match="cannot be read as PKCS#12 with this password"):
            read_key_store(server.pkcs12("geheim"), password, None)
    assert set(read_trust_store(server.pkcs12("geheim"), "geheim")) == {server.x509, *server.chain}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not PEM"),
        (b"\xfe\xed\xfe\xed\0\0\0\2", "JKS store: convert it with keytool"),
        (certificates.server().certificate.encode(), "has no private key"),
        (certificates.server().key.encode(), "has no certificates"),
        (
            (certificates.server().key + certificates.client().certificate).encode(),
            "no certificate for its private key",
        ),
        ((certificates.server().key * 2 + certificates.server().certificate).encode(), "more than one private key"),
        (b"-----BEGIN PRIVATE KEY-----\ngeheim\n-----END PRIVATE KEY-----", "private key that cannot be read"),
        (
            (certificates.server().key + "-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----").encode(),
            "certificate that cannot be read",
        ),
    ],
    # The keys are new in each process, and workers must agree on the names of tests.
    ids=[
        "nothing",
        "java",
        "no key",
        "no certificate",
        "another's certificate",
        "two keys",
        "damaged key",
        "damaged certificate",
    ],
)
def test_invalid_key_store_is_refused_without_its_content(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        read_key_store(data, None, None)
    assert "geheim" not in str(raised.value)


def test_certificate_of_unknown_version_cannot_be_read() -> None:
    server = certificates.server()
    der = server.x509.public_bytes(Encoding.DER).replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x12", 1)
    damaged = f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(der).decode()}-----END CERTIFICATE-----\n"
    for read in (
        lambda: read_key_store((server.key + damaged).encode(), None, None),
        lambda: read_trust_store(damaged.encode(), None),
    ):
        with pytest.raises(ValueError, match="has a certificate that cannot be read"):
            read()


def test_a_trust_store_has_certificates() -> None:
    both = authority().pem + authority("second").pem
    assert len(read_trust_store(both.encode(), None)) == 2
    with pytest.raises(ValueError, match="has no certificates"):
        read_trust_store(certificates.server().key.encode(), None)


def test_no_secret_is_in_a_repr() -> None:
    server = certificates.server()
    store = read_key_store((server.key + server.certificate).encode(), None, None)
    assert "key" not in repr(store)
