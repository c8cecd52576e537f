import pickle

import pytest

from broker.client.kafka import ClientConfig
from broker.client.kafka.config import Sasl, parse_jaas
from broker.errors import ConfigError
from broker.runtime.dial import TlsSettings

SERVERS = {"bootstrap.servers": "localhost:9092"}
SECRET = 'it\'s a "secret"'


def made(**settings: object) -> ClientConfig:
    return ClientConfig.from_properties(SERVERS | {name.replace("_", "."): value for name, value in settings.items()})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", (("localhost", 9092),)),
        (" a:1 , b:2,", (("a", 1), ("b", 2))),
        ("PLAINTEXT://a:1", (("a", 1),)),
        ("[::1]:9092", (("::1", 9092),)),
    ],
)
def test_addresses(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert expected == ClientConfig.from_properties({"bootstrap.servers": text}).bootstrap


@pytest.mark.parametrize("text", ["", " , ", "localhost", ":9092", "a:0", "a:65536", "a:b", "a:1:", "a:٣"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        ClientConfig.from_properties({"bootstrap.servers": text})


def test_there_must_be_a_broker() -> None:
    with pytest.raises(ConfigError, match=r"Set bootstrap\.servers"):
        ClientConfig.from_properties({})


def test_librdkafka_s_name_for_the_brokers_is_known_and_java_s_goes_before_it() -> None:
    assert (("a", 1),) == ClientConfig.from_properties({"metadata.broker.list": "a:1"}).bootstrap
    both = {"metadata.broker.list": "a:1", "bootstrap.servers": "b:2"}
    assert (("b", 2),) == ClientConfig.from_properties(both).bootstrap


def test_values_may_be_text_or_not() -> None:
    config = made(request_timeout_ms="5", enable_idempotence=True, acks=-1, compression_type="ZSTD")
    assert (5, True, "all", "zstd") == (
        config.request_timeout_ms,
        config.enable_idempotence,
        config.acks,
        config.compression_type,
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"request.timeout.ms": "soon"}, "request.timeout.ms must be a whole number from 1 to 2147483647, not 'soon'."),
        ({"request.timeout.ms": 0}, "request.timeout.ms must be a whole number from 1 to 2147483647, not '0'."),
        ({"acks": "2"}, "acks must be one of all, 1, 0, not '2'."),
        ({"compression.type": "rar"}, "compression.type must be one of none, gzip, snappy, lz4, zstd, not 'rar'."),
        ({"enable.idempotence": "maybe"}, "enable.idempotence must be one of true, false, not 'maybe'."),
        ({"max.in.flight.requests.per.connection": 6}, "max.in.flight.requests.per.connection must be a whole number"),
        (
            {"security.protocol": "TLS"},
            "security.protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, not 'TLS'.",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, not 'GSSAPI'.",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"},
            "PLAIN needs sasl.username and sasl.password, or sasl.jaas.config with both.",
        ),
        ({"ssl.truststore.location": "/x/trust.jks"}, "ssl.truststore.location must be a PEM file here"),
        ({"ssl.keystore.location": "/x/k", "ssl.keystore.type": "PKCS12"}, "ssl.keystore.location must be a PEM file"),
    ],
)
def test_a_value_that_cannot_be_is_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as failure:
        ClientConfig.from_properties(SERVERS | settings)
    assert str(failure.value).startswith(sentence)


def test_unknown_names_are_kept_aside() -> None:
    assert ("linger.ms", "no.such.thing") == made(no_such_thing=1, linger_ms=5).unknown


# Security -------------------------------------------------------------------------------------------------------------


def test_sasl_by_librdkafka_s_names() -> None:
    config = made(security_protocol="sasl_ssl", sasl_mechanisms="scram-sha-256", sasl_username="u", sasl_password="p")
    assert (Sasl("SCRAM-SHA-256", "u", "p"), TlsSettings()) == (config.sasl, config.tls)


def test_sasl_by_java_s_names() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p;\\"x";'
    assert Sasl("PLAIN", "u", 'p;"x') == made(security_protocol="SASL_PLAINTEXT", sasl_jaas_config=jaas).sasl


def test_without_sasl_in_the_protocol_nobody_logs_in() -> None:
    config = made(sasl_username="u", sasl_password="p", ssl_ca_location="/ca.pem")
    assert (None, None, ()) == (config.sasl, config.tls, config.unknown)


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
def test_jaas_that_cannot_be_read_does_not_show(text: str) -> None:
    with pytest.raises(ConfigError) as failure:
        parse_jaas(text)
    assert SECRET not in str(failure.value)


def test_passwords_do_not_show() -> None:
    jaas = f"a.ScramLoginModule required username=u password='{SECRET.replace(chr(39), chr(92) + chr(39))}';"
    config = made(
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=jaas, ssl_key_password=SECRET
    )
    assert config.sasl is not None
    assert SECRET == config.sasl.password
    assert SECRET not in repr(config)
    assert config == pickle.loads(pickle.dumps(config))
