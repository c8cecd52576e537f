"""The settings of topics, the log and compaction: those that a topic may have for itself, and those of the broker.

A row describes a topic's setting and, with the same sentence, the broker's setting that is its default for all topics.
``broker/storage/log/log_config.py`` makes the settings in force for one topic from the rows, ``docs/generate.py`` the
table in docs/SETTINGS.md, and DescribeConfigs its answer. Each refers to a row by its Python name, so that a misspelt
row is an error at import. Settings that need replicas are accepted and shown, because administration tools
set them, and have no effect.

Values: no thread, no I/O.
"""

import re
from collections.abc import Mapping

import attrs

from broker.config.setting import INT_MAX, LONG_MAX, Setting, own_setting, setting


def _not_zero(level: int) -> None:
    """As in Kafka: ``compression.type`` switches compression off."""
    if not level:
        raise ValueError("it must be -1 or 1 to 9")


def _replicas(words: tuple[str, ...]) -> None:
    """Kafka's ThrottledReplicaListValidator."""
    if words != ("*",) and not all(re.fullmatch(r"[0-9]+:[0-9]+", word) for word in words):
        raise ValueError("it must be *, or partition:broker with commas between")


# From Kafka 4.0's TopicConfig, LogConfig and ServerTopicConfigSynonyms.
CLEANUP_POLICY = Setting(
    "cleanup.policy",
    "list",
    ("delete",),
    "log.cleanup.policy",
    "What happens to old segments: `delete` removes them by age or size, `compact` keeps the last record of each key.",
    choices=("compact", "delete"),
)
COMPRESSION_GZIP_LEVEL = Setting(
    "compression.gzip.level",
    "int",
    -1,
    "compression.gzip.level",
    "Level used when the broker compresses with gzip; -1 is the library's default.",
    least=-1,
    most=9,
    check=_not_zero,
)
COMPRESSION_LZ4_LEVEL = Setting(
    "compression.lz4.level",
    "int",
    9,
    "compression.lz4.level",
    "Level used when the broker compresses with lz4.",
    least=1,
    most=17,
)
COMPRESSION_TYPE = Setting(
    "compression.type",
    "string",
    "producer",
    "compression.type",
    "Codec of the batches on disk; `producer` keeps the producer's, which costs the broker nothing.",
    choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
)
COMPRESSION_ZSTD_LEVEL = Setting(
    "compression.zstd.level",
    "int",
    3,
    "compression.zstd.level",
    "Level used when the broker compresses with zstd.",
    least=-131072,
    most=22,
)
DELETE_RETENTION_MS = Setting(
    "delete.retention.ms",
    "long",
    86_400_000,
    "log.cleaner.delete.retention.ms",
    "How long a compacted topic keeps tombstones, the marks of deleted keys.",
    least=0,
    reason="Kafka's default: a day.",
)
FILE_DELETE_DELAY_MS = Setting(
    "file.delete.delay.ms",
    "long",
    60_000,
    "log.segment.delete.delay.ms",
    "How long the files of a deleted segment or topic stay on disk.",
    least=0,
)
FLUSH_MESSAGES = Setting(
    "flush.messages",
    "long",
    LONG_MAX,
    "log.flush.interval.messages",
    "fsync a partition after this many records, in addition to what acks=all asks for.",
    least=1,
    unit="messages",
    reason="Kafka's default: never; the system writes back by itself, and acks=all does not wait for it.",
)
FLUSH_MS = Setting(
    "flush.ms",
    "long",
    LONG_MAX,
    "log.flush.interval.ms",
    "fsync a partition when its oldest record that is not fsynced is this old.",
    least=0,
    reason="Kafka's default: never.",
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = Setting(
    "follower.replication.throttled.replicas",
    "list",
    (),
    None,
    "Accepted for administration tools; there are no followers.",
    check=_replicas,
)
INDEX_INTERVAL_BYTES = Setting(
    "index.interval.bytes",
    "int",
    4096,
    "log.index.interval.bytes",
    "About how many bytes of log there are for each entry of the offset index.",
    least=0,
    most=INT_MAX,
)
LEADER_REPLICATION_THROTTLED_REPLICAS = Setting(
    "leader.replication.throttled.replicas",
    "list",
    (),
    None,
    "Accepted for administration tools; there are no followers.",
    check=_replicas,
)
LOCAL_RETENTION_BYTES = Setting(
    "local.retention.bytes",
    "long",
    -2,
    "log.local.retention.bytes",
    "Remove the oldest uploaded segments of a partition from the local disk while what it has there is larger than this; -1 is "
    "no limit, -2 the limit of `retention.bytes`.",
    least=-2,
)
LOCAL_RETENTION_MS = Setting(
    "local.retention.ms",
    "long",
    -2,
    "log.local.retention.ms",
    "Remove uploaded segments whose newest record is older than this from the local disk; -1 is never, -2 the limit of "
    "`retention.ms`.",
    least=-2,
)
MAX_COMPACTION_LAG_MS = Setting(
    "max.compaction.lag.ms",
    "long",
    LONG_MAX,
    "log.cleaner.max.compaction.lag.ms",
    "Compact records that are older than this, even if little is gained.",
    least=1,
    reason="Kafka's default: never.",
)
MAX_MESSAGE_BYTES = Setting(
    "max.message.bytes",
    "int",
    1_048_588,
    "message.max.bytes",
    "The largest record batch, after compression, that is accepted.",
    least=0,
    most=INT_MAX,
    reason="Kafka's default: 1 MiB and the 12 bytes before a batch.",
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = Setting(
    "message.timestamp.after.max.ms",
    "long",
    3_600_000,
    "log.message.timestamp.after.max.ms",
    "How far a record's timestamp may be ahead of the broker's clock.",
    least=0,
    reason="Kafka's default: an hour.",
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = Setting(
    "message.timestamp.before.max.ms",
    "long",
    LONG_MAX,
    "log.message.timestamp.before.max.ms",
    "How far a record's timestamp may be behind the broker's clock.",
    least=0,
)
MESSAGE_TIMESTAMP_TYPE = Setting(
    "message.timestamp.type",
    "string",
    "CreateTime",
    "log.message.timestamp.type",
    "Whether a record keeps its producer's timestamp or gets the broker's.",
    choices=("CreateTime", "LogAppendTime"),
)
MIN_CLEANABLE_DIRTY_RATIO = Setting(
    "min.cleanable.dirty.ratio",
    "double",
    0.5,
    "log.cleaner.min.cleanable.ratio",
    "A log is compacted when at least this part of it has not been compacted yet.",
    least=0,
    most=1,
)
MIN_COMPACTION_LAG_MS = Setting(
    "min.compaction.lag.ms",
    "long",
    0,
    "log.cleaner.min.compaction.lag.ms",
    "Do not compact records that are younger than this.",
    least=0,
)
MIN_INSYNC_REPLICAS = Setting(
    "min.insync.replicas",
    "int",
    1,
    "min.insync.replicas",
    "How many replicas must have a record before acks=all is answered. There is one, and it is fsynced.",
    least=1,
    most=INT_MAX,
    unit="replicas",
)
PREALLOCATE = Setting("preallocate", "boolean", False, "log.preallocate", "Accepted; files grow as they are written.")
RECORD_VALIDATION = Setting(
    "record.validation",
    "string",
    "lengths",
    "log.record.validation",
    "What is looked at of the records that producers send, besides header and checksum of their batch. "
    "`lengths`: their number and lengths, or that compressed ones begin as their codec does. `full`: every field "
    "of every record, as Kafka does, for which compressed batches are opened. Not in Kafka.",
    choices=("lengths", "full"),
    reason="`full` takes 1.5 us a record and the time to decompress it. With `lengths`, what a producer with a defect "
    "compresses may be something that no consumer can read.",
)
REMOTE_LOG_COPY_DISABLE = Setting(
    "remote.log.copy.disable",
    "boolean",
    False,
    None,
    "Upload no more segments; those that are in the object store stay there and are read.",
)
REMOTE_LOG_DELETE_ON_DISABLE = Setting(
    "remote.log.delete.on.disable",
    "boolean",
    False,
    None,
    "When `remote.storage.enable` becomes false, delete the records that are in the object store only.",
)
REMOTE_STORAGE_ENABLE = Setting(
    "remote.storage.enable",
    "boolean",
    False,
    None,
    "Upload closed segments to the object store. Needs the broker's `objects`, and is true by default for a broker that has it; "
    "with `catalogue`, always.",
    reason="Who gives a broker an object store expects that it is used; Kafka's default is false.",
)
RETENTION_BYTES = Setting(
    "retention.bytes",
    "long",
    -1,
    "log.retention.bytes",
    "Delete the oldest segments of a partition while it is larger than this; -1 is no limit.",
    least=-1,
)
RETENTION_MS = Setting(
    "retention.ms",
    "long",
    604_800_000,
    "log.retention.ms",
    "Delete segments whose newest record is older than this; -1 is no limit.",
    least=-1,
    reason="Kafka's default: a week.",
)
SEGMENT_BYTES = Setting(
    "segment.bytes",
    "int",
    1_073_741_824,
    "log.segment.bytes",
    "Start a new segment file when the current one reaches this size; retention and compaction work on whole segments.",
    # Kafka 4 asks for 1 MiB; up to 3.9 it was 14, and tests of retention and compaction set small ones.
    least=14,
    most=INT_MAX,
    reason="Kafka's default: 1 GiB.",
)
SEGMENT_INDEX_BYTES = Setting(
    "segment.index.bytes",
    "int",
    10_485_760,
    "log.index.size.max.bytes",
    "Largest size of an offset index; when it is full, a new segment is started.",
    least=12,
    most=INT_MAX,
)
SEGMENT_JITTER_MS = Setting(
    "segment.jitter.ms",
    "long",
    0,
    "log.roll.jitter.ms",
    "Start a new segment up to this much earlier, at random, so that not all partitions do so at once.",
    least=0,
)
SEGMENT_MS = Setting(
    "segment.ms",
    "long",
    604_800_000,
    "log.roll.ms",
    "Start a new segment when the first record of the current one is this old.",
    least=1,
    reason="Kafka's default: a week.",
)
UNCLEAN_LEADER_ELECTION_ENABLE = Setting(
    "unclean.leader.election.enable",
    "boolean",
    False,
    "unclean.leader.election.enable",
    "Accepted for administration tools; there is no other replica to elect.",
)
VISIBLE = Setting(
    "visible",
    "string",
    "written",
    "log.visible",
    "When consumers see a record: `written`, as soon as it is in the page cache, or `durable`, after it was "
    "fsynced, so that none reads what a power loss takes away. Not in Kafka, whose consumers see what all "
    "replicas have.",
    choices=("written", "durable"),
    reason="[Decision 0017](decisions/0017-what-consumers-see.md): with `durable`, every record waits for an fsync.",
)

# In the order in which they are shown.
SETTINGS: tuple[Setting, ...] = tuple(row for row in globals().values() if isinstance(row, Setting))
BY_NAME: Mapping[str, Setting] = {row.name: row for row in SETTINGS}


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class TopicSettings:
    """Topics and requests."""

    num_partitions: int = setting(
        1, unit="partitions", least=1, doc="Partitions of a topic that is created without a number."
    )
    auto_create_topics_enable: bool = setting(
        True,
        doc="Create a topic when a client first asks for it.",
        reason="Kafka's default, which most examples rely on.",
    )
    default_replication_factor: int = setting(
        1,
        least=1,
        most=1,
        doc="Copies of each partition of a topic that is created without a number.",
        reason="There is one node.",
    )
    delete_topic_enable: bool = setting(True, doc="Allow topics to be deleted.")
    message_max_bytes: int = setting(MAX_MESSAGE_BYTES)
    fetch_max_bytes: int = setting(
        57_671_680,
        least=1024,
        most=INT_MAX,
        doc="The most that one fetch returns, whatever the client asks for; the first batch is always returned whole.",
        reason="Kafka's default, 55 MiB.",
    )
    min_insync_replicas: int = setting(MIN_INSYNC_REPLICAS)
    unclean_leader_election_enable: bool = setting(UNCLEAN_LEADER_ELECTION_ENABLE)
    compression_type: str = setting(
        COMPRESSION_TYPE, choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    )
    compression_gzip_level: int = setting(COMPRESSION_GZIP_LEVEL)
    compression_lz4_level: int = setting(COMPRESSION_LZ4_LEVEL)
    compression_zstd_level: int = setting(COMPRESSION_ZSTD_LEVEL)
    log_visible: str = setting(VISIBLE)
    log_record_validation: str = setting(RECORD_VALIDATION)
    log_message_timestamp_type: str = setting(MESSAGE_TIMESTAMP_TYPE)
    log_message_timestamp_before_max_ms: int = setting(MESSAGE_TIMESTAMP_BEFORE_MAX_MS)
    log_message_timestamp_after_max_ms: int = setting(MESSAGE_TIMESTAMP_AFTER_MAX_MS)
    producer_id_expiration_ms: int = setting(
        86_400_000,
        least=1,
        most=INT_MAX,
        doc="Forget an idempotent producer that has been silent for this long.",
        reason="Kafka's default: a day.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, least=1, most=INT_MAX, doc="How often to look for such producers."
    )
    telemetry_max_bytes: int = setting(
        1_048_576,
        least=1,
        most=16 * 1024 * 1024,
        doc="The largest push of metrics that clients are told to send (KIP-714), also when it is decompressed. A larger one "
        "is refused with TELEMETRY_TOO_LARGE.",
        reason="Kafka's default. A push is parsed in memory, so that it has an upper bound here, which Kafka has not.",
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class LogSettings:
    """The log: segments, retention, flushing."""

    log_segment_bytes: int = setting(SEGMENT_BYTES)
    log_roll_ms: int = setting(SEGMENT_MS)
    log_roll_jitter_ms: int = setting(SEGMENT_JITTER_MS)
    log_retention_ms: int = setting(RETENTION_MS)
    log_retention_bytes: int = setting(RETENTION_BYTES)
    log_local_retention_ms: int = setting(LOCAL_RETENTION_MS)
    log_local_retention_bytes: int = setting(LOCAL_RETENTION_BYTES)
    log_retention_check_interval_ms: int = setting(300_000, least=1, doc="How often to look for segments to delete.")
    log_cleanup_policy: str = setting(CLEANUP_POLICY, choices=("delete", "compact", "delete,compact", "compact,delete"))
    log_segment_delete_delay_ms: int = setting(FILE_DELETE_DELAY_MS)
    log_index_interval_bytes: int = setting(INDEX_INTERVAL_BYTES)
    log_index_size_max_bytes: int = setting(SEGMENT_INDEX_BYTES)
    log_preallocate: bool = setting(PREALLOCATE)
    log_flush_interval_messages: int = setting(FLUSH_MESSAGES)
    log_flush_interval_ms: int = setting(FLUSH_MS, least=1)
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000,
        least=1,
        most=INT_MAX,
        doc="How often the recovery point is moved up. After a crash, what lies beyond it is scanned.",
    )
    max_open_files: int = own_setting(
        10_000,
        unit="files",
        least=16,
        doc="Log and index files that are open at a time; the least recently used ones are closed. At most a third of the "
        "descriptors that the process may have.",
        reason="With 10,000 partitions in use and 400 files, nearly every request opens a file, and takes half as long again.",
    )
    scrub_bytes_per_second: int = own_setting(
        4 * 1024 * 1024,
        unit="bytes/s",
        least=0,
        doc="How fast checksums of old data are verified in the background. 0: not at all.",
        reason="Reads 350 GB a day and keeps a core busy for 0.1 %.",
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class CleanerSettings:
    """Compaction."""

    log_cleaner_enable: bool = setting(True, doc="Compact the topics whose policy asks for it.")
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * 1024 * 1024, unit="bytes", least=1024 * 1024, doc="Memory for the keys of one compaction."
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        least=0,
        doc="How often to look for partitions to compact; more often, but not below 1 s, for a shorter "
        "`max.compaction.lag.ms`.",
    )
    log_cleaner_min_cleanable_ratio: float = setting(MIN_CLEANABLE_DIRTY_RATIO)
    log_cleaner_delete_retention_ms: int = setting(DELETE_RETENTION_MS)
    log_cleaner_min_compaction_lag_ms: int = setting(MIN_COMPACTION_LAG_MS)
    log_cleaner_max_compaction_lag_ms: int = setting(MAX_COMPACTION_LAG_MS)
