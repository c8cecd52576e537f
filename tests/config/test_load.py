"""Settings: how they are read, what wins, and that a wrong one is answered with a sentence that says what to change."""

import re
import string
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config import BrokerConfig, Listener, load, parse_listener, setting_infos
from broker.config.kafka_names import COARSER, REFUSED, WITHOUT_EFFECT
from broker.config.topic_settings import SETTINGS
from broker.errors import ConfigError


def sentence(error: ConfigError) -> str:
    text = str(error)
    assert text.endswith("."), text
    assert "\n" not in text
    return text


def test_nothing_set_gives_the_defaults() -> None:
    config = load()
    assert BrokerConfig() == config
    assert ["kafka://127.0.0.1:9092"] == [str(listener) for listener in config.listeners]
    assert (3, 8, 500) == (config.network_threads, config.io_threads, config.queued_max_requests)


def test_a_toml_file_sets_settings() -> None:
    config = load(
        """
        network_threads = 5
        auto_create_topics_enable = false
        log_cleaner_min_cleanable_ratio = 0.25
        listeners = ["kafka://127.0.0.1:9092", "kafka://0.0.0.0:19092?name=docker"]
        [advertised_listeners]
        docker = "broker:19092"
        """
    )
    assert 5 == config.network_threads
    assert config.auto_create_topics_enable is False
    assert 0.25 == config.log_cleaner_min_cleanable_ratio
    assert ["kafka", "docker"] == [listener.name for listener in config.listeners]
    assert ("broker", 19092) == config.advertised_address("docker")
    assert config.advertised_address("kafka") is None


def test_kafkas_own_names_are_understood_in_a_file_and_on_the_command_line() -> None:
    config = load(
        'num.network.threads = 5\nlog.retention.ms = 1\nlog.dirs = "x"\n[advertised.listeners]\nkafka = "a:1"',
        overrides=["num.io.threads=4"],
    )
    assert (5, 1, "x", 4) == (config.network_threads, config.log_retention_ms, config.data_dir, config.io_threads)
    assert ("a", 1) == config.advertised_address("kafka")


def test_the_command_line_wins_over_the_file_and_its_own_options_over_both() -> None:
    config = load(
        "node_id = 1\nio_threads = 1", overrides=["node_id=2", "network_threads=2", "node_id=3"], network_threads=7
    )
    assert (3, 1, 7) == (config.node_id, config.io_threads, config.network_threads)


def test_the_command_line_takes_lists_and_tables() -> None:
    config = load(
        overrides=[
            "listeners=kafka://127.0.0.1:1, kafka://127.0.0.1:2?name=b",
            "advertised.listeners=kafka://localhost:1,b=broker:2",
            "max_connections_per_ip_overrides=127.0.0.1=4",
        ]
    )
    assert ["kafka", "b"] == [listener.name for listener in config.listeners]
    assert {"kafka": "localhost:1", "b": "broker:2"} == config.advertised_listeners
    assert {"127.0.0.1": 4} == config.max_connections_per_ip_overrides


def test_an_empty_value_unsets_what_may_be_unset() -> None:
    config = load('cluster_id = "x"', overrides=["cluster_id=", "control_listener="])
    assert config.cluster_id is None
    assert config.control_listener is None


def test_kafkas_settings_in_other_units_are_converted() -> None:
    assert load("log.retention.hours = 168").log_retention_ms == 604_800_000
    assert load("log.retention.hours = -1").log_retention_ms == -1
    hours_and_minutes = "log.retention.hours = 1\nlog.retention.minutes = 90\n"
    assert load(hours_and_minutes).log_retention_ms == 5_400_000
    for finest in (load(hours_and_minutes + "log.retention.ms = 7"), load(hours_and_minutes, log_retention_ms=7)):
        assert finest.log_retention_ms == 7, "milliseconds win, wherever they are set"
    assert load(overrides=["log.roll.hours=2", "broker.id=4"]).log_roll_ms == 7_200_000
    assert load("broker.id = 4\nnode.id = 5").node_id == 5


