import pytest

from broker.client.kafka import ClientConfig
from broker.client.security_settings import SecuritySettings
from broker.errors import ConfigError

SERVERS = {"bootstrap.servers": "localhost:9092"}


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
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        ClientConfig.from_properties({"bootstrap.servers": text})


def test_broker_address_is_required() -> None:
    with pytest.raises(ConfigError, match=r"Set bootstrap\.servers"):
        ClientConfig.from_properties({})


def test_java_name_of_brokers_precedes_librdkafkas_name() -> None:
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
    ],
)
def test_invalid_value_is_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as failure:
        ClientConfig.from_properties(SERVERS | settings)
    assert str(failure.value).startswith(sentence)


def test_unknown_names_are_kept_aside() -> None:
    assert ("linger.ms", "no.such.thing") == made(no_such_thing=1, linger_ms=5).unknown


def test_security_goes_to_its_own_values() -> None:
    config = made(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")
    assert config.security == SecuritySettings.from_properties(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    )
    assert config.tls is not None
    assert () == config.unknown
