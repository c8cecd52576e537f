"""How settings are read, which one wins, and that a wrong one is answered with a sentence that says what to change."""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config import BrokerConfig, load, setting_infos
from broker.config.server_settings import default_processors
from broker.config.setting import Setting
from broker.errors import ConfigError
from tests.config.sentences import sentence
from tests.loops import loop_over


def test_nothing_set_gives_the_defaults() -> None:
    config = load()
    assert BrokerConfig() == config
    assert ["kafka://127.0.0.1:9092"] == [str(listener) for listener in config.listeners]
    assert (8, 500) == (config.io_threads, config.queued_max_requests)


@pytest.mark.parametrize(("is_locked", "processors"), [(True, 1), (False, 3)])
def test_one_processor_where_only_one_thread_runs_at_a_time(
    monkeypatch: pytest.MonkeyPatch, is_locked: bool, processors: int
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: is_locked, raising=False)
    assert processors == default_processors()


def test_one_processor_before_python_3_13(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "_is_gil_enabled", raising=False)
    assert 1 == default_processors()


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


def test_kafka_names_work_in_file_and_arguments() -> None:
    config = load(
        'num.network.threads = 5\nlog.retention.ms = 1\nlog.dirs = "x"\n[advertised.listeners]\nkafka = "a:1"',
        overrides=["num.io.threads=4"],
    )
    assert (5, 1, "x", 4) == (config.network_threads, config.log_retention_ms, config.data_dir, config.io_threads)
    assert ("a", 1) == config.advertised_address("kafka")


def test_precedence_is_options_overrides_file() -> None:
    config = load(
        "node_id = 1\nio_threads = 1", overrides=["node_id=2", "network_threads=2", "node_id=3"], network_threads=7
    )
    assert (3, 1, 7) == (config.node_id, config.io_threads, config.network_threads)


def test_settings_come_from_the_environment() -> None:
    variables = {
        "BROKER_NUM_PARTITIONS": "3",
        "BROKER_FAULTS_ENABLED": "true",
        "BROKER_LISTENERS": "kafka://0.0.0.0:9092?advertised=localhost:9092, http://0.0.0.0:8080",
        "BROKER_ADVERTISED_LISTENERS": "kafka=broker:9092",
        "BROKER_CREATE_TOPICS": "orders:3,users",
        "BROKER_BROKER_RACK": "",
        "BROKER_NODE_ID": " ",
        # Those of commands, of Kubernetes, and of others.
        "BROKER_ADMIN_URL": "http://localhost:8080",
        "BROKER_BOOTSTRAP_SERVERS": "localhost:9092",
        "BROKER_SASL_PASSWORD": "secret",
        "BROKER_USER_PASSWORD": "secret",
        "BROKER_CERTS_PASSWORD": "secret",
        "BROKER_CLIENT_CONFIG": "client.properties",
        "BROKER_PORT": "tcp://10.0.0.1:9092",
        "BROKER_SERVICE_HOST": "10.0.0.1",
        "BROKER_SERVICE_PORT_KAFKA": "9092",
        "BROKER_PORT_9092_TCP_ADDR": "10.0.0.1",
        "NUM_PARTITIONS": "7",
    }
    config = load(variables=variables)
    assert (3, True, ("orders:3", "users")) == (config.num_partitions, config.faults_enabled, config.create_topics)
    assert ["kafka", "http"] == [listener.name for listener in config.listeners]
    assert ("broker", 9092) == config.advertised_address("kafka")
    assert (None, 1) == (config.broker_rack, config.node_id)
    expected = {"num_partitions", "faults_enabled", "listeners", "advertised_listeners", "create_topics"}
    assert expected == config.given


