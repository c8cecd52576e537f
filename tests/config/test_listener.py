"""Listener URLs: what they say, and that a wrong one is answered with a sentence that says what to change."""

import string

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config import BrokerConfig, Listener, parse_listener
from broker.errors import ConfigError
from tests.config.sentences import sentence


def test_listener_url_has_bind_and_advertised_address() -> None:
    listener = parse_listener("kafka://0.0.0.0:19092?name=docker&advertised=broker:29092")
    assert ("docker", "kafka", "0.0.0.0", 19092, 19092) == (
        listener.name,
        listener.scheme,
        listener.host,
        listener.port,
        listener.port_max,
    )
    assert ("broker", 29092) == listener.advertised
    config = BrokerConfig(listeners=(listener,))
    assert ("broker", 29092) == config.advertised_address("docker")
    # The setting wins: it can be changed without touching the URL.
    assert ("other", 1) == attrs.evolve(config, advertised_listeners={"docker": "other:1"}).advertised_address("docker")


@pytest.mark.parametrize(
    ("url", "host", "ports"),
    [
        ("kafka://127.0.0.1:9092", "127.0.0.1", [9092]),
        ("kafka://localhost", "localhost", [9092]),
        ("kafka://localhost:0", "localhost", [0]),
        ("kafka://:9092", "0.0.0.0", [9092]),
        ("kafka://[::1]:9310-9312", "::1", [9310, 9311, 9312]),
        ("kafka://[fe80::1%eth0]:9092/", "fe80::1%eth0", [9092]),
        ("shuffle://some-host.example:9310", "some-host.example", [9310]),
    ],
)
def test_hosts_and_ports_of_listener_urls(url: str, host: str, ports: list[int]) -> None:
    listener = parse_listener(url)
    assert (host, ports) == (listener.host, list(listener.ports))
    assert listener.scheme == listener.name


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:9092", ["scheme://host:port", "kafka://127"]),
        ("PLAINTEXT://:9092", ["scheme://host:port", "example kafka://127"]),
        ("SASL_SSL://localhost:9092", ["scheme://host:port", "example kafka+sasl+ssl://127"]),
        ("kafka://::1:9092", ["in brackets"]),
        ("kafka://localhost:port", ["scheme://host:port"]),
        ("kafka://localhost:70000", ["65535"]),
        ("kafka://localhost:9319-9310", ["from low to high"]),
        ("kafka://localhost:0-10", ["from 1 on"]),
        ("shuffle://localhost", ["which port"]),
        ("kafka://localhost:1?nam=x", ["'nam'", "did you mean 'name'"]),
        ("kafka://localhost:1?tls=yes", ["'tls'", "name, advertised"]),
        ("kafka://localhost:1?name=", ["'name'", "a value"]),
        ("kafka://localhost:1?name=a&name=b", ["only once"]),
        ("kafka://localhost:1?name=a:b", ["letters, digits"]),
        ("kafka://localhost:1?advertised=broker", ["host:port"]),
        ("kafka://user@localhost:1", ["scheme://host:port"]),
    ],
)
def test_invalid_listener_url_is_refused(url: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_listener(url)
    text = sentence(caught.value)
    assert [] == [word for word in words if word not in text], text


hosts = st.sampled_from(["localhost", "127.0.0.1", "::1", "broker-1.example", "0.0.0.0"])


names = st.text(string.ascii_letters + string.digits + "._-", min_size=1)


@given(hosts, st.integers(0, 65535), st.integers(0, 100), names, st.booleans())
def test_listener_url_round_trips(host: str, port: int, more: int, name: str, advertised: bool) -> None:
    port_max = port if port == 0 else min(port + more, 65535)
    options = {"advertised": "broker:9092"} if advertised else {}
    listener = Listener(name, "kafka", host, port, port_max, options)
    assert listener == parse_listener(str(listener))


@given(st.text(max_size=40))
def test_parser_raises_only_config_errors(text: str) -> None:
    try:
        assert parse_listener(text) == parse_listener(str(parse_listener(text)))
    except ConfigError as error:
        sentence(error)
