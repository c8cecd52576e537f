"""The settings of a topic: Kafka's names, types, defaults, bounds and synonyms, once for the whole broker.

``broker/storage/log/log_config.py`` makes the settings in force for one topic from them, ``log_settings.py`` the
broker's settings with their defaults, ``docs/generate.py`` the table in docs/SETTINGS.md, and DescribeConfigs its
answer. Each refers to a row by its Python name, so that a misspelt row is an error at import. Settings that need
replicas or tiered storage are accepted and shown, because administration tools set them, and have no effect.

Values: no thread, no I/O.
"""

import re
from collections.abc import Mapping
from typing import Any

from broker.config.setting import LONG_MAX, KafkaSetting


def _not_zero(level: int) -> None:
    """As in Kafka: ``compression.type`` switches compression off."""
    if not level:
        raise ValueError("it must be -1 or 1 to 9")


def _replicas(words: tuple[str, ...]) -> None:
    """Kafka's ThrottledReplicaListValidator."""
    if words != ("*",) and not all(re.fullmatch(r"[0-9]+:[0-9]+", word) for word in words):
        raise ValueError("it must be *, or partition:broker with commas between")


def _off(enabled: bool) -> None:
    if enabled:
        raise ValueError("Tiered Storage functionality is disabled in the broker")


