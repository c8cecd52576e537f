"""Settings of topics, the log, compaction and consumer groups.

Tests: tests/config/test_setting.py, tests/config/test_topic_settings.py.
"""

import attrs

from broker.config import topic_settings
from broker.config.kafka_setting import INT_MAX
from broker.config.setting import KAFKA, setting, topic_default


@attrs.frozen(kw_only=True, slots=False)
class TopicSettings:
    """Topics and requests."""

    num_partitions: int = setting(
        1, unit="partitions", least=1, doc="Partitions of a topic that is made without saying how many.", reason=KAFKA
    )
    auto_create_topics_enable: bool = setting(
        True,
        doc="Make a topic when a client first asks for it.",
        reason="Kafka's default, and most examples count on it.",
    )
    default_replication_factor: int = setting(
        1,
        least=1,
        most=1,
        doc="Copies of a partition of a topic that is made without saying how many.",
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
        doc="The most that one fetch returns, whatever the client asks for; the first batch always comes whole.",
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
        doc="Accepted because clients set it; without replicas it changes nothing.",
        reason=KAFKA,
    )
    compression_type: str = topic_default(
        topic_settings.COMPRESSION_TYPE,
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        doc="How batches are kept. `producer`: as they came, which costs the broker nothing.",
        reason=KAFKA,
    )
    compression_gzip_level: int = topic_default(
        topic_settings.COMPRESSION_GZIP_LEVEL,
        doc="gzip's level where the broker compresses. -1: gzip's own.",
        reason=KAFKA,
    )
    compression_lz4_level: int = topic_default(
        topic_settings.COMPRESSION_LZ4_LEVEL,
        doc="lz4's level where the broker compresses.",
        reason=KAFKA,
    )
    compression_zstd_level: int = topic_default(
        topic_settings.COMPRESSION_ZSTD_LEVEL,
        doc="zstd's level where the broker compresses.",
        reason=KAFKA,
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
        doc="Forget an idempotent producer that was silent for so long.",
        reason="Kafka's default: a day.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, least=1, most=INT_MAX, doc="How often to look for such producers.", reason=KAFKA
    )


@attrs.frozen(kw_only=True, slots=False)
class TransactionSettings:
    """Transactions."""

    transaction_max_timeout_ms: int = setting(
        900_000,
        least=1,
        most=INT_MAX,
        doc="The longest `transaction.timeout.ms` that a producer may ask for; a transaction that is open for longer than it "
        "asked for is aborted.",
        reason="Kafka's default: 15 minutes.",
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        least=1,
        most=INT_MAX,
        doc="Forget a transactional id that was unused for so long.",
        reason="Kafka's default: a week.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, least=1, most=INT_MAX, doc="How often to look for such transactional ids.", reason=KAFKA
    )