def test_precedence_is_overrides_environment_file() -> None:
    variables = {"BROKER_NODE_ID": "2", "BROKER_IO_THREADS": "2"}
    config = load("node_id = 1\nio_threads = 1\nnetwork_threads = 1", variables=variables, overrides=["node_id=3"])
    assert (3, 2, 1) == (config.node_id, config.io_threads, config.network_threads)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("BROKER_NUM_PARTITIONS", "many", r"Set num_partitions in BROKER_NUM_PARTITIONS to a whole number"),
        ("BROKER_FAULT_ENABLED", "true", "did you mean BROKER_FAULTS_ENABLED?"),
        ("BROKER_NUM_PARTITION", "3", "did you mean BROKER_NUM_PARTITIONS?"),
        ("BROKER_CREATE_TOPIC", "orders", "did you mean BROKER_CREATE_TOPICS?"),
    ],
)
def test_a_wrong_variable_is_refused(variable: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(variables={variable: text})


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


def test_meaningless_kafka_settings_are_kept_by_name() -> None:
    config = load(
        "background.threads = 4\ndelegation.token.master.key = 'geheim'\n\n"
        "auto.leader.rebalance.enable = true\n[offsets.topic]\nreplication.factor = 1",
        overrides=["num.replica.fetchers=2"],
    )
    assert config.ignored_kafka_settings == {
        "background.threads": "4",
        "delegation.token.master.key": "",
        "auto.leader.rebalance.enable": "true",
        "offsets.topic.replication.factor": "1",
        "num.replica.fetchers": "2",
    }
    assert "geheim" not in repr(config)


@loop_over(
    ("overrides", "words"),
    [
        (["network_thread=1"], ["network_thread'", "did you mean 'network_threads'"]),
        (["log.retention.days=1"], ["did you mean 'log_retention_ms'"]),
        (["gibberish=1"], ["'gibberish'", "docs/SETTINGS.md lists all settings"]),
        (["log.retention.hours=soon"], ["log.retention.hours in --set", "whole number", "'soon'"]),
        (["log.retention.minutes=-7"], ["log.retention.minutes in --set", "from -1 to 153722867280912", "it is '-7'"]),
        (["log.roll.hours=0"], ["log.roll.hours in --set", "from 1 to ", "it is '0'"]),
        (["log.retention.hours=2562047788016"], ["log.retention.hours in --set", "to 2562047788015"]),
        (["authorizer.class.name=org.x.Authorizer"], ["authorizer_class_name", "one of acl, "]),
        (["offsets.topic.replication.facto=1"], ["offsets.topic.replication.facto"]),
        (["xyzzy=1"], ["SETTINGS.md"]),
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
def test_wrong_override_is_refused_with_a_remedy(overrides: list[str], words: list[str]) -> None:
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
def test_wrong_file_is_refused_with_a_remedy(toml: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(toml, source="b.toml")
    text = sentence(caught.value)
    assert [] == [word for word in words if word not in text], text


@given(st.sampled_from(setting_infos(BrokerConfig)), st.text(max_size=20))
def test_settings_raise_only_config_errors(info: object, text: str) -> None:
    try:
        load(overrides=[f"{info.name}={text}"])  # type: ignore[attr-defined]
    except ConfigError as error:
        sentence(error)


def test_kafkas_names_may_be_written_with_underscores() -> None:
    assert 5 * 3_600_000 == load(overrides=["log_retention_hours=5"]).log_retention_ms
    assert 5 * 3_600_000 == load("log_retention_hours = 5").log_retention_ms
    assert {"num.replica.fetchers": "3"} == load(overrides=["num_replica_fetchers=3"]).ignored_kafka_settings


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zookeeper.connect", "needs no ZooKeeper"),
        ("port", "set listeners instead"),
        ("retention.ms", "log_retention_ms sets it for all of them"),
        ("num.partitons", "did you mean 'num_partitions'"),
    ],
)
def test_kafka_settings_elsewhere_are_answered_with_ours(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(overrides=[f"{name}=1"])


def test_list_may_be_text_with_commas() -> None:
    config = load(listeners="kafka://127.0.0.1:0, http://127.0.0.1:0", pulsar_namespaces="a/b,c/d")
    assert ["kafka", "http"] == [listener.scheme for listener in config.listeners]
    assert ("a/b", "c/d") == tuple(config.pulsar_namespaces)
    with pytest.raises(ConfigError, match="Set listeners"):
        load(listeners=5)


# For settings whose default is nothing, and those that are not any text: what the documentation tells users to write.
EXAMPLES: dict[str, Any] = {
    "advertised_listeners": {"kafka": "example.org:9092"},
    "authorizer_class_name": "acl",
    "control_listener": "http://127.0.0.1:9093",
    "feature_max_levels": {"transaction.version": 1},
    "http_allowed_hosts": ["broker.example.org"],
    "ignored_kafka_settings": {"zookeeper.connect": "localhost:2181"},
    "listener_settings": {"kafka.max.connections": "10"},
    "max_connections_per_ip_overrides": {"127.0.0.1": 5},
    "sasl_oauthbearer_expected_audience": ["kafka", "broker"],
    "sasl_oauthbearer_jwks_endpoint_url": "file:///etc/broker/jwks.json",
    "ssl_cipher_suites": ["TLS_AES_256_GCM_SHA384"],
    "super_users": "User:alice;User:bob",
}


def example(info: Setting) -> Any:
    """A value as a user writes it in TOML, if possible another one than the default."""
    if info.name in EXAMPLES:
        return EXAMPLES[info.name]
    default = getattr(BrokerConfig(), info.name)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default - 1 if info.least is None or default - 1 >= info.least else default
    if isinstance(default, tuple):
        return [str(item) for item in default]
    if info.choices:
        return info.choices[-1]
    return default or "some text"


def in_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {in_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)  # as TOML writes texts, numbers and lists of them


def as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return ",".join(value)
    return json.dumps(value) if isinstance(value, bool) else str(value)


def loaded(name: str, **how: Any) -> Any:
    """The setting that is read back and what was given, or why the configuration is refused as a whole."""
    try:
        config = load(**how)
        return getattr(config, name), config.given
    except ConfigError as error:
        return str(error)


@loop_over("info", setting_infos(BrokerConfig))
def test_every_setting_is_accepted_as_documented(info: Setting) -> None:
    """Under both names, in a file and on the command line, and given as an argument: always with the same result."""
    value = example(info)
    expected = loaded(info.name, **{info.name: tuple(value) if isinstance(value, list) else value})
    for name in filter(None, (info.name, info.kafka)):
        key = name if "." in name else json.dumps(name)
        assert expected == loaded(info.name, toml=f"{key} = {in_toml(value)}")
        assert expected == loaded(info.name, toml=f"{key} = {json.dumps(as_text(value))}")
        assert expected == loaded(info.name, overrides=[f"{name}={as_text(value)}"])
    assert f"Set {info.name} " not in str(expected), "the example is refused"
    assert isinstance(expected, str) or expected[1] == {info.name}
