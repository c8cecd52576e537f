"""Settings of topics, the log and compaction.

Tests: tests/config/test_setting.py, tests/config/test_topic_settings.py.
"""

import attrs

from broker.config import topic_settings
from broker.config.setting import INT_MAX, KAFKA, setting, topic_default


@attrs.frozen(kw_only=True, slots=False)
class TopicSettings:
    """Topics and requests."""

    num_partitions: int = setting(
        1, unit="partitions", least=1, doc="Partitions of a topic that is created without a number.", reason=KAFKA
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
    delete_topic_enable: bool = setting(True, doc="Allow topics to be deleted.", reason=KAFKA)
    message_max_bytes: int = topic_default(
        topic_settings.MAX_MESSAGE_BYTES,
        doc="The largest record batch (`max.message.bytes` of a topic).",
        reason="Kafka's default: 1 MiB and the 12 bytes before a batch.",
    )
    fetch_max_bytes: int = setting(
        57_671_680,
        least=1024,
        most=INT_MAX,
        doc="The most that one fetch returns, whatever the client asks for; the first batch is always returned whole.",
        reason="Kafka's default, 55 MiB.",
    )
    min_insync_replicas: int = topic_default(
        topic_settings.MIN_INSYNC_REPLICAS,
        unit="replicas",
        doc="Copies that acks=all waits for. There is one, and it is fsynced.",
        reason=KAFKA,
    )
    unclean_leader_election_enable: bool = topic_default(
        topic_settings.UNCLEAN_LEADER_ELECTION_ENABLE,
        doc="Accepted because clients set it; without replicas it has no effect.",
        reason=KAFKA,
    )
    compression_type: str = topic_default(
        topic_settings.COMPRESSION_TYPE,
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        doc="The codec of batches on disk. `producer`: as the producer sent them, which costs the broker nothing.",
        reason=KAFKA,
    )
    compression_gzip_level: int = topic_default(
        topic_settings.COMPRESSION_GZIP_LEVEL,
        doc="The level of gzip when the broker compresses. -1: gzip's default.",
        reason=KAFKA,
    )
    compression_lz4_level: int = topic_default(
        topic_settings.COMPRESSION_LZ4_LEVEL,
        doc="The level of lz4 when the broker compresses.",
        reason=KAFKA,
    )
    compression_zstd_level: int = topic_default(
        topic_settings.COMPRESSION_ZSTD_LEVEL,
        doc="The level of zstd when the broker compresses.",
        reason=KAFKA,
    )
    log_visible: str = topic_default(
        topic_settings.VISIBLE,
        doc="When consumers see a record: `written`, as soon as it is in the page cache, or `durable`, after it was fsynced, so "
        "that none reads what a power loss takes away. Not in Kafka, whose consumers see what all replicas have.",
        reason="[Decision 0017](decisions/0017-what-consumers-see.md): with `durable`, every record waits for an fsync.",
    )
    log_record_validation: str = topic_default(
        topic_settings.RECORD_VALIDATION,
        doc="What is looked at of the records that producers send, besides header and checksum of their batch. `lengths`: their "
        "number and lengths, or that compressed ones begin as their codec does. `full`: every field of every record, as Kafka "
        "does, for which compressed batches are opened. Not in Kafka.",
        reason="`full` takes 1.5 us a record and the time to decompress it. With `lengths`, what a producer with a defect "
        "compresses may be something that no consumer can read.",
    )
    log_message_timestamp_type: str = topic_default(
        topic_settings.MESSAGE_TIMESTAMP_TYPE,
        doc="Whether a record keeps its producer's timestamp or gets the broker's.",
        reason=KAFKA,
    )
    log_message_timestamp_before_max_ms: int = topic_default(
        topic_settings.MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
        doc="How far a record's timestamp may lie in the past.",
        reason=KAFKA,
    )
    log_message_timestamp_after_max_ms: int = topic_default(
        topic_settings.MESSAGE_TIMESTAMP_AFTER_MAX_MS,
        doc="How far a record's timestamp may lie in the future.",
        reason="Kafka's default: an hour.",
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        least=1,
        most=INT_MAX,
        doc="Forget an idempotent producer that has been silent for this long.",
        reason="Kafka's default: a day.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, least=1, most=INT_MAX, doc="How often to look for such producers.", reason=KAFKA
    )
    telemetry_max_bytes: int = setting(
        1_048_576,
        least=1,
        most=16 * 1024 * 1024,
        doc="The largest push of metrics that clients are told to send (KIP-714), also when it is decompressed. A larger one "
        "is refused with TELEMETRY_TOO_LARGE.",
        reason="Kafka's default. A push is parsed in memory, so that it has an upper bound here, which Kafka has not.",
    )


@attrs.frozen(kw_only=True, slots=False)
class LogSettings:
    """The log: segments, retention, flushing."""

    log_segment_bytes: int = topic_default(
        topic_settings.SEGMENT_BYTES,
        doc="Start a new segment file when the current one reaches this size.",
        reason="Kafka's default: 1 GiB.",
    )
    log_roll_ms: int = topic_default(
        topic_settings.SEGMENT_MS,
        doc="Start a new segment when the first record of the current one is this old.",
        reason="Kafka's default: a week.",
    )
    log_roll_jitter_ms: int = topic_default(
        topic_settings.SEGMENT_JITTER_MS,
        doc="Start it up to this much earlier, at random, so that not all partitions do so at once.",
        reason=KAFKA,
    )
    log_retention_ms: int = topic_default(
        topic_settings.RETENTION_MS,
        doc="Delete segments whose newest record is older than this. -1: never.",
        reason="Kafka's default: a week.",
    )
    log_retention_bytes: int = topic_default(
        topic_settings.RETENTION_BYTES,
        doc="Delete the oldest segments of a partition while it is larger than this. -1: never.",
        reason=KAFKA,
    )
    log_retention_check_interval_ms: int = setting(
        300_000, least=1, doc="How often to look for segments to delete.", reason=KAFKA
    )
    log_cleanup_policy: str = topic_default(
        topic_settings.CLEANUP_POLICY,
        choices=("delete", "compact", "delete,compact", "compact,delete"),
        doc="What happens to old data: delete it, or keep the last record of each key.",
        reason=KAFKA,
    )
    log_segment_delete_delay_ms: int = topic_default(
        topic_settings.FILE_DELETE_DELAY_MS,
        doc="How long the files of a deleted segment or topic stay on disk.",
        reason=KAFKA,
    )
    log_index_interval_bytes: int = topic_default(
        topic_settings.INDEX_INTERVAL_BYTES,
        doc="About how many bytes of log there are for each entry of an index.",
        reason=KAFKA,
    )
    log_index_size_max_bytes: int = topic_default(
        topic_settings.SEGMENT_INDEX_BYTES,
        doc="The largest size of an index file.",
        reason=KAFKA,
    )
    log_preallocate: bool = topic_default(
        topic_settings.PREALLOCATE,
        doc="Accepted; files grow as they are written.",
        reason=KAFKA,
    )
    log_flush_interval_messages: int = topic_default(
        topic_settings.FLUSH_MESSAGES,
        unit="messages",
        doc="fsync a partition after this many records, in addition to what acks=all asks for.",
        reason="Kafka's default: never; the system writes back by itself, and acks=all does not wait for it.",
    )
    log_flush_interval_ms: int = topic_default(
        topic_settings.FLUSH_MS,
        least=1,
        doc="fsync a partition when its oldest record that is not fsynced is this old.",
        reason="Kafka's default: never.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000,
        least=1,
        most=INT_MAX,
        doc="How often the recovery point is moved up. After a crash, what lies beyond it is scanned.",
        reason=KAFKA,
    )
    max_open_files: int = setting(
        10_000,
        kafka=None,
        unit="files",
        least=16,
        doc="Log and index files that are open at a time; the least recently used ones are closed. At most a third of the "
        "descriptors that the process may have.",
        reason="With 10,000 partitions in use and 400 files, nearly every request opens a file, and takes half as long again.",
    )
    scrub_bytes_per_second: int = setting(
        4 * 1024 * 1024,
        kafka=None,
        unit="bytes/s",
        least=0,
        doc="How fast checksums of old data are verified in the background. 0: not at all.",
        reason="Reads 350 GB a day and keeps a core busy for 0.1 %.",
    )


@attrs.frozen(kw_only=True, slots=False)
class CleanerSettings:
    """Compaction."""

    log_cleaner_enable: bool = setting(True, doc="Compact the topics whose policy asks for it.", reason=KAFKA)
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * 1024 * 1024, unit="bytes", least=1024 * 1024, doc="Memory for the keys of one compaction.", reason=KAFKA
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        least=0,
        doc="How often to look for partitions to compact; more often, but not below 1 s, for a shorter "
        "`max.compaction.lag.ms`.",
        reason=KAFKA,
    )
    log_cleaner_min_cleanable_ratio: float = topic_default(
        topic_settings.MIN_CLEANABLE_DIRTY_RATIO,
        doc="Compact a partition when this part of it has not been compacted yet.",
        reason=KAFKA,
    )
    log_cleaner_delete_retention_ms: int = topic_default(
        topic_settings.DELETE_RETENTION_MS,
        doc="How long a tombstone stays after it has been compacted.",
        reason="Kafka's default: a day.",
    )
    log_cleaner_min_compaction_lag_ms: int = topic_default(
        topic_settings.MIN_COMPACTION_LAG_MS,
        doc="Do not compact records that are younger than this.",
        reason=KAFKA,
    )
    log_cleaner_max_compaction_lag_ms: int = topic_default(
        topic_settings.MAX_COMPACTION_LAG_MS,
        doc="Compact records that are older than this, even if little is gained.",
        reason="Kafka's default: never.",
    )
