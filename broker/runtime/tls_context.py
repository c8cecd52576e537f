"""The context of the broker's TLS connections: certificate and key, trusted authorities, negotiated versions and ciphers.

Made from values, and never changed afterwards: connections use it on several threads. OpenSSL reads keys from files only, so the
key is put into memory that has a path (memfd), or, where the system has none, into a file that is removed at once.
"""

import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from broker.runtime.tls import TlsContext

PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# Key exchange for which OpenSSL has fast code. It would also accept ffdhe8192 by itself, of which one handshake takes 180 ms,
# and a client chooses. All implementations of TLS 1.3 have P-256 (RFC 8446, section 9.1).
_GROUPS: Final = "X25519MLKEM768:X25519:prime256v1"
_CURVE: Final = "prime256v1"
_TLS_1_3_SUITES: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
_DESCRIPTORS: Final = "/proc/self/fd"
_NAME_OF_SUITE = re.compile(r"TLS_(?P<exchange>[A-Z_]+)_WITH_(?P<rest>[A-Z0-9_]+)")


@attrs.frozen
class TlsMaterial:
    """All that a context is made from. Texts are PEM."""

    certificate: str  # the server's, followed by those of the authorities below the root
    key: str = attrs.field(repr=False)  # without a password
    trusted: str = ""  # the authorities of clients
    revoked: str = ""  # revocation lists of these authorities
    client_auth: str = "none"
    protocols: Sequence[str] = tuple(PROTOCOLS)
    cipher_suites: Sequence[str] = ()


def server_context(material: TlsMaterial) -> TlsContext:
    """ValueError with one sentence about the fault: in the key, the trusted certificates, or the cipher suites."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    versions = sorted(PROTOCOLS[name] for name in material.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    _choose_ciphers(context, material.cipher_suites)
    if hasattr(context, "set_groups"):  # from Python 3.15 on
        context.set_groups(_GROUPS)
    else:
        context.set_ecdh_curve(_CURVE)
    context.num_tickets = 1  # a client uses one ticket at a time. Tickets are the client's: the broker keeps nothing.
    with _as_file(material.certificate) as certificate, _as_file(material.key) as key:
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(f"the certificate and the key cannot be used ({_reason(error)})") from None
    context.verify_mode = CLIENT_AUTH[material.client_auth]
    if context.verify_mode != ssl.CERT_NONE:
        # As in Java, whatever is in the trust store is trusted, whether or not it is a root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST
        _trust(context, material)
    return context


def _trust(context: TlsContext, material: TlsMaterial) -> None:
    try:
        context.load_verify_locations(cadata=material.trusted)
    except ssl.SSLError as error:
        raise ValueError(f"the trusted certificates cannot be used ({_reason(error)})") from None
    if material.revoked:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        with _as_file(material.revoked) as path:
            try:
                context.load_verify_locations(cafile=path)
            except ssl.SSLError as error:
                raise ValueError(f"the revocation lists cannot be used ({_reason(error)})") from None


def _choose_ciphers(context: TlsContext, suites: Sequence[str]) -> None:
    """``suites``: names as Java and the standards write them, or OpenSSL's. None: Python's choice."""
    if not suites:
        return
    chosen = _TLS_1_3_SUITES.intersection(suites)
    others = [openssl_name(suite) for suite in suites if suite not in _TLS_1_3_SUITES]
    if not chosen:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    elif hasattr(context, "set_ciphersuites"):  # from Python 3.15 on
        context.set_ciphersuites(":".join(suite for suite in suites if suite in chosen))
    elif chosen != _TLS_1_3_SUITES:
        raise ValueError(
            "this Python cannot choose among the cipher suites of TLS 1.3: name all three "
            f"({', '.join(sorted(_TLS_1_3_SUITES))}) or none"
        )
    if not others:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    known = {cipher["name"] for cipher in _all_ciphers()}
    for name, suite in zip(others, (each for each in suites if each not in _TLS_1_3_SUITES), strict=True):
        if name not in known:
            raise ValueError(f"there is no cipher suite {suite!r}")
    context.set_ciphers(":".join(others))


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2: ECDHE-RSA-AES128-GCM-SHA256 for TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    match = _NAME_OF_SUITE.fullmatch(suite)
    if match is None:
        return suite
    rest = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", match["rest"]).replace("_CBC", "")
    rest = rest.removesuffix("_SHA256") if rest.startswith("CHACHA20") else rest
    exchange = "" if match["exchange"] == "RSA" else match["exchange"].replace("_", "-") + "-"
    return exchange + rest.replace("_", "-")


def _all_ciphers() -> list[dict[str, str]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL")
    return context.get_ciphers()  # type: ignore[return-value]


def _no_password() -> str:
    """Without this, OpenSSL asks for one on the terminal."""
    return ""


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path under which only this process can read ``text``."""
    if hasattr(os, "memfd_create") and os.path.isdir(_DESCRIPTORS):
        descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
        try:
            _write_all(descriptor, text)
            yield f"{_DESCRIPTORS}/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp()  # only its owner may read it
    try:
        try:
            _write_all(descriptor, text)
        finally:
            os.close(descriptor)
        yield path
    finally:
        os.remove(path)


def _write_all(descriptor: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(descriptor, data) :]