@attrs.frozen(kw_only=True, slots=False)
class LogSettings:
    """The log: segments, retention, flushing."""

    log_segment_bytes: int = topic_default(
        topic_settings.SEGMENT_BYTES,
        doc="Begin a new segment file when one is so large.",
        reason="Kafka's default: 1 GiB.",
    )
    log_roll_ms: int = topic_default(
        topic_settings.SEGMENT_MS,
        doc="Begin a new segment when the first record of one is so old.",
        reason="Kafka's default: a week.",
    )
    log_roll_jitter_ms: int = topic_default(
        topic_settings.SEGMENT_JITTER_MS,
        doc="Begin it up to this much earlier, at random, so that not all partitions do at once.",
        reason=KAFKA,
    )
    log_retention_ms: int = topic_default(
        topic_settings.RETENTION_MS,
        doc="Delete segments whose newest record is older. -1: never.",
        reason="Kafka's default: a week.",
    )
    log_retention_bytes: int = topic_default(
        topic_settings.RETENTION_BYTES,
        doc="Delete the oldest segments of a partition that is larger. -1: never.",
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
        doc="About how much log one entry of an index stands for.",
        reason=KAFKA,
    )
    log_index_size_max_bytes: int = topic_default(
        topic_settings.SEGMENT_INDEX_BYTES,
        doc="The largest index file.",
        reason=KAFKA,
    )
    log_preallocate: bool = topic_default(
        topic_settings.PREALLOCATE,
        doc="Reserve a segment's space on disk when it is made.",
        reason=KAFKA,
    )
    log_flush_interval_messages: int = topic_default(
        topic_settings.FLUSH_MESSAGES,
        unit="messages",
        doc="fsync a partition after so many records, besides what acks=all asks for.",
        reason="Kafka's default: never; the system writes back on its own, and acks=all does not wait for it.",
    )
    log_flush_interval_ms: int = topic_default(
        topic_settings.FLUSH_MS,
        least=1,
        doc="fsync a partition when its oldest unsynced record is so old.",
        reason="Kafka's default: never.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000,
        least=1,
        most=INT_MAX,
        doc="How often the recovery point is moved up: what lies after it is scanned after a crash.",
        reason=KAFKA,
    )
    max_open_files: int = setting(
        400,
        kafka=None,
        unit="files",
        least=16,
        doc="Log and index files open at a time; the least recently used ones are closed. Fewer where the limit of "
        "descriptors is low.",
        reason="Leaves 600 of the usual 1,024 descriptors to connections; reopening a file costs some µs.",
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

    log_cleaner_enable: bool = setting(True, doc="Compact topics whose policy says so.", reason=KAFKA)
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * 1024 * 1024, unit="bytes", least=1024 * 1024, doc="Memory for the keys of one compaction.", reason=KAFKA
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        least=0,
        doc="How often to look for partitions to compact; sooner, but not below 1 s, for a shorter `max.compaction.lag.ms`.",
        reason=KAFKA,
    )
    log_cleaner_min_cleanable_ratio: float = topic_default(
        topic_settings.MIN_CLEANABLE_DIRTY_RATIO,
        doc="Compact a partition when so much of it is not compacted yet.",
        reason=KAFKA,
    )
    log_cleaner_delete_retention_ms: int = topic_default(
        topic_settings.DELETE_RETENTION_MS,
        doc="How long a tombstone stays after it has been compacted.",
        reason="Kafka's default: a day.",
    )
    log_cleaner_min_compaction_lag_ms: int = topic_default(
        topic_settings.MIN_COMPACTION_LAG_MS,
        doc="Leave records alone that are younger.",
        reason=KAFKA,
    )
    log_cleaner_max_compaction_lag_ms: int = topic_default(
        topic_settings.MAX_COMPACTION_LAG_MS,
        doc="Compact records that are older, however little there is to gain.",
        reason="Kafka's default: never.",
    )


@attrs.frozen(kw_only=True, slots=False)
class GroupSettings:
    """Consumer groups."""

    group_min_session_timeout_ms: int = setting(
        6_000, least=0, most=INT_MAX, doc="The shortest session timeout that a member may ask for.", reason=KAFKA
    )
    group_max_session_timeout_ms: int = setting(1_800_000, least=0, most=INT_MAX, doc="The longest.", reason=KAFKA)
    group_initial_rebalance_delay_ms: int = setting(
        0,
        least=0,
        most=INT_MAX,
        doc="How long the first rebalance of an empty group waits for more members.",
        reason="Kafka's 3000 saves rebalances when many members start at once, and makes everybody wait 3 s for their "
        "first message; the examples of its container image set 0, too.",
    )
    group_max_size: int = setting(
        INT_MAX, unit="members", least=1, most=INT_MAX, doc="Members of one group.", reason=KAFKA
    )
    group_max_bytes: int = setting(
        4 * 1024 * 1024,
        kafka=None,
        least=64 * 1024,
        most=INT_MAX,
        doc="Memory for the members of one group: about 1 KiB for each, and what they send and are assigned. A member that "
        "would be too much is refused with GROUP_MAX_SIZE_REACHED, an assignment with UNKNOWN_SERVER_ERROR.",
        reason="In Kafka a group has to fit into message.max.bytes (1 MiB), with one protocol of each member; here all "
        "protocols count.",
    )
    coordinator_max_bytes: int = setting(
        256 * 1024 * 1024,
        kafka=None,
        least=1024 * 1024,
        doc="Memory for all groups, committed offsets and transactional ids. What would need more is refused with "
        "COORDINATOR_NOT_AVAILABLE, and an event says so; what is there goes on.",
        reason="30,000 groups, or 600,000 committed offsets. Kafka has no bound: one connection can fill it.",
    )
    offset_metadata_max_bytes: int = setting(
        4096,
        kafka="offset.metadata.max.bytes",
        least=0,
        most=INT_MAX,
        doc="The longest text that may go with a committed offset.",
        reason=KAFKA,
    )
    offsets_retention_minutes: int = setting(
        10_080,
        least=1,
        most=INT_MAX,
        doc="Forget the offsets of a group that has been empty for so long.",
        reason="Kafka's default: a week.",
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, least=1, doc="How often to look for such offsets.", reason=KAFKA
    )
