"""The table of topic settings."""

import attrs
import pytest

from broker.config.setting import InvalidSetting
from broker.config.settings import BrokerConfig
from broker.config.topic_settings import BY_NAME, SETTINGS
from broker.storage.config import StorageConfig
from broker.storage.log.log_config import LogConfig
from tests.loops import loop_over


def test_settings_table_and_config_fields_match() -> None:
    of_broker = ["is_shipped"]  # no setting of a topic
    fields = [field.name for field in attrs.fields(LogConfig)]
    assert sorted([*(setting.field for setting in SETTINGS), *of_broker]) == sorted(fields)
    assert [setting.name for setting in SETTINGS] == sorted(setting.name for setting in SETTINGS)


def test_the_defaults_are_kafka_s() -> None:
    config = LogConfig()
    assert {setting.name: config.text(setting.name) for setting in SETTINGS} == {
        s.name: s.default_text for s in SETTINGS
    }
    assert (config.retention_ms, config.segment_bytes, config.max_message_bytes) == (604_800_000, 1 << 30, 1_048_588)
    assert (config.compact, config.delete, config.log_append_time, config.compression_codec) == (
        False,
        True,
        False,
        None,
    )


@loop_over("setting", SETTINGS)
def test_the_text_of_a_value_means_the_value(setting: object) -> None:
    for found in SETTINGS:
        assert found.parse(found.default_text) == found.default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", "compact,delete", ("compact", "delete")),
        ("cleanup.policy", " delete , compact ", ("delete", "compact")),
        ("retention.ms", "-1", -1),
        ("retention.ms", " 5 ", 5),
        ("preallocate", "TRUE", True),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("compression.type", "zstd", "zstd"),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1, 1:1", ("0:1", "1:1")),
    ],
)
def test_values_are_read_as_kafka_reads_them(name: str, text: str, value: object) -> None:
    assert getattr(LogConfig.from_overrides(LogConfig(), {name: text}), BY_NAME[name].field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no.such.setting", "1"),
        ("cleanup.policy", "shred"),
        ("compression.gzip.level", "0"),
        ("leader.replication.throttled.replicas", "x"),
        ("follower.replication.throttled.replicas", "0:1,x"),
        ("cleanup.policy", "compact,shred"),
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", ""),
        ("retention.ms", "1_000"),
        ("retention.ms", "9223372036854775808"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "13"),
        ("preallocate", "yes"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("compression.type", "brotli"),
        ("message.timestamp.type", "createtime"),
    ],
)
def test_what_kafka_refuses_is_refused_and_named(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        LogConfig.from_overrides(LogConfig(), {name: text})
    assert name in error.value.message


def test_lags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"min\.compaction\.lag\.ms"):
        LogConfig.from_overrides(LogConfig(), {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})


def test_defaults_come_from_the_broker_s_settings() -> None:
    broker = BrokerConfig(
        data_dir="/data",
        log_retention_ms=5,
        log_cleanup_policy="compact,delete",
        compression_type="lz4",
        log_preallocate=True,
        log_cleaner_min_cleanable_ratio=0.1,
        producer_id_expiration_ms=7,
    )
    config = StorageConfig.from_broker(broker)
    assert (config.data_dir, config.producer_id_expiration_ms) == ("/data", 7)
    defaults = config.defaults
    assert (defaults.retention_ms, defaults.cleanup_policy, defaults.compression_codec) == (5, ("compact", "delete"), 3)
    assert (defaults.preallocate, defaults.min_cleanable_dirty_ratio) == (True, 0.1)
    assert defaults.segment_ms == LogConfig().segment_ms


def test_broker_settings_have_names_and_defaults_of_table() -> None:
    broker = BrokerConfig()
    for setting in SETTINGS:
        if setting.kafka is not None:
            assert hasattr(broker, setting.kafka.replace(".", "_")), setting.kafka
    assert LogConfig.from_broker(broker) == LogConfig()


def test_broker_defaults_arrive_in_the_topic() -> None:
    """One after the other, each with a value that no other default has."""
    other = {"boolean": True, "int": 17, "long": 23, "double": 0.25, "list": "compact"}
    choices = {
        "compression.type": "zstd",
        "message.timestamp.type": "LogAppendTime",
        "compression.gzip.level": 7,
        "record.validation": "full",
        "visible": "durable",
    }
    for setting in SETTINGS:
        if setting.kafka is None:
            continue
        value = choices.get(setting.name, other.get(setting.kind))
        config = LogConfig.from_broker(BrokerConfig(**{setting.kafka.replace(".", "_"): value}))
        changed = {s.name for s in SETTINGS if getattr(config, s.field) != s.default}
        assert changed == {setting.name}


def test_setting_that_broker_lacks_never_becomes_silent_default() -> None:
    """A misspelt name, here or there, ended as Kafka's default until the settings were read by name without a fallback."""

    class Misspelt(BrokerConfig):
        @property
        def log_retention_ms(self) -> int:  # type: ignore[override]
            raise AttributeError("log_retention_ms")

    with pytest.raises(AttributeError, match="log_retention_ms"):
        LogConfig.from_broker(Misspelt())
    with pytest.raises(AttributeError, match="log_retention_ms"):
        StorageConfig.from_broker(Misspelt())


WITH_STORE = LogConfig.from_broker(BrokerConfig(objects="memory://"))


def test_topics_use_object_store_of_broker_that_has_one() -> None:
    assert WITH_STORE.remote_storage_enable
    assert not LogConfig.from_broker(BrokerConfig()).remote_storage_enable
    with pytest.raises(InvalidSetting, match=r"Tiered Storage functionality is disabled in the broker.*`objects`"):
        LogConfig.from_overrides(LogConfig(), {"remote.storage.enable": "true"})


@pytest.mark.parametrize("what", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("local", "whole", "allowed"),
    [(-2, 5, True), (5, 5, True), (6, 5, False), (-1, 5, False), (6, -1, True), (-1, -1, True), (-2, -1, True)],
)
def test_local_retention_is_at_most_retention(what: str, local: int, whole: int, allowed: bool) -> None:
    texts = {f"local.retention.{what}": str(local), f"retention.{what}": str(whole)}
    assert getattr(LogConfig.from_overrides(LogConfig(), texts), f"local_retention_{what}") == local
    if allowed:
        LogConfig.from_overrides(WITH_STORE, texts)
    else:
        with pytest.raises(InvalidSetting, match=rf"local.retention.{what} \({local}\) must not be larger"):
            LogConfig.from_overrides(WITH_STORE, texts)


def test_where_the_disk_is_a_cache_all_is_uploaded_and_shown_when_durable() -> None:
    shipped = LogConfig.from_broker(BrokerConfig(catalogue="postgresql://host/db", objects="memory://"))
    overrides = {"remote.storage.enable": "false", "remote.log.copy.disable": "true", "visible": "written"}
    config = LogConfig.from_overrides(shipped, overrides)
    assert (True, False, True) == (config.remote_storage_enable, config.remote_log_copy_disable, config.shows_durable)
