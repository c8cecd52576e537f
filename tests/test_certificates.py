"""The certificates that tests use are what they say: proved by handshakes in memory."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from tests import certificates
from tests.certificates import Algorithm, Identity, authority


def handshake(server: Identity, directory: Path, *, shown: Identity | None = None, host: str = "localhost") -> None:
    """Between a server that asks for certificates and a client that shows ``shown``. Raises SSLError if either refuses."""
    files = server.write(directory)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(files.certificate, files.key)
    server_context.load_verify_locations(cadata=authority().pem)
    server_context.verify_mode = ssl.CERT_OPTIONAL
    client_context = certificates.client_context(shown, directory=directory)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server_context.wrap_bio(up, down, server_side=True),
        client_context.wrap_bio(down, up, server_hostname=host),
    ]
    for _ in range(5):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    ends[0].write(b"x")
    assert ends[1].read(1) == b"x"


@pytest.mark.parametrize("algorithm", ["ecdsa", "rsa"])
def test_client_and_server_trust_each_other(algorithm: Algorithm, tmp_path: Path) -> None:
    for host in ("localhost", "127.0.0.1"):
        handshake(certificates.server(algorithm), tmp_path, shown=certificates.client("alice", algorithm), host=host)


def test_intermediate_authority_s_certificate_carries_its_chain(tmp_path: Path) -> None:
    below = authority().intermediate()
    handshake(below.issue("broker", hosts=["localhost"]), tmp_path, shown=below.issue("alice"))


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (certificates.expired, "certificate has expired"),
        (certificates.other_host, "Hostname mismatch"),
        (certificates.untrusted, "certificate"),
    ],
)
def test_a_bad_server_is_refused(server: Callable[[], Identity], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        handshake(server(), tmp_path)


@pytest.mark.parametrize("shown", [certificates.expired, certificates.untrusted])
def test_a_bad_client_is_refused(shown: Callable[[], Identity], tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLError):
        handshake(certificates.server(), tmp_path, shown=shown())


def test_a_key_may_have_a_password(tmp_path: Path) -> None:
    server = certificates.server()
    key = tmp_path / "key"
    key.write_text(server.key_pem("secret"))
    certificate = tmp_path / "certificate"
    certificate.write_text(server.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key, "secret")
    with pytest.raises(ssl.SSLError):
        context.load_cert_chain(certificate, key, "wrong")


def test_the_pkcs12_has_the_key_and_the_chain() -> None:
    identity = authority().intermediate().issue("alice")
    key, certificate, chain = pkcs12.load_key_and_certificates(identity.pkcs12("secret"), b"secret")
    assert (key is not None, certificate, tuple(chain)) == (True, identity.x509, identity.chain)
