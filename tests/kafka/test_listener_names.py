"""Listeners as Kafka's tools read them."""

from broker.config.listener import Listener, parse_listener
from broker.kafka.configs.resources import listeners_text


def listener(url: str, name: str | None = None) -> Listener:
    return parse_listener(url, name)


def test_listeners_are_named_after_their_security_protocol() -> None:
    both = [listener("kafka://0.0.0.0:9092"), listener("kafka+ssl://0.0.0.0:9093")]
    assert listeners_text(both, {}) == "PLAINTEXT://0.0.0.0:9092,SSL://0.0.0.0:9093"
    encrypted = [listener("kafka+sasl://h:1"), listener("kafka+sasl+ssl://h:2")]
    assert listeners_text(encrypted, {}) == "SASL_PLAINTEXT://h:1,SASL_SSL://h:2"


def test_a_name_of_its_own_is_kept() -> None:
    assert listeners_text([listener("kafka://h:1", "inner")], {}) == "INNER://h:1"


def test_the_address_that_is_given_wins() -> None:
    both = [listener("kafka://127.0.0.1:0"), listener("kafka://h:1", "inner")]
    assert listeners_text(both, {"kafka": ("localhost", 32768)}) == "PLAINTEXT://localhost:32768,INNER://h:1"


def test_other_services_are_omitted_and_ipv6_is_bracketed() -> None:
    both = [listener("shuffle://h:2"), listener("kafka://h:1")]
    assert listeners_text(both, {"kafka": ("::1", 9092)}) == "PLAINTEXT://[::1]:9092"
