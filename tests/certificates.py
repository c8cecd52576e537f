"""Certificates for tests of TLS: authorities, servers and clients, good ones and bad ones, as PEM and as PKCS#12.

``authority()`` and what it issues are made once for each test run and kept: a P-256 key takes 0.1 ms, an RSA key 50-200 ms.

    ca = authority()
    server = ca.issue("broker", hosts=["localhost", "127.0.0.1"])
    server.certificate, server.key     PEM text; the certificates of the authorities below the root follow the server's
    server.write(tmp_path)             files, for settings that name files
"""

import datetime
import functools
import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
Algorithm = Literal["ecdsa", "rsa"]

LOCAL = ("localhost", "127.0.0.1", "::1")
_DAY = datetime.timedelta(days=1)


@attrs.frozen(eq=False)
class Files:
    """Where ``Identity.write`` has put an identity."""

    certificate: Path  # PEM, with the chain
    key: Path  # PEM
    authority: Path  # PEM of the root: what the other side trusts
    both: Path  # key and certificate in one PEM file, as Kafka's ssl.keystore.type=PEM takes them
    pkcs12: Path


@attrs.frozen(eq=False)
class Identity:
    """A certificate and its key."""

    certificate: str  # PEM, followed by the certificates of the authorities below the root
    private: Key
    root: str  # PEM of the root authority
    x509: x509.Certificate
    chain: tuple[x509.Certificate, ...]  # the authorities between it and the root

    @property
    def key(self) -> str:
        """PEM, PKCS#8, without a password."""
        return self.key_pem()

    def key_pem(self, password: str | None = None) -> str:
        encryption: KeySerializationEncryption = (
            NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        )
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def pkcs12(self, password: str = "changeit") -> bytes:
        """A key store as Java's and OpenSSL's tools make them."""
        return pkcs12.serialize_key_and_certificates(
            b"key", self.private, self.x509, self.chain or None, BestAvailableEncryption(password.encode())
        )

    @property
    def subject(self) -> str:
        """As in RFC 4514, which is what Java calls RFC 2253: the last part first."""
        return self.x509.subject.rfc4514_string()

    def write(self, directory: Path, name: str = "tls", password: str = "changeit") -> Files:
        """Write all forms of it. ``password`` is the PKCS#12 file's; the PEM key has none."""
        directory.mkdir(parents=True, exist_ok=True)
        files = Files(
            certificate=directory / f"{name}.crt",
            key=directory / f"{name}.key",
            authority=directory / f"{name}-ca.crt",
            both=directory / f"{name}.pem",
            pkcs12=directory / f"{name}.p12",
        )
        files.certificate.write_text(self.certificate)
        files.key.write_text(self.key)
        files.authority.write_text(self.root)
        files.both.write_text(self.key + self.certificate)
        files.pkcs12.write_bytes(self.pkcs12(password))
        return files


