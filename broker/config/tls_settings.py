"""Settings of TLS. A listener may have all of them for itself.

Kafka's ``ssl.keystore.type`` and ``ssl.truststore.type`` have no effect: the broker sees in a file whether it is PEM or PKCS#12.

Tests: tests/config/test_tls_settings.py.
"""

from collections.abc import Iterable
from typing import Any

import attrs

from broker.config.setting import KAFKA, setting
from broker.errors import ConfigError

_PROTOCOLS = ("TLSv1.2", "TLSv1.3")
_CLIENT_AUTH = ("none", "requested", "required")
_UNSET = "Only listeners with TLS need it."


def _of_listener(default: Any, **keywords: Any) -> Any:
    return setting(default, of_listener=True, **keywords)


def _suites(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


def _protocols(value: Iterable[str]) -> tuple[str, ...]:
    protocols = tuple(value)
    if not protocols or not set(protocols) <= set(_PROTOCOLS):
        raise ConfigError(
            f"Set ssl_enabled_protocols to {' or '.join(_PROTOCOLS)} or both: it is {', '.join(protocols)!r}."
        )
    return protocols


@attrs.frozen(kw_only=True, slots=False)
class TlsSettings:
    """TLS."""

    ssl_keystore_location: str | None = _of_listener(
        None,
        doc="A file with the broker's certificate, those of the authorities below the root, and the private key: PEM or "
        "PKCS#12. Java's older JKS files cannot be read; `keytool -importkeystore -deststoretype pkcs12` converts them.",
        reason=_UNSET,
    )
    ssl_keystore_password: str | None = _of_listener(
        None, secret=True, doc="The password of a PKCS#12 file in `ssl_keystore_location`.", reason=_UNSET
    )
    ssl_keystore_certificate_chain: str | None = _of_listener(
        None,
        secret=True,
        kafka="ssl.keystore.certificate.chain",
        doc="The certificates as PEM, or the name of a file with them, instead of `ssl_keystore_location`.",
        reason=_UNSET,
    )
    ssl_keystore_key: str | None = _of_listener(
        None,
        secret=True,
        doc="The private key as PEM, or the name of a file with it, instead of `ssl_keystore_location`.",
        reason=_UNSET,
    )
    ssl_key_password: str | None = _of_listener(
        None, secret=True, doc="The password of the private key.", reason=_UNSET
    )
    ssl_truststore_location: str | None = _of_listener(
        None,
        doc="A file with the certificates of the authorities whose clients are let in: PEM or PKCS#12.",
        reason="Only listeners that ask for clients' certificates need it.",
    )
    ssl_truststore_password: str | None = _of_listener(
        None, secret=True, doc="The password of a PKCS#12 file in `ssl_truststore_location`.", reason=_UNSET
    )
    ssl_truststore_certificates: str | None = _of_listener(
        None, secret=True, doc="These certificates as PEM, instead of `ssl_truststore_location`.", reason=_UNSET
    )
    ssl_crl_location: str | None = _of_listener(
        None,
        kafka=None,
        doc="A PEM file with the revocation lists of the authorities whose clients are let in. Each of them needs one, and "
        "their clients are refused while it is out of date.",
        reason="Most private authorities publish none.",
    )
    ssl_client_auth: str = _of_listener(
        "none",
        choices=_CLIENT_AUTH,
        doc="Whether clients show a certificate, which says who they are. Those without one are `User:ANONYMOUS` (`requested`), "
        "or are refused (`required`). One that is not trusted is refused in both cases.",
        reason=KAFKA,
    )
    ssl_principal_mapping_rules: str = _of_listener(
        "DEFAULT",
        doc="How the subject of a client's certificate becomes its name: rules `RULE:pattern/replacement/`, with `L` or `U` at "
        "the end for lower or upper case, and `DEFAULT` for the whole subject, with commas between them. The first that "
        "matches is taken; a client that none matches is refused.",
        reason=KAFKA,
    )
    ssl_enabled_protocols: tuple[str, ...] = _of_listener(
        _PROTOCOLS, converter=_protocols, doc="Versions of TLS: `TLSv1.2`, `TLSv1.3`.", reason=KAFKA
    )
    ssl_cipher_suites: tuple[str, ...] = _of_listener(
        (),
        converter=_suites,
        doc="Cipher suites, under the names of the standards or OpenSSL's. Empty: Python's choice. Without any suite of TLS "
        "1.3, only TLS 1.2 is spoken.",
        reason="Python's list is kept up to date with it.",
    )
    ssl_allow_dn_changes: bool = _of_listener(
        False,
        doc="Whether a certificate that takes the place of another one while the broker runs may have another subject.",
        reason=KAFKA,
    )
    ssl_allow_san_changes: bool = _of_listener(
        False,
        doc="Whether such a certificate may lack one of the other one's alternative names.",
        reason=KAFKA,
    )
    handshake_timeout_ms: int = setting(
        10_000,
        kafka=None,
        least=1,
        doc="The longest time that a TLS handshake may take, and within which a client of a `+sasl` listener has to log in "
        "(again). A connection that takes longer is closed.",
        reason="Kafka's clients give up a connection that is not set up after 10 to 30 s.",
    )
