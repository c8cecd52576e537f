"""Makes certificates for development and tests: an authority, and the certificates that it signs. ECDSA P-256 has the
cheapest handshake.

Pure: the caller passes the time and writes the files; ``cryptography`` does the rest. A key has a password only if the
caller passes one, and there is no revocation: this does not replace an organisation's authority.
"""

import datetime
import ipaddress
from collections.abc import Iterable

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker.errors import ConfigError

# X.520 limits common names to this length, and OpenSSL refuses longer names.
_NAME_MAX = 64
_DAY = datetime.timedelta(days=1)
# Certificates are valid from an hour ago, for clients whose clocks are behind.
_EARLIER = datetime.timedelta(hours=1)


@attrs.frozen(eq=False)
class Identity:
    """A certificate and its key. ``authority``: the signer's certificate; None for the authority itself."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = attrs.field(repr=False)
    authority: x509.Certificate | None = None

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self, password: str | None = None) -> bytes:
        """The key as PKCS#8."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption(password))

    def pkcs12(self, name: str, password: str) -> bytes:
        """A key store with the key, the certificate and the authority's certificate, as Java and Windows read it."""
        authorities = [self.authority] if self.authority is not None else None
        return pkcs12.serialize_key_and_certificates(
            name.encode(), self.key, self.certificate, authorities, _encryption(password)
        )


def make_authority(name: str, now_s: float, days: int) -> Identity:
    """A new authority. It may sign servers and clients, and no other authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _builder(subject, subject, key, key.public_key(), now_s, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return Identity(builder.sign(key, hashes.SHA256()), key)


def load_authority(certificate_pem: bytes, key_pem: bytes) -> Identity:
    """Raises ConfigError unless these are the certificate and the key of an authority made here."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        key = load_pem_private_key(key_pem, None)
        may_sign = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise ConfigError(f"The certificate and the key of the authority cannot be read: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not may_sign or key.public_key() != certificate.public_key():
        raise ConfigError("The certificate and the key of the authority do not belong together.")
    return Identity(certificate, key)


def sign_server(authority: Identity, names: Iterable[str], now_s: float, days: int) -> Identity:
    """``names``: host names and addresses under which clients connect. Brokers may also use it as clients of each other."""
    names = tuple(names)
    kinds = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _signed(authority, names[0], kinds, tuple(map(_general_name, names)), now_s, days)


def sign_client(authority: Identity, name: str, now_s: float, days: int) -> Identity:
    """The subject is ``CN=name``, from which a broker derives the principal."""
    return _signed(authority, name, [ExtendedKeyUsageOID.CLIENT_AUTH], (), now_s, days)


def _signed(
    authority: Identity,
    name: str,
    kinds: list[x509.ObjectIdentifier],
    names: tuple[x509.GeneralName, ...],
    now_s: float,
    days: int,
) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    builder = _builder(_subject(name), issuer.subject, key, authority.key.public_key(), now_s, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(kinds), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Identity(builder.sign(authority.key, hashes.SHA256()), key, issuer)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing: ec.EllipticCurvePublicKey,
    now_s: float,
    days: int,
) -> x509.CertificateBuilder:
    # Python 3.13 rejects certificates without the two key identifiers.
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing), critical=False)
    )


def _subject(name: str) -> x509.Name:
    if not name.strip() or len(name) > _NAME_MAX:
        raise ConfigError(f"Give the certificate a name of 1 to {_NAME_MAX} characters, not {name!r}.")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if not name or len(name) > 253 or not name.isascii() or any(letter.isspace() or letter in "/:" for letter in name):
        raise ConfigError(f"Write {name!r} as a host name or an address, without a port.")
    return x509.DNSName(name)


def _encryption(password: str | None) -> KeySerializationEncryption:
    return NoEncryption() if password is None else BestAvailableEncryption(password.encode())
