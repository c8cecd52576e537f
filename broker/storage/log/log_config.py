"""The settings of a topic: Kafka's names, types, defaults and rules, in one table that DescribeConfigs prints.

A value: no thread, no I/O. A topic's own settings are kept as text in the catalogue; ``LogConfig`` is what they mean
together with the broker's defaults. Settings that mean something only where there are replicas are accepted and shown
(administration tools set them), and change nothing.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from broker.errors import RequestError
from protocol.kafka.errors import ErrorCode

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

COMPRESSION_CODECS = {"uncompressed": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@attrs.frozen
class Setting:
    """One row: ``kind`` is Kafka's type name, ``default`` Kafka's default as text, ``synonym`` the broker's setting that
    gives the default for all topics (None: there is none)."""

    name: str
    kind: str
    default: str
    synonym: str | None
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Name of the attribute of ``LogConfig``."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Any:
        """The value that ``text`` means. Raises RequestError with invalid_config."""
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise self._refused(text, f"it is not a {self.kind}") from None
        if self.minimum is not None and not value >= self.minimum:  # so that NaN is refused
            raise self._refused(text, f"it must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise self._refused(text, f"it must be at most {self.maximum}")
        if self.choices:
            for word in value if self.kind == "list" else (value,):
                if word not in self.choices:
                    raise self._refused(text, f"it must be one of {', '.join(self.choices)}")
        return value

    def text(self, value: Any) -> str:
        """The inverse of ``parse``."""
        if self.kind == "boolean":
            return "true" if value else "false"
        return ",".join(value) if self.kind == "list" else str(value)

    def _refused(self, text: str, why: str) -> RequestError:
        return RequestError(ErrorCode.invalid_config, f"Invalid value {text!r} for configuration {self.name}: {why}.")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _integer(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):  # int() would also take "1_000" and digits of other scripts
            raise ValueError
        value = int(text)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError
        return value

    return parse


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


_PARSERS: dict[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    "int": _integer(32),
    "long": _integer(64),
    "double": float,
    "string": str,
    "list": _list,
}

# From Kafka 4.0's TopicConfig, LogConfig and ServerTopicConfigSynonyms; without tiered storage.
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "cleanup.policy",
        "list",
        "delete",
        "log.cleanup.policy",
        "What happens to old segments: 'delete' drops them by time or size, 'compact' keeps the last record of each key.",
        choices=("compact", "delete"),
    ),
    Setting(
        "compression.gzip.level",
        "int",
        "-1",
        "compression.gzip.level",
        "Level used when the broker compresses with gzip; -1 is the library's default.",
        minimum=-1,
        maximum=9,
    ),
    Setting(
        "compression.lz4.level",
        "int",
        "9",
        "compression.lz4.level",
        "Level used when the broker compresses with lz4.",
        minimum=1,
        maximum=17,
    ),
    Setting(
        "compression.type",
        "string",
        "producer",
        "compression.type",
        "Codec of the batches on disk; 'producer' keeps what the producer sent, which costs the broker nothing.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Setting(
        "compression.zstd.level",
        "int",
        "3",
        "compression.zstd.level",
        "Level used when the broker compresses with zstd.",
        minimum=-131072,
        maximum=22,
    ),
    Setting(
        "delete.retention.ms",
        "long",
        "86400000",
        "log.cleaner.delete.retention.ms",
        "How long a compacted topic keeps the marks of deleted keys (tombstones).",
        minimum=0,
    ),
    Setting(
        "file.delete.delay.ms",
        "long",
        "60000",
        "log.segment.delete.delay.ms",
        "How long a file stays on disk after it was deleted from the log.",
        minimum=0,
    ),
    Setting(
        "flush.messages",
        "long",
        str(LONG_MAX),
        "log.flush.interval.messages",
        "Force an fsync after this many messages, whatever the producers' acks say.",
        minimum=1,
    ),
    Setting(
        "flush.ms",
        "long",
        str(LONG_MAX),
        "log.flush.interval.ms",
        "Force an fsync of what is older than this.",
        minimum=0,
    ),
    Setting(
        "follower.replication.throttled.replicas",
        "list",
        "",
        None,
        "Accepted for administration tools; there are no followers.",
    ),
    Setting(
        "index.interval.bytes",
        "int",
        "4096",
        "log.index.interval.bytes",
        "About every how many bytes of log an entry is added to the offset index.",
        minimum=0,
    ),
    Setting(
        "leader.replication.throttled.replicas",
        "list",
        "",
        None,
        "Accepted for administration tools; there are no followers.",
    ),
    Setting(
        "max.compaction.lag.ms",
        "long",
        str(LONG_MAX),
        "log.cleaner.max.compaction.lag.ms",
        "A record is compacted at the latest when it is this old.",
        minimum=1,
    ),
    Setting(
        "max.message.bytes",
        "int",
        "1048588",
        "message.max.bytes",
        "The largest record batch (after compression) that is accepted.",
        minimum=0,
    ),
    Setting(
        "message.timestamp.after.max.ms",
        "long",
        "3600000",
        "log.message.timestamp.after.max.ms",
        "How far a record's timestamp may be ahead of the broker's clock.",
        minimum=0,
    ),
    Setting(
        "message.timestamp.before.max.ms",
        "long",
        str(LONG_MAX),
        "log.message.timestamp.before.max.ms",
        "How far a record's timestamp may be behind the broker's clock.",
        minimum=0,
    ),
    Setting(
        "message.timestamp.type",
        "string",
        "CreateTime",
        "log.message.timestamp.type",
        "Whether a record keeps its producer's timestamp or gets the broker's.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        "double",
        "0.5",
        "log.cleaner.min.cleanable.ratio",
        "A log is compacted when at least this part of it has not been compacted yet.",
        minimum=0,
        maximum=1,
    ),
    Setting(
        "min.compaction.lag.ms",
        "long",
        "0",
        "log.cleaner.min.compaction.lag.ms",
        "A record stays uncompacted for at least this long.",
        minimum=0,
    ),
    Setting(
        "min.insync.replicas",
        "int",
        "1",
        "min.insync.replicas",
        "How many replicas must have a record before acks=all is answered; there is one.",
        minimum=1,
    ),
    Setting(
        "preallocate",
        "boolean",
        "false",
        "log.preallocate",
        "Accepted; files grow as they are written.",
    ),
    Setting(
        "retention.bytes",
        "long",
        "-1",
        "log.retention.bytes",
        "Delete the oldest segments of a partition while it is larger than this; -1 is no bound.",
        minimum=-1,
    ),
    Setting(
        "retention.ms",
        "long",
        "604800000",
        "log.retention.ms",
        "Delete segments whose newest record is older than this; -1 is no bound.",
        minimum=-1,
    ),
    Setting(
        "segment.bytes",
        "int",
        "1073741824",
        "log.segment.bytes",
        "Size of a segment file; retention and compaction work on whole segments.",
        # Kafka 4 asks for 1 MiB; up to 3.9 it was 14, and tests of retention and compaction set small ones.
        minimum=14,
    ),
    Setting(
        "segment.index.bytes",
        "int",
        "10485760",
        "log.index.size.max.bytes",
        "Largest size of an offset index; a full one begins a new segment.",
        minimum=12,
    ),
    Setting(
        "segment.jitter.ms",
        "long",
        "0",
        "log.roll.jitter.ms",
        "A random time up to this is taken off segment.ms, so that partitions do not roll all at once.",
        minimum=0,
    ),
    Setting(
        "segment.ms",
        "long",
        "604800000",
        "log.roll.ms",
        "Begin a new segment when the first record of the present one is this old.",
        minimum=1,
    ),
    Setting(
        "unclean.leader.election.enable",
        "boolean",
        "false",
        "unclean.leader.election.enable",
        "Accepted for administration tools; there is no other replica to elect.",
    ),
)

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


def _default(name: str) -> Any:
    setting = BY_NAME[name]
    return attrs.field(default=setting.parse(setting.default))


@attrs.frozen(kw_only=True)
class LogConfig:
    """The settings in force for one topic. Times are ms, sizes bytes; an attribute is the setting's name with underscores."""

    cleanup_policy: tuple[str, ...] = _default("cleanup.policy")
    compression_gzip_level: int = _default("compression.gzip.level")
    compression_lz4_level: int = _default("compression.lz4.level")
    compression_type: str = _default("compression.type")
    compression_zstd_level: int = _default("compression.zstd.level")
    delete_retention_ms: int = _default("delete.retention.ms")
    file_delete_delay_ms: int = _default("file.delete.delay.ms")
    flush_messages: int = _default("flush.messages")
    flush_ms: int = _default("flush.ms")
    follower_replication_throttled_replicas: tuple[str, ...] = _default("follower.replication.throttled.replicas")
    index_interval_bytes: int = _default("index.interval.bytes")
    leader_replication_throttled_replicas: tuple[str, ...] = _default("leader.replication.throttled.replicas")
    max_compaction_lag_ms: int = _default("max.compaction.lag.ms")
    max_message_bytes: int = _default("max.message.bytes")
    message_timestamp_after_max_ms: int = _default("message.timestamp.after.max.ms")
    message_timestamp_before_max_ms: int = _default("message.timestamp.before.max.ms")
    message_timestamp_type: str = _default("message.timestamp.type")
    min_cleanable_dirty_ratio: float = _default("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _default("min.compaction.lag.ms")
    min_insync_replicas: int = _default("min.insync.replicas")
    preallocate: bool = _default("preallocate")
    retention_bytes: int = _default("retention.bytes")
    retention_ms: int = _default("retention.ms")
    segment_bytes: int = _default("segment.bytes")
    segment_index_bytes: int = _default("segment.index.bytes")
    segment_jitter_ms: int = _default("segment.jitter.ms")
    segment_ms: int = _default("segment.ms")
    unclean_leader_election_enable: bool = _default("unclean.leader.election.enable")

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
    def compression_codec(self) -> int | None:
        """Codec id that batches are kept in; None keeps the producer's."""
        return COMPRESSION_CODECS.get(self.compression_type)

    def text(self, name: str) -> str:
        """The value of a setting by its Kafka name, as text."""
        setting = BY_NAME[name]
        return setting.text(getattr(self, setting.field))

    @classmethod
    def from_broker(cls, config: object) -> "LogConfig":
        """The defaults for all topics. ``config`` has the broker's settings as attributes with Kafka's names in snake case
        (``log_retention_ms``), as text or as values; where one is missing, Kafka's default is used."""
        fields: dict[str, Any] = {}
        for setting in SETTINGS:
            if setting.synonym is None:
                continue
            value = getattr(config, setting.synonym.replace(".", "_"), None)
            if value is not None:
                fields[setting.field] = setting.parse(value if isinstance(value, str) else setting.text(value))
        return cls(**fields)

    @classmethod
    def from_overrides(cls, defaults: "LogConfig", overrides: Mapping[str, str]) -> "LogConfig":
        """``defaults`` with a topic's own settings. Raises RequestError with invalid_config, naming the setting."""
        fields: dict[str, Any] = {}
        for name, text in overrides.items():
            setting = BY_NAME.get(name)
            if setting is None:
                raise RequestError(ErrorCode.invalid_config, f"Unknown topic config name: {name}")
            if text is None:
                raise RequestError(ErrorCode.invalid_config, f"Null value not supported for topic config: {name}")
            fields[setting.field] = setting.parse(text)
        config = attrs.evolve(defaults, **fields)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise RequestError(
                ErrorCode.invalid_config,
                f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) must not be larger than "
                f"max.compaction.lag.ms ({config.max_compaction_lag_ms}).",
            )
        return config
