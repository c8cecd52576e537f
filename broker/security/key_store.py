"""Key stores and trust stores: parses PEM or PKCS#12 into certificates and a key. Pure.

Errors are ``ValueError`` with one sentence, which never contains the content of a store or a password.
"""

import re
from collections.abc import Sequence

import attrs
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)

_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_JKS = b"\xfe\xed\xfe\xed"


@attrs.frozen(eq=False)
class KeyStore:
    """A key, its certificate, and the certificates of the authorities above it, without the root, in ascending
    order."""

    key: PrivateKeyTypes = attrs.field(repr=False)
    certificates: Sequence[x509.Certificate]

    @property
    def certificate(self) -> x509.Certificate:
        return self.certificates[0]

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    @property
    def certificates_pem(self) -> str:
        return as_pem(self.certificates)


def as_pem(certificates: Sequence[x509.Certificate]) -> str:
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in certificates)


def subject_of(certificate: bytes) -> x509.Name:
    """``certificate``: in DER. Raises ValueError."""
    return x509.load_der_x509_certificate(certificate).subject


def names_of(certificate: x509.Certificate) -> set[str]:
    """The names and addresses for which it is valid."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def read_key_store(data: bytes, password: str | None, key_password: str | None) -> KeyStore:
    """``password``: of a PKCS#12 file. ``key_password``: of the key in a PEM file, and of a PKCS#12 file without
    ``password``."""
    if _is_pem(data):
        return _checked(*_from_pem(data, key_password))
    key, certificate, others = _from_pkcs12(data, password or key_password)
    if key is None or certificate is None:
        raise ValueError("has no private key with a certificate")
    return _checked(key, [certificate, *others])


def read_trust_store(data: bytes, password: str | None) -> list[x509.Certificate]:
    """The certificates of a store, at least one."""
    if _is_pem(data):
        certificates = _certificates(data)
    else:
        _, certificate, others = _from_pkcs12(data, password)
        certificates = [*([certificate] if certificate is not None else []), *others]
    if not certificates:
        raise ValueError("has no certificates")
    return certificates


def _is_pem(data: bytes) -> bool:
    if data.startswith(_JKS):
        raise ValueError(
            "is a JKS store: convert it with keytool -importkeystore -srckeystore OLD -destkeystore NEW -deststoretype pkcs12"
        )
    return b"-----BEGIN " in data


def _from_pem(data: bytes, password: str | None) -> tuple[PrivateKeyTypes, list[x509.Certificate]]:
    keys = [match for match in _PEM.finditer(data) if match[1].endswith(b"PRIVATE KEY")]
    if len(keys) != 1:
        raise ValueError("has no private key" if not keys else "has more than one private key")
    encrypted = b"ENCRYPTED" in keys[0][0]
    if encrypted and password is None:
        raise ValueError("has a private key with a password: set ssl_key_password")
    try:
        key = load_pem_private_key(keys[0][0], password.encode() if encrypted and password is not None else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        wrong = "cannot be read with this ssl_key_password" if encrypted else "cannot be read"
        raise ValueError(f"has a private key that {wrong}") from None
    return key, _certificates(data)


def _certificates(data: bytes) -> list[x509.Certificate]:
    try:
        return [
            x509.load_pem_x509_certificate(match[0])
            for match in _PEM.finditer(data)
            if match[1] in (b"CERTIFICATE", b"X509 CERTIFICATE", b"TRUSTED CERTIFICATE")
        ]
    except (ValueError, x509.InvalidVersion):
        raise ValueError("has a certificate that cannot be read") from None


def _from_pkcs12(
    data: bytes, password: str | None
) -> tuple[PrivateKeyTypes | None, x509.Certificate | None, list[x509.Certificate]]:
    try:
        key, certificate, others = pkcs12.load_key_and_certificates(
            data, password.encode() if password is not None else None
        )
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise ValueError("is not PEM, and cannot be read as PKCS#12 with this password") from None
    return key, certificate, others


def _checked(key: PrivateKeyTypes, certificates: list[x509.Certificate]) -> KeyStore:
    """The key store with the key's certificate first and the chain above it in order, whatever their order in the
    file."""
    public = _public(key)
    own = next((each for each in certificates if _public(each) == public), None)
    if own is None:
        raise ValueError("has no certificates" if not certificates else "has no certificate for its private key")
    chain = [own]
    left = [each for each in certificates if each is not own]
    while above := next((each for each in left if each.subject == chain[-1].issuer), None):
        left.remove(above)
        chain.append(above)
    return KeyStore(key, chain)


def _public(owner: PrivateKeyTypes | x509.Certificate) -> bytes:
    try:
        return owner.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except UnsupportedAlgorithm:
        raise ValueError("has a key of a kind that is not known here") from None