def test_kafkas_settings_that_mean_nothing_here_are_kept_by_name() -> None:
    config = load(
        "background.threads = 4\nssl.keystore.password = 'geheim'\nlistener.name.external.ssl.client.auth = 'none'\n"
        "auto.leader.rebalance.enable = true\n[offsets.topic]\nreplication.factor = 1",
        overrides=["broker.rack=r1"],
    )
    assert config.ignored_kafka_settings == {
        "background.threads": "4",
        "ssl.keystore.password": "",
        "listener.name.external.ssl.client.auth": "none",
        "auto.leader.rebalance.enable": "true",
        "offsets.topic.replication.factor": "1",
        "broker.rack": "r1",
    }
    assert "geheim" not in repr(config)


def test_no_setting_is_both_known_and_without_effect() -> None:
    known = {info.kafka for info in setting_infos(BrokerConfig)} | COARSER.keys() | REFUSED.keys()
    assert not known & WITHOUT_EFFECT
    assert all(name == name.strip().lower() and "." in name for name in WITHOUT_EFFECT)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["network_thread=1"], ["network_thread'", "did you mean 'network_threads'"]),
        (["log.retention.days=1"], ["did you mean 'log_retention_ms'"]),
        (["log.retention.hours=soon"], ["log_retention_ms", "whole number", "'soon'"]),
        (["authorizer.class.name=org.x.Authorizer"], ["authorizer.class.name", "no ACLs"]),
        (["offsets.topic.replication.facto=1"], ["offsets.topic.replication.facto"]),
        (["xyzzy=1"], ["OPERATIONS.md"]),
        (["network_threads"], ["--set key=value"]),
        (["network_threads=many"], ["network_threads", "whole number", "'many'"]),
        (["network_threads=0"], ["network_threads", "from 1 to 1024", "0"]),
        (["log_roll_ms=9223372036854775808"], ["log_roll_ms", "whole number"]),
        (["node_id=true"], ["node_id", "whole number"]),
        (["auto_create_topics_enable=3"], ["auto_create_topics_enable", "true or false"]),
        (["compression_type=rar"], ["compression_type", "one of producer, uncompressed"]),
        (["log_cleaner_min_cleanable_ratio=2"], ["log_cleaner_min_cleanable_ratio", "from 0 to 1"]),
        (["listeners="], ["listeners", "at least one"]),
        (["listeners=kafka://a:1,kafka://b:2"], ["'kafka'", "?name="]),
        (["advertised_listeners=other=a:1"], ["'other'", "kafka"]),
        (["advertised_listeners=kafka=a"], ["host:port"]),
        (["max_connections_per_ip_overrides=127.0.0.1=-1"], ["max_connections_per_ip_overrides"]),
        (["outgoing_low_water_bytes=2000000"], ["outgoing_low_water_bytes", "outgoing_high_water_bytes"]),
        (["group_min_session_timeout_ms=10", "group_max_session_timeout_ms=9"], ["group_max_session_timeout_ms"]),
        (["message_max_bytes=200000000"], ["message_max_bytes", "socket_request_max_bytes"]),
    ],
)
def test_a_wrong_override_is_refused_with_what_to_change(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides=overrides)
    text = sentence(caught.value)
    assert [] == [word for word in words if word not in text], text


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("network_threads = ", ["b.toml", "not valid TOML"]),
        ("network_threads = true", ["network_threads", "b.toml", "whole number"]),
        ("network_threads = 1.5", ["network_threads", "whole number"]),
        ("data_dir = 3", ["data_dir", "a text"]),
        ("listeners = [1]", ["listeners", "a list"]),
        ("advertised_listeners = 1", ["advertised_listeners", "a table"]),
        ("io_threads = 1\nnum.io.threads = 2", ["io_threads", "only once"]),
        ("[kafka]\nnetwork_threads = 1", ["kafka.network_threads", "did you mean 'network_threads'"]),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_what_to_change(toml: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(toml, source="b.toml")
    text = sentence(caught.value)
    assert [] == [word for word in words if word not in text], text


def test_a_value_given_in_python_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"Set network_threads to a whole number from 1 to 1024: it is '3'\."):
        BrokerConfig(network_threads="3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'io_threads'"):
        load(io_thread=3)
    assert "9310" in str(BrokerConfig(listeners=["kafka://localhost:9310"]).listeners[0])  # type: ignore[arg-type]


