"""The settings in force for one topic: its own, and the broker's defaults for the others.

A value: no thread, no I/O. The table of settings is in ``broker/config/topic_settings.py``; a topic's own settings are kept
as text in the catalogue.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from broker.config import BrokerConfig, topic_settings
from broker.config.setting import InvalidSetting
from broker.config.topic_settings import BY_NAME, SETTINGS

COMPRESSION_CODECS = {"uncompressed": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@attrs.frozen(kw_only=True)
class LogConfig:
    """The settings in force for one topic. Times are ms, sizes bytes; an attribute is the setting's name with underscores."""

    cleanup_policy: tuple[str, ...] = topic_settings.CLEANUP_POLICY.default
    compression_gzip_level: int = topic_settings.COMPRESSION_GZIP_LEVEL.default
    compression_lz4_level: int = topic_settings.COMPRESSION_LZ4_LEVEL.default
    compression_type: str = topic_settings.COMPRESSION_TYPE.default
    compression_zstd_level: int = topic_settings.COMPRESSION_ZSTD_LEVEL.default
    delete_retention_ms: int = topic_settings.DELETE_RETENTION_MS.default
    file_delete_delay_ms: int = topic_settings.FILE_DELETE_DELAY_MS.default
    flush_messages: int = topic_settings.FLUSH_MESSAGES.default
    flush_ms: int = topic_settings.FLUSH_MS.default
    follower_replication_throttled_replicas: tuple[str, ...] = (
        topic_settings.FOLLOWER_REPLICATION_THROTTLED_REPLICAS.default
    )
    index_interval_bytes: int = topic_settings.INDEX_INTERVAL_BYTES.default
    leader_replication_throttled_replicas: tuple[str, ...] = (
        topic_settings.LEADER_REPLICATION_THROTTLED_REPLICAS.default
    )
    local_retention_bytes: int = topic_settings.LOCAL_RETENTION_BYTES.default
    local_retention_ms: int = topic_settings.LOCAL_RETENTION_MS.default
    max_compaction_lag_ms: int = topic_settings.MAX_COMPACTION_LAG_MS.default
    max_message_bytes: int = topic_settings.MAX_MESSAGE_BYTES.default
    message_timestamp_after_max_ms: int = topic_settings.MESSAGE_TIMESTAMP_AFTER_MAX_MS.default
    message_timestamp_before_max_ms: int = topic_settings.MESSAGE_TIMESTAMP_BEFORE_MAX_MS.default
    message_timestamp_type: str = topic_settings.MESSAGE_TIMESTAMP_TYPE.default
    min_cleanable_dirty_ratio: float = topic_settings.MIN_CLEANABLE_DIRTY_RATIO.default
    min_compaction_lag_ms: int = topic_settings.MIN_COMPACTION_LAG_MS.default
    min_insync_replicas: int = topic_settings.MIN_INSYNC_REPLICAS.default
    preallocate: bool = topic_settings.PREALLOCATE.default
    record_validation: str = topic_settings.RECORD_VALIDATION.default
    remote_log_copy_disable: bool = topic_settings.REMOTE_LOG_COPY_DISABLE.default
    remote_log_delete_on_disable: bool = topic_settings.REMOTE_LOG_DELETE_ON_DISABLE.default
    remote_storage_enable: bool = topic_settings.REMOTE_STORAGE_ENABLE.default
    retention_bytes: int = topic_settings.RETENTION_BYTES.default
    retention_ms: int = topic_settings.RETENTION_MS.default
    segment_bytes: int = topic_settings.SEGMENT_BYTES.default
    segment_index_bytes: int = topic_settings.SEGMENT_INDEX_BYTES.default
    segment_jitter_ms: int = topic_settings.SEGMENT_JITTER_MS.default
    segment_ms: int = topic_settings.SEGMENT_MS.default
    unclean_leader_election_enable: bool = topic_settings.UNCLEAN_LEADER_ELECTION_ENABLE.default
    visible: str = topic_settings.VISIBLE.default
    # Not a topic's: the disk is a cache, and what is durable is in the journal.
    is_shipped: bool = False

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def shows_durable(self) -> bool:
        """Whether consumers see only durable records. Always where another machine may take over: they must not have read what
        a take-over takes away."""
        return self.is_shipped or self.visible == "durable"

    @property
    def compression_codec(self) -> int | None:
        """Codec id of stored batches; None keeps the producer's."""
        return COMPRESSION_CODECS.get(self.compression_type)

    @property
    def decompresses(self) -> bool:
        """Whether the records of each appended batch are read."""
        return self.compact or self.compression_codec is not None or self.record_validation == "full"

    def text(self, name: str) -> str:
        """The value of a setting by its Kafka name, as text."""
        setting = BY_NAME[name]
        return setting.text(getattr(self, setting.field))

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> "LogConfig":
        """The defaults for all topics. Raises AttributeError for a setting that the broker lacks."""
        fields: dict[str, Any] = {}
        for setting in SETTINGS:
            if setting.kafka is not None:
                value = getattr(config, setting.kafka.replace(".", "_"))
                fields[setting.field] = setting.parse(setting.text(value))
        # A broker without an object store has no topic that uses one (see `from_overrides`).
        return cls(**fields, remote_storage_enable=config.objects is not None, is_shipped=config.catalogue is not None)

    @classmethod
    def from_overrides(cls, defaults: "LogConfig", overrides: Mapping[str, str]) -> "LogConfig":
        """``defaults`` with a topic's own settings. Raises InvalidSetting, naming the setting."""
        fields: dict[str, Any] = {}
        for name, text in overrides.items():
            setting = BY_NAME.get(name)
            if setting is None:
                raise InvalidSetting(f"Unknown topic config name: {name}")
            if text is None:
                raise InvalidSetting(f"Null value not supported for topic config: {name}")
            fields[setting.field] = setting.parse(text)
        if defaults.is_shipped:  # where the disk is a cache, closed segments have no other place
            fields |= {"remote_storage_enable": True, "remote_log_copy_disable": False}
        config = attrs.evolve(defaults, **fields)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidSetting(
                f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) must not be larger than "
                f"max.compaction.lag.ms ({config.max_compaction_lag_ms})."
            )
        if config.remote_storage_enable:
            _check_tier(config, defaults)
        return config


def _check_tier(config: LogConfig, defaults: LogConfig) -> None:
    """As Kafka's LogConfig. Raises InvalidSetting."""
    if not defaults.remote_storage_enable:
        raise InvalidSetting(
            "Tiered Storage functionality is disabled in the broker: to set remote.storage.enable to true, start it with "
            "`objects`, the URL of an object store."
        )
    for local, whole, name in (
        (config.local_retention_ms, config.retention_ms, "ms"),
        (config.local_retention_bytes, config.retention_bytes, "bytes"),
    ):
        if local != -2 and whole != -1 and (local == -1 or local > whole):
            raise InvalidSetting(
                f"local.retention.{name} ({local}) must not be larger than retention.{name} ({whole}): it may be -2, which is "
                "the same."
            )
