"""Settings of security: logins with SASL, TLS, the authorizer, and how client quotas are measured.

A listener may have its own values of the settings of TLS. Kafka's ``ssl.keystore.type`` and ``ssl.truststore.type``
have no effect: the broker recognises PEM and PKCS#12 by the content. The quotas themselves are set with
AlterClientQuotas and kept in the catalogue.

Tests: tests/config/test_setting.py,
tests/security/test_security.py,
tests/config/test_settings.py.
"""

from collections.abc import Iterable

import attrs

from broker.config.setting import INT_MAX, listener_setting, own_setting, setting, some_of, words
from broker.errors import ConfigError

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SASL_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", PLAIN, OAUTHBEARER)


def _mechanisms(value: "Iterable[str] | str") -> tuple[str, ...]:
    return some_of(SASL_MECHANISMS, words(value), "sasl_enabled_mechanisms to some of")


def _audiences(value: "Iterable[str] | str") -> tuple[str, ...]:
    return tuple(dict.fromkeys(words(value)))


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class SaslSettings:
    """Logins with SASL."""

    sasl_enabled_mechanisms: tuple[str, ...] = listener_setting(
        ("SCRAM-SHA-512", "SCRAM-SHA-256"),
        converter=_mechanisms,
        doc="The mechanisms by which clients of `+sasl` listeners may log in: "
        + ", ".join(f"`{name}`" for name in SASL_MECHANISMS)
        + ". A listener may have its own.",
        reason="Neither shows the password to the broker or to the network. Kafka's is GSSAPI, which does not exist here.",
    )
    sasl_server_max_receive_size: int = listener_setting(
        524_288,
        unit="bytes",
        least=1024,
        most=INT_MAX,
        doc="The largest request of a client that has not logged in. A connection that announces a larger one is closed.",
    )
    connection_failed_authentication_delay_ms: int = listener_setting(
        100, least=0, most=60_000, doc="A failed login is answered, and its connection closed, after this delay."
    )
    connections_max_reauth_ms: int = listener_setting(
        0,
        least=0,
        doc="How long a login is valid (KIP-368). Clients that know this log in again on the same connection before the time is "
        "over; the connections of others are closed then. A token that expires earlier ends the login earlier. 0: a login is "
        "valid for as long as its token, or its connection.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = listener_setting(
        None,
        doc="Where the public keys are with which tokens of OAUTHBEARER are checked (a JWKS): a URL that begins with `https://`, "
        "`http://` or `file:///`. Redirects are not followed.",
        reason="Without keys no token can be checked.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = listener_setting(
        3_600_000,
        least=1000,
        doc="How often the keys are fetched. A token with an unknown key has them fetched too, at most every 10 s.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = listener_setting(
        100, least=1, doc="How soon the keys are fetched again after a failure. Doubles with each."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = listener_setting(
        10_000, least=1, doc="The longest time until the keys are fetched again after a failure."
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = listener_setting(
        (),
        converter=_audiences,
        doc="The audience of a token (`aud`) must be one of these. Empty: any, which the broker warns of at the start.",
    )
    sasl_oauthbearer_expected_issuer: str | None = listener_setting(
        None, doc="The issuer of a token (`iss`). Unset: any whose key is known."
    )
    sasl_oauthbearer_clock_skew_seconds: int = listener_setting(
        30, unit="s", least=0, most=3600, doc="How far the clock of a token's issuer may be from the broker's."
    )
    sasl_oauthbearer_sub_claim_name: str = listener_setting(
        "sub", doc="The claim of a token that contains the name of the user."
    )
    sasl_oauthbearer_scope_claim_name: str = listener_setting(
        "scope",
        doc="The claim of a token that contains its scope: a text, or a list of texts. Otherwise the scope is not used.",
    )


_PROTOCOLS = ("TLSv1.2", "TLSv1.3")
_CLIENT_AUTH = ("none", "requested", "required")
_UNSET = "Only listeners with TLS need it."


def _suites(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


def _protocols(value: Iterable[str]) -> tuple[str, ...]:
    protocols = tuple(value)
    if not protocols or not set(protocols) <= set(_PROTOCOLS):
        raise ConfigError(
            f"Set ssl_enabled_protocols to {' or '.join(_PROTOCOLS)} or both: it is {', '.join(protocols)!r}."
        )
    return protocols


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class TlsSettings:
    """TLS."""

    ssl_keystore_location: str | None = listener_setting(
        None,
        doc="A file with the broker's certificate, those of the authorities below the root, and the private key: PEM or "
        "PKCS#12. Java's older JKS files cannot be read; `keytool -importkeystore -deststoretype pkcs12` converts them.",
        reason=_UNSET,
    )
    ssl_keystore_password: str | None = listener_setting(
        None, secret=True, doc="The password of a PKCS#12 file in `ssl_keystore_location`.", reason=_UNSET
    )
    ssl_keystore_certificate_chain: str | None = listener_setting(
        None,
        secret=True,
        kafka="ssl.keystore.certificate.chain",
        doc="The certificates as PEM, or the name of a file with them, instead of `ssl_keystore_location`.",
        reason=_UNSET,
    )
    ssl_keystore_key: str | None = listener_setting(
        None,
        secret=True,
        doc="The private key as PEM, or the name of a file with it, instead of `ssl_keystore_location`.",
        reason=_UNSET,
    )
    ssl_key_password: str | None = listener_setting(
        None, secret=True, doc="The password of the private key.", reason=_UNSET
    )
    ssl_truststore_location: str | None = listener_setting(
        None,
        doc="A file with the certificates of the authorities whose clients are let in: PEM or PKCS#12. Nodes of several machines "
        "verify each other's certificates with it.",
        reason="Only listeners that ask for clients' certificates need it; nodes trust the machine's authorities without it.",
    )
    ssl_truststore_password: str | None = listener_setting(
        None, secret=True, doc="The password of a PKCS#12 file in `ssl_truststore_location`.", reason=_UNSET
    )
    ssl_truststore_certificates: str | None = listener_setting(
        None, secret=True, doc="These certificates as PEM, instead of `ssl_truststore_location`.", reason=_UNSET
    )
    ssl_crl_location: str | None = own_setting(
        None,
        doc="A PEM file with the revocation lists of the authorities whose clients are let in. Each of them needs one, and "
        "their clients are refused while it is out of date.",
        reason="Most private authorities publish none.",
        of_listener=True,
    )
    ssl_client_auth: str = listener_setting(
        "none",
        choices=_CLIENT_AUTH,
        doc="Whether clients show a certificate, which says who they are. Those without one are `User:ANONYMOUS` (`requested`), "
        "or are refused (`required`). One that is not trusted is refused in both cases.",
    )
    ssl_principal_mapping_rules: str = listener_setting(
        "DEFAULT",
        doc="How the subject of a client's certificate becomes its name: rules `RULE:pattern/replacement/`, with `L` or `U` at "
        "the end for lower or upper case, and `DEFAULT` for the whole subject, with commas between them. The first that "
        "matches is taken; a client that none matches is refused.",
    )
    ssl_enabled_protocols: tuple[str, ...] = listener_setting(
        _PROTOCOLS, converter=_protocols, doc="Versions of TLS: `TLSv1.2`, `TLSv1.3`."
    )
    ssl_cipher_suites: tuple[str, ...] = listener_setting(
        (),
        converter=_suites,
        doc="Cipher suites, under the names of the standards or OpenSSL's. Empty: Python's choice. Without any suite of TLS "
        "1.3, only TLS 1.2 is spoken.",
        reason="Python's list is kept up to date with it.",
    )
    ssl_allow_dn_changes: bool = listener_setting(
        False,
        doc="Whether a certificate that takes the place of another one while the broker runs may have another subject.",
    )
    ssl_allow_san_changes: bool = listener_setting(
        False, doc="Whether such a certificate may lack one of the other one's alternative names."
    )
    handshake_timeout_ms: int = own_setting(
        10_000,
        least=1,
        doc="The longest time that a TLS handshake may take, and within which a client of a `+sasl` listener has to log in "
        "(again). A connection that takes longer is closed.",
        reason="Kafka's clients give up a connection that is not set up after 10 to 30 s.",
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class AclSettings:
    """ACLs."""

    authorizer_class_name: str | None = setting(
        None,
        choices=("acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        doc="Ask ACLs for everything that a client does. `acl` and the name of Kafka's own class mean the same. Unset: every "
        "client may do everything.",
        reason="Kafka's default. With it and without ACLs only super users may do anything.",
    )
    super_users: str = setting(
        "",
        doc="Principals that may do everything, whatever the ACLs say, separated by `;`: `User:admin;User:CN=ops,O=example`.",
        reason="Kafka's default. Somebody has to create the first ACL.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False,
        doc="Allow everybody what no ACL covers. As soon as there is any ACL for a resource, it is denied to all others.",
    )
    acls_max: int = own_setting(
        1_000_000,
        unit="ACLs",
        least=0,
        doc="How many ACLs there may be. What would exceed it is refused with POLICY_VIOLATION; ACLs that exist stay in force.",
        reason="They are kept in memory: 100,000 take some 35 MB, and half a second at the start. Kafka has no limit.",
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class QuotaSettings:
    """Quotas: the windows over which the rates of clients are measured."""

    quota_window_num: int = setting(
        11,
        least=2,
        most=1000,
        doc="Rates of clients are measured over this many windows, the last of which has only begun. Over the "
        "complete ones a client gets at most 2 % more than its quota: it may use at once what 2 % of that time allow.",
        reason="Kafka's default. With it 2 % are 0.2 s.",
    )
    quota_window_size_seconds: int = setting(
        1,
        least=1,
        most=3600,
        doc="The length of one such window in seconds. It is also the longest throttle time for `request_percentage`, "
        "whose use is forgotten after all windows.",
    )
    controller_quota_window_num: int = setting(
        11,
        least=1,
        most=1000,
        doc="A client that has not changed partitions for this many windows may create or delete as many partitions at once "
        "as its `controller_mutation_rate` allows in them.",
    )
    controller_quota_window_size_seconds: int = setting(
        1, least=1, most=3600, doc="The length of one such window in seconds."
    )