def test_a_listener_url_says_where_and_what_to_advertise() -> None:
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
        ("localhost:9092", ["scheme://host:port"]),
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
def test_a_listener_url_that_cannot_be_meant_is_refused(url: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_listener(url)
    text = sentence(caught.value)
    assert [] == [word for word in words if word not in text], text


hosts = st.sampled_from(["localhost", "127.0.0.1", "::1", "broker-1.example", "0.0.0.0"])
names = st.text(string.ascii_letters + string.digits + "._-", min_size=1)


@given(hosts, st.integers(0, 65535), st.integers(0, 100), names, st.booleans())
def test_a_listener_written_as_a_url_reads_back_the_same(
    host: str, port: int, more: int, name: str, advertised: bool
) -> None:
    port_max = port if port == 0 else min(port + more, 65535)
    options = {"advertised": "broker:9092"} if advertised else {}
    listener = Listener(name, "kafka", host, port, port_max, options)
    assert listener == parse_listener(str(listener))


@given(st.text(max_size=40))
def test_no_text_makes_the_parser_fail_otherwise_than_with_a_config_error(text: str) -> None:
    try:
        assert parse_listener(text) == parse_listener(str(parse_listener(text)))
    except ConfigError as error:
        sentence(error)


@given(st.sampled_from(setting_infos(BrokerConfig)), st.text(max_size=20))
def test_no_value_makes_any_setting_fail_otherwise_than_with_a_config_error(info: object, text: str) -> None:
    try:
        load(overrides=[f"{info.name}={text}"])  # type: ignore[attr-defined]
    except ConfigError as error:
        sentence(error)


def test_every_setting_says_what_it_does_and_why_it_is_what_it_is() -> None:
    for info in setting_infos(BrokerConfig):
        assert info.doc.endswith("."), info.name
        assert info.reason.endswith("."), info.name
        assert info.section, info.name


def test_units_come_last_in_names() -> None:
    for info in setting_infos(BrokerConfig):
        if info.unit == "ms":
            assert info.name.endswith("_ms"), info.name


def test_every_setting_does_something() -> None:
    root = Path(__file__).parent.parent / "broker"
    sources = [path.read_text("utf-8") for path in root.rglob("*.py") if path.parent.name != "config"]
    topic_defaults = {setting.synonym.replace(".", "_") for setting in SETTINGS if setting.synonym}
    # Read through BrokerConfig.advertised_address; and one whose only possible value says that there is one node.
    elsewhere = {"advertised_listeners", "default_replication_factor"}
    used = topic_defaults | elsewhere
    idle = [
        info.name
        for info in setting_infos(BrokerConfig)
        if info.name not in used and not any(re.search(rf"\b{info.name}\b", source) for source in sources)
    ]
    assert [] == idle


def test_the_brokers_bounds_are_not_wider_than_a_topics() -> None:
    broker = {info.name: info for info in setting_infos(BrokerConfig)}
    for setting in SETTINGS:
        if setting.synonym is not None and setting.minimum is not None:
            least = broker[setting.synonym.replace(".", "_")].least
            assert least is not None, setting.synonym
            assert least >= setting.minimum, setting.synonym


def test_every_default_is_within_its_own_bounds_and_can_be_written_on_the_command_line() -> None:
    for info in setting_infos(BrokerConfig):
        if info.plain_type in (int, float, str, bool) and info.default is not None:
            config = load(
                overrides=[f"{info.name}={str(info.default).lower() if info.plain_type is bool else info.default}"]
            )
            assert info.default == getattr(config, info.name)
