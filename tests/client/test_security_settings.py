"""The settings of a client's security, as values."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.security_settings import MECHANISMS, PROTOCOLS, Sasl, SecuritySettings, TokenFile, parse_jaas
from broker.errors import ConfigError
from broker.runtime.client_tls import TlsSettings

SECRET = 'it\'s a "secret"'


def made(**settings: object) -> SecuritySettings:
    return SecuritySettings.from_properties({name.replace("_", "."): value for name, value in settings.items()})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"security.protocol": "TLS"},
            "security.protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, not 'TLS'.",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, not 'GSSAPI'.",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"},
            "PLAIN needs sasl.username and sasl.password, or sasl.jaas.config with both.",
        ),
        ({"ssl.truststore.location": "/x/trust.jks"}, "ssl.truststore.location must be a PEM or PKCS12 file here"),
        (
            {"ssl.keystore.location": "/x/k", "ssl.keystore.type": "JKS"},
            "ssl.keystore.location must be a PEM or PKCS12",
        ),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "ssl.endpoint.identification.algorithm must be https"),
        ({"enable.ssl.certificate.verification": "no"}, "enable.ssl.certificate.verification must be true or false"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.username": "u"},
            "OAUTHBEARER needs sasl.oauthbearer.token, or sasl.oauthbearer.token.file",
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "https://secret:word@host"},
            "sasl.oauthbearer.token.endpoint.url must be a file:// URL here",
        ),
    ],
)
def test_invalid_value_is_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as failure:
        SecuritySettings.from_properties(settings)
    assert str(failure.value).startswith(sentence)
    assert "secret:word" not in str(failure.value)


def test_sasl_by_librdkafka_s_names() -> None:
    config = made(security_protocol="sasl_ssl", sasl_mechanisms="scram-sha-256", sasl_username="u", sasl_password="p")
    assert (Sasl("SCRAM-SHA-256", "u", "p"), TlsSettings()) == (config.sasl, config.tls)


def test_sasl_by_java_s_names() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p;\\"x";'
    assert Sasl("PLAIN", "u", 'p;"x') == made(security_protocol="SASL_PLAINTEXT", sasl_jaas_config=jaas).sasl


def test_protocol_without_sasl_means_no_login() -> None:
    config = made(sasl_username="u", sasl_password="p", ssl_ca_location="/ca.pem")
    assert (None, None) == (config.sasl, config.tls)


def test_tls_files() -> None:
    config = made(
        security_protocol="SSL",
        ssl_truststore_location="/ca.pem",
        ssl_truststore_type="PEM",
        ssl_keystore_location="/me.pem",
        ssl_key_password=SECRET,
        ssl_endpoint_identification_algorithm="",
    )
    expected = TlsSettings(
        ca_file="/ca.pem", certificate_file="/me.pem", key_password=SECRET, check_hostname=False, verify=True
    )
    assert expected == config.tls


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('a.B required username="u" password="p";', {"username": "u", "password": "p"}),
        ("a.B required\n username='u'\n password=p ;", {"username": "u", "password": "p"}),
        ("a.B optional;", {}),
        ('a.B required x="a\\\\b=c;d"', {"x": "a\\b=c;d"}),
    ],
)
def test_jaas(text: str, options: dict[str, str]) -> None:
    assert ("a.B", options) == parse_jaas(text)


@pytest.mark.parametrize(
    "text", ["", "a.B", "a.B required username=", f"a.B required password={SECRET} =", "required x=y"]
)
def test_unreadable_jaas_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as failure:
        parse_jaas(text)
    assert SECRET not in str(failure.value)


def test_passwords_are_not_shown() -> None:
    jaas = f"a.ScramLoginModule required username=u password='{SECRET.replace(chr(39), chr(92) + chr(39))}';"
    config = made(
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=jaas, ssl_key_password=SECRET
    )
    assert config.sasl is not None
    assert SECRET == config.sasl.password
    assert SECRET not in repr(config)
    assert config == pickle.loads(pickle.dumps(config))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_protocol_has_kafka_s_name(protocol: str) -> None:
    settings = made(security_protocol=protocol, sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")
    assert protocol == settings.protocol


def test_key_stores_are_pem_or_pkcs12() -> None:
    expected = TlsSettings(ca_pkcs12="/ca.p12", ca_password="t", key_pkcs12="/me.store", key_password="k")
    assert expected == (
        made(
            security_protocol="SSL",
            ssl_truststore_location="/ca.p12",
            ssl_truststore_password="t",
            ssl_keystore_location="/me.store",
            ssl_keystore_type="pkcs12",
            ssl_keystore_password="k",
        ).tls
    )


def test_certificates_and_keys_may_be_text() -> None:
    expected = TlsSettings(ca_data="CA", certificate_data="CERT", key_data="KEY", key_password="k")
    by_java = made(
        security_protocol="SSL",
        ssl_truststore_certificates="CA",
        ssl_keystore_certificate_chain="CERT",
        ssl_keystore_key="KEY",
        ssl_key_password="k",
    )
    by_librdkafka = made(
        security_protocol="SSL", ssl_ca_pem="CA", ssl_certificate_pem="CERT", ssl_key_pem="KEY", ssl_key_password="k"
    )
    assert expected == by_java.tls == by_librdkafka.tls
    assert "KEY" not in repr(by_java)


@pytest.mark.parametrize(
    ("settings", "token"),
    [
        ({"sasl_oauthbearer_token": "abc"}, "abc"),
        ({"sasl_oauthbearer_token_file": "/t"}, TokenFile("/t")),
        ({"sasl_oauthbearer_token_endpoint_url": "file:///t"}, TokenFile("/t")),
        (
            {"sasl_jaas_config": "a.b.OAuthBearerLoginModule required token='abc';"},
            "abc",
        ),
        ({"sasl_oauthbearer_token": repr}, repr),
    ],
)
def test_token_is_text_file_or_function(settings: dict[str, object], token: object) -> None:
    sasl = made(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", **settings).sasl
    assert sasl is not None
    assert token == sasl.token
    assert "abc" not in repr(sasl) + sasl.who
    assert sasl == pickle.loads(pickle.dumps(sasl))


_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(
    mechanism=st.sampled_from([name for name in MECHANISMS if name != "OAUTHBEARER"]),
    username=_NAMES.map(str.strip).filter(bool),
    password=_NAMES,
)
def test_jaas_may_hold_any_name_and_password(mechanism: str, username: str, password: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    jaas = f"x.ScramLoginModule required username={quoted(username)} password={quoted(password)};"
    settings = made(security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_jaas_config=jaas)
    assert Sasl(mechanism, username, password) == settings.sasl


@given(st.text())
def test_jaas_text_is_read_or_refused_unshown(text: str) -> None:
    said = ""
    try:
        parse_jaas(text + SECRET)
    except ConfigError as error:
        said = str(error)
    assert SECRET not in said