# From Kafka 4.0's TopicConfig, LogConfig and ServerTopicConfigSynonyms.
CLEANUP_POLICY: KafkaSetting[tuple[str, ...]] = KafkaSetting(
    "cleanup.policy",
    "list",
    ("delete",),
    "log.cleanup.policy",
    "What happens to old segments: 'delete' removes them by age or size, 'compact' keeps the last record of each key.",
    choices=("compact", "delete"),
)
COMPRESSION_GZIP_LEVEL = KafkaSetting(
    "compression.gzip.level",
    "int",
    -1,
    "compression.gzip.level",
    "Level used when the broker compresses with gzip; -1 is the library's default.",
    minimum=-1,
    maximum=9,
    check=_not_zero,
)
COMPRESSION_LZ4_LEVEL = KafkaSetting(
    "compression.lz4.level",
    "int",
    9,
    "compression.lz4.level",
    "Level used when the broker compresses with lz4.",
    minimum=1,
    maximum=17,
)
COMPRESSION_TYPE = KafkaSetting(
    "compression.type",
    "string",
    "producer",
    "compression.type",
    "Codec of the batches on disk; 'producer' keeps the producer's, which costs the broker nothing.",
    choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
)
COMPRESSION_ZSTD_LEVEL = KafkaSetting(
    "compression.zstd.level",
    "int",
    3,
    "compression.zstd.level",
    "Level used when the broker compresses with zstd.",
    minimum=-131072,
    maximum=22,
)
DELETE_RETENTION_MS = KafkaSetting(
    "delete.retention.ms",
    "long",
    86_400_000,
    "log.cleaner.delete.retention.ms",
    "How long a compacted topic keeps tombstones, the marks of deleted keys.",
    minimum=0,
)
FILE_DELETE_DELAY_MS = KafkaSetting(
    "file.delete.delay.ms",
    "long",
    60_000,
    "log.segment.delete.delay.ms",
    "How long a file stays on disk after it was deleted from the log.",
    minimum=0,
)
FLUSH_MESSAGES = KafkaSetting(
    "flush.messages",
    "long",
    LONG_MAX,
    "log.flush.interval.messages",
    "fsync after this many messages, whatever acks the producers ask for.",
    minimum=1,
)
FLUSH_MS = KafkaSetting(
    "flush.ms",
    "long",
    LONG_MAX,
    "log.flush.interval.ms",
    "fsync records that are older than this.",
    minimum=0,
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS: KafkaSetting[tuple[str, ...]] = KafkaSetting(
    "follower.replication.throttled.replicas",
    "list",
    (),
    None,
    "Accepted for administration tools; there are no followers.",
    check=_replicas,
)
INDEX_INTERVAL_BYTES = KafkaSetting(
    "index.interval.bytes",
    "int",
    4096,
    "log.index.interval.bytes",
    "About how many bytes of log there are for each entry of the offset index.",
    minimum=0,
)
LEADER_REPLICATION_THROTTLED_REPLICAS: KafkaSetting[tuple[str, ...]] = KafkaSetting(
    "leader.replication.throttled.replicas",
    "list",
    (),
    None,
    "Accepted for administration tools; there are no followers.",
    check=_replicas,
)
_NO_TIERS = "Accepted for administration tools; there is no tiered storage."
LOCAL_RETENTION_BYTES = KafkaSetting("local.retention.bytes", "long", -2, None, _NO_TIERS, minimum=-2)
LOCAL_RETENTION_MS = KafkaSetting("local.retention.ms", "long", -2, None, _NO_TIERS, minimum=-2)
MAX_COMPACTION_LAG_MS = KafkaSetting(
    "max.compaction.lag.ms",
    "long",
    LONG_MAX,
    "log.cleaner.max.compaction.lag.ms",
    "A record is compacted no later than at this age.",
    minimum=1,
)
MAX_MESSAGE_BYTES = KafkaSetting(
    "max.message.bytes",
    "int",
    1_048_588,
    "message.max.bytes",
    "The largest record batch, after compression, that is accepted.",
    minimum=0,
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = KafkaSetting(
    "message.timestamp.after.max.ms",
    "long",
    3_600_000,
    "log.message.timestamp.after.max.ms",
    "How far a record's timestamp may be ahead of the broker's clock.",
    minimum=0,
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = KafkaSetting(
    "message.timestamp.before.max.ms",
    "long",
    LONG_MAX,
    "log.message.timestamp.before.max.ms",
    "How far a record's timestamp may be behind the broker's clock.",
    minimum=0,
)
MESSAGE_TIMESTAMP_TYPE = KafkaSetting(
    "message.timestamp.type",
    "string",
    "CreateTime",
    "log.message.timestamp.type",
    "Whether a record keeps its producer's timestamp or gets the broker's.",
    choices=("CreateTime", "LogAppendTime"),
)
MIN_CLEANABLE_DIRTY_RATIO = KafkaSetting(
    "min.cleanable.dirty.ratio",
    "double",
    0.5,
    "log.cleaner.min.cleanable.ratio",
    "A log is compacted when at least this part of it has not been compacted yet.",
    minimum=0,
    maximum=1,
)
MIN_COMPACTION_LAG_MS = KafkaSetting(
    "min.compaction.lag.ms",
    "long",
    0,
    "log.cleaner.min.compaction.lag.ms",
    "A record is not compacted before it is this old.",
    minimum=0,
)
MIN_INSYNC_REPLICAS = KafkaSetting(
    "min.insync.replicas",
    "int",
    1,
    "min.insync.replicas",
    "How many replicas must have a record before acks=all is answered; there is one.",
    minimum=1,
)
PREALLOCATE = KafkaSetting(
    "preallocate",
    "boolean",
    False,
    "log.preallocate",
    "Accepted; files grow as they are written.",
)
RECORD_VALIDATION = KafkaSetting(
    "record.validation",
    "string",
    "lengths",
    "log.record.validation",
    "What is looked at of the records that producers send, besides header and checksum of their batch. 'lengths': their "
    "number and lengths, or that compressed ones begin as their codec does. 'full': every field of every record, as Kafka "
    "does, for which compressed batches are opened. Not in Kafka.",
    choices=("lengths", "full"),
)
REMOTE_LOG_COPY_DISABLE = KafkaSetting("remote.log.copy.disable", "boolean", False, None, _NO_TIERS)
REMOTE_LOG_DELETE_ON_DISABLE = KafkaSetting("remote.log.delete.on.disable", "boolean", False, None, _NO_TIERS)
REMOTE_STORAGE_ENABLE = KafkaSetting(
    "remote.storage.enable",
    "boolean",
    False,
    None,
    "Accepted for administration tools, if it is false; there is no tiered storage.",
    check=_off,
)
RETENTION_BYTES = KafkaSetting(
    "retention.bytes",
    "long",
    -1,
    "log.retention.bytes",
    "Delete the oldest segments of a partition while it is larger than this; -1 is no limit.",
    minimum=-1,
)
RETENTION_MS = KafkaSetting(
    "retention.ms",
    "long",
    604_800_000,
    "log.retention.ms",
    "Delete segments whose newest record is older than this; -1 is no limit.",
    minimum=-1,
)
SEGMENT_BYTES = KafkaSetting(
    "segment.bytes",
    "int",
    1_073_741_824,
    "log.segment.bytes",
    "Size of a segment file; retention and compaction work on whole segments.",
    # Kafka 4 asks for 1 MiB; up to 3.9 it was 14, and tests of retention and compaction set small ones.
    minimum=14,
)
SEGMENT_INDEX_BYTES = KafkaSetting(
    "segment.index.bytes",
    "int",
    10_485_760,
    "log.index.size.max.bytes",
    "Largest size of an offset index; when it is full, a new segment is started.",
    minimum=12,
)
SEGMENT_JITTER_MS = KafkaSetting(
    "segment.jitter.ms",
    "long",
    0,
    "log.roll.jitter.ms",
    "A random time up to this is subtracted from segment.ms, so that partitions do not roll all at once.",
    minimum=0,
)
SEGMENT_MS = KafkaSetting(
    "segment.ms",
    "long",
    604_800_000,
    "log.roll.ms",
    "Start a new segment when the first record of the current one is this old.",
    minimum=1,
)
UNCLEAN_LEADER_ELECTION_ENABLE = KafkaSetting(
    "unclean.leader.election.enable",
    "boolean",
    False,
    "unclean.leader.election.enable",
    "Accepted for administration tools; there is no other replica to elect.",
)
VISIBLE = KafkaSetting(
    "visible",
    "string",
    "written",
    "log.visible",
    "When consumers see a record: 'written' as soon as it is in the page cache, 'durable' after it was fsynced, so that none "
    "reads what a power loss takes away. Not in Kafka, whose consumers see what all replicas have.",
    choices=("written", "durable"),
)

# In the order in which they are shown.
SETTINGS: tuple[KafkaSetting[Any], ...] = (
    CLEANUP_POLICY,
    COMPRESSION_GZIP_LEVEL,
    COMPRESSION_LZ4_LEVEL,
    COMPRESSION_TYPE,
    COMPRESSION_ZSTD_LEVEL,
    DELETE_RETENTION_MS,
    FILE_DELETE_DELAY_MS,
    FLUSH_MESSAGES,
    FLUSH_MS,
    FOLLOWER_REPLICATION_THROTTLED_REPLICAS,
    INDEX_INTERVAL_BYTES,
    LEADER_REPLICATION_THROTTLED_REPLICAS,
    LOCAL_RETENTION_BYTES,
    LOCAL_RETENTION_MS,
    MAX_COMPACTION_LAG_MS,
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    MESSAGE_TIMESTAMP_TYPE,
    MIN_CLEANABLE_DIRTY_RATIO,
    MIN_COMPACTION_LAG_MS,
    MIN_INSYNC_REPLICAS,
    PREALLOCATE,
    RECORD_VALIDATION,
    REMOTE_LOG_COPY_DISABLE,
    REMOTE_LOG_DELETE_ON_DISABLE,
    REMOTE_STORAGE_ENABLE,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    SEGMENT_INDEX_BYTES,
    SEGMENT_JITTER_MS,
    SEGMENT_MS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    VISIBLE,
)

BY_NAME: Mapping[str, KafkaSetting[Any]] = {setting.name: setting for setting in SETTINGS}
