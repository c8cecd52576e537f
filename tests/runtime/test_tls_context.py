"""What a listener negotiates, in handshakes in memory."""

import ssl
from collections.abc import Callable
from typing import Any

import pytest

from broker.runtime import tls_context
from broker.runtime.tls_context import TlsMaterial, openssl_name, server_context
from tests import certificates
from tests.certificates import authority


def material(**changes: Any) -> TlsMaterial:
    server = certificates.server("rsa")
    return TlsMaterial(**{"certificate": server.certificate, "key": server.key, "trusted": authority().pem, **changes})


def negotiate(
    server: ssl.SSLContext, limit: Callable[[ssl.SSLContext], None] = lambda context: None
) -> tuple[str | None, str]:
    """Version and cipher suite. Raises SSLError if there is none for both."""
    client_context = ssl.create_default_context(cadata=authority().pem)
    limit(client_context)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_context.wrap_bio(down, up, server_hostname="localhost"),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(5):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    cipher = ends[1].cipher()
    assert cipher is not None
    return ends[1].version(), cipher[0]


def only(version: ssl.TLSVersion) -> Callable[[ssl.SSLContext], None]:
    def limit(context: ssl.SSLContext) -> None:
        context.minimum_version = context.maximum_version = version

    return limit


V1_1, V1_2, V1_3 = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


def test_the_newest_version_is_taken() -> None:
    assert negotiate(server_context(material()))[0] == "TLSv1.3"


@pytest.mark.parametrize(
    ("protocols", "client", "version"),
    [
        (("TLSv1.2", "TLSv1.3"), V1_2, "TLSv1.2"),
        (("TLSv1.2",), V1_2, "TLSv1.2"),
        (("TLSv1.2",), V1_3, None),
        (("TLSv1.3",), V1_2, None),
        (("TLSv1.2", "TLSv1.3"), V1_1, None),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_only_enabled_versions_are_spoken(
    protocols: tuple[str, ...], client: ssl.TLSVersion, version: str | None
) -> None:
    context = server_context(material(protocols=protocols))
    if version is None:
        with pytest.raises(ssl.SSLError):
            negotiate(context, only(client))
    else:
        assert negotiate(context, only(client))[0] == version


@pytest.mark.parametrize(
    ("suites", "version", "cipher"),
    [
        (("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",), "TLSv1.2", "ECDHE-RSA-AES128-GCM-SHA256"),
        (("ECDHE-RSA-AES256-GCM-SHA384",), "TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384"),
        (("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",), "TLSv1.2", "ECDHE-RSA-CHACHA20-POLY1305"),
        (tuple(sorted(tls_context._TLS_1_3_SUITES)), "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_only_chosen_cipher_suites_are_used(suites: tuple[str, ...], version: str, cipher: str) -> None:
    assert negotiate(server_context(material(cipher_suites=suites))) == (version, cipher)


def test_unknown_cipher_suite_is_refused() -> None:
    with pytest.raises(ValueError, match="no cipher suite 'TLS_NONSENSE_WITH_NULL'"):
        server_context(material(cipher_suites=["TLS_NONSENSE_WITH_NULL"]))


@pytest.mark.skipif(hasattr(ssl.SSLContext, "set_ciphersuites"), reason="this Python can choose")
def test_some_suites_of_tls13_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match=r"cannot choose among the cipher suites of TLS 1\.3"):
        server_context(material(cipher_suites=["TLS_AES_128_GCM_SHA256"]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("ECDHE-RSA-AES128-SHA", "ECDHE-RSA-AES128-SHA"),
    ],
)
def test_standard_names_become_names_of_openssl(name: str, expected: str) -> None:
    assert openssl_name(name) == expected
    assert expected in {cipher["name"] for cipher in tls_context._all_ciphers()}


def test_key_exchanges_expensive_for_server_are_not_offered() -> None:
    if not hasattr(ssl.SSLContext, "set_groups"):
        with pytest.raises(ssl.SSLError):  # of the curves that a Python before 3.15 can ask for alone
            negotiate(server_context(material()), lambda context: context.set_ecdh_curve("secp384r1"))


def test_key_of_another_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="certificate and the key cannot be used"):
        server_context(material(key=certificates.server("ecdsa").key))


def test_encrypted_key_is_refused_without_asking_for_password() -> None:
    with pytest.raises(ValueError, match="certificate and the key cannot be used"):
        server_context(material(key=certificates.server("rsa").key_pem("geheim")))


def test_private_file_replaces_memory_files_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_context, "_DESCRIPTORS", "/nowhere")
    paths = []
    make = tls_context.tempfile.mkstemp

    def noted() -> tuple[int, str]:
        paths.append(make())
        assert tls_context.os.stat(paths[-1][1]).st_mode & 0o777 == 0o600
        return paths[-1]

    monkeypatch.setattr(tls_context.tempfile, "mkstemp", noted)
    assert negotiate(server_context(material()))[0] == "TLSv1.3"
    assert len(paths) == 2
    assert not any(tls_context.os.path.exists(path) for _, path in paths)


def test_no_key_is_in_a_repr() -> None:
    assert "PRIVATE" not in repr(material())