@attrs.frozen(eq=False)
class Authority:
    """Signs certificates. ``pem`` is what the other side trusts."""

    identity: Identity

    @property
    def pem(self) -> str:
        return self.identity.root

    def issue(
        self,
        name: str = "broker",
        *,
        hosts: Iterable[str] = (),
        subject: x509.Name | None = None,
        algorithm: Algorithm = "ecdsa",
        valid_days: tuple[int, int] = (-1, 30),
        padding: int = 0,
    ) -> Identity:
        """A certificate for a server (with ``hosts``: names and addresses) or a client. ``subject``: by default ``CN=name``.

        ``valid_days``: from and until, relative to now; ``(-3, -1)`` has expired. ``padding``: so many useless bytes in it.
        """
        private = _key(algorithm)
        builder = _builder(subject or _named(name), self.identity.x509, private, valid_days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        names = [_host(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if padding:
            oid = x509.ObjectIdentifier("1.3.6.1.4.1.55555.1")
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, bytes(padding)), critical=False)
        return self._signed(builder, private)

    def revoke(self, *revoked: Identity, valid_days: tuple[int, int] = (-1, 30)) -> str:
        """A revocation list, as PEM."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.identity.x509.subject)
            .last_update(now + valid_days[0] * _DAY)
            .next_update(now + valid_days[1] * _DAY)
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.x509.serial_number).revocation_date(now - _DAY)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.identity.private, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    def intermediate(self, name: str = "intermediate", *, algorithm: Algorithm = "ecdsa") -> "Authority":
        """An authority below this one."""
        private = _key(algorithm)
        builder = _builder(_named(name), self.identity.x509, private, (-1, 30))
        return Authority(self._signed(_as_authority(builder), private))

    def _signed(self, builder: x509.CertificateBuilder, private: Key) -> Identity:
        own = self.identity
        certificate = builder.sign(own.private, hashes.SHA256())
        chain = (own.x509, *own.chain) if own.x509.issuer != own.x509.subject else ()
        return Identity("".join(map(_pem, (certificate, *chain))), private, own.root, certificate, chain)


@functools.cache
def authority(name: str = "test-ca", algorithm: Algorithm = "ecdsa") -> Authority:
    """The same one each time: another name is an authority that nobody trusts who trusts the first."""
    private = _key(algorithm)
    certificate = _as_authority(_builder(_named(name), None, private, (-1, 60))).sign(private, hashes.SHA256())
    return Authority(Identity(_pem(certificate), private, _pem(certificate), certificate, ()))


# -- the usual ones, made once ------------------------------------------------------------------------------------------------


@functools.cache
def server(algorithm: Algorithm = "ecdsa") -> Identity:
    """A broker on this machine, of ``authority()``."""
    return authority().issue("broker", hosts=LOCAL, algorithm=algorithm)


@functools.cache
def client(name: str = "alice", algorithm: Algorithm = "ecdsa") -> Identity:
    """A client, of ``authority()``. Its subject is ``CN=name``."""
    return authority().issue(name, algorithm=algorithm)


@functools.cache
def expired(name: str = "broker") -> Identity:
    """Was good until yesterday."""
    return authority().issue(name, hosts=LOCAL, valid_days=(-3, -1))


@functools.cache
def other_host() -> Identity:
    """A good certificate of another machine."""
    return authority().issue("elsewhere", hosts=["elsewhere.example", "192.0.2.1"])


@functools.cache
def untrusted(name: str = "mallory") -> Identity:
    """By an authority that nobody trusts, which has the same name as ours."""
    return Authority(_another_authority()).issue(name, hosts=LOCAL)


@functools.cache
def _another_authority() -> Identity:
    return authority.__wrapped__("test-ca", "ecdsa").identity


# -- contexts for the other side ----------------------------------------------------------------------------------------------


def client_context(identity: Identity | None = None, *, trust: str | None = None, directory: Path) -> ssl.SSLContext:
    """What a client uses: it trusts ``trust`` (PEM, by default ``authority()``) and shows ``identity``, if any. ``directory``:
    ``ssl`` reads keys from files only."""
    context = ssl.create_default_context(cadata=trust or authority().pem)
    if identity is not None:
        files = identity.write(directory, f"client-{identity.x509.serial_number}")
        context.load_cert_chain(files.certificate, files.key)
    return context


# -- how they are made --------------------------------------------------------------------------------------------------------


def _key(algorithm: Algorithm) -> Key:
    if algorithm == "rsa":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP256R1())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Certificate | None, private: Key, valid_days: tuple[int, int]
) -> x509.CertificateBuilder:
    """``issuer`` None: itself. The two identifiers are there because Python 3.13 refuses certificates without them."""
    now = datetime.datetime.now(datetime.UTC)
    own = private.public_key()
    above = own if issuer is None else issuer.public_key()
    assert isinstance(above, (ec.EllipticCurvePublicKey, rsa.RSAPublicKey))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(own)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + valid_days[0] * _DAY)
        .not_valid_after(now + valid_days[1] * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above), critical=False)
    )


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """The server's side of a finished handshake in memory. ``name``: of the server, as the client calls it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [one, other]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return other


def _as_authority(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(
        usage, critical=True
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
