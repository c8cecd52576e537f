"""Settings of the shuffle service. Kafka has none of these; where Flink has one, the reason names it.

Tests: tests/config/test_setting.py, tests/config/test_settings.py.
"""

import attrs

from broker.config.setting import setting


@attrs.frozen(kw_only=True, slots=False)
class ShuffleSettings:
    """Shuffle: result partitions on shuffle:// listeners."""

    shuffle_memory_bytes: int = setting(
        256 * 1024 * 1024,
        kafka=None,
        least=1024 * 1024,
        doc="Memory for the buffers of all result partitions and for what is known of them: 16 bytes of a spilled buffer, 3 KiB "
        "of a partition, 544 bytes of each of its subpartitions that is used, 1.5 KiB of a reader. From half of it on buffers "
        "are spilled to files, those of a blocking partition from 16 MiB on. When it is used up, writers wait; partitions are "
        "refused when the rest has 3/4 of it, readers when they have half, and a partition fails whose spilled buffers have a "
        "quarter.",
        reason="8,192 buffers of Flink's 32 KiB; a small machine stays alive.",
    )
    shuffle_disk_bytes: int = setting(
        -2,
        kafka=None,
        least=-2,
        doc="Bytes of result partitions on disk. When they are used up, writers of blocking partitions wait until something is "
        "released, those of pipelined ones when the memory is used up as well. -1: no bound. -2: half of what is free on the "
        "file system when the broker starts, beside what partitions take there already.",
        reason="A shuffle that runs away leaves half of the disk for the topics.",
    )
    shuffle_released_bytes: int = setting(
        1024 * 1024 * 1024,
        kafka=None,
        least=0,
        doc="Bytes of the files of released partitions that are not removed before others grow, for a minute at most: new files "
        "are cheaper with memory that is at hand. They count in shuffle_disk_bytes and go first when the disk is full.",
        reason="A job's stages, or jobs one after another, write about as much as was released before.",
    )
    shuffle_quota_bytes: int = setting(
        -1,
        kafka=None,
        least=-1,
        doc="Bytes, in memory and on disk, of the partitions of one owner (the user or job that a writer names), with what is "
        "known of them. A writer that goes beyond is refused and its partition fails. -1: no bound.",
        reason="There is one user until somebody says that there are more.",
    )
    shuffle_pipelined_bytes: int = setting(
        16 * 1024 * 1024,
        kafka=None,
        least=1,
        doc="What readers of a pipelined partition may be behind its writer, before the writer has to wait.",
        reason="Half a second at 32 MB/s; Flink's own buffers between two tasks are a few MB.",
    )
    shuffle_write_credit_buffers: int = setting(
        64,
        kafka=None,
        unit="buffers",
        least=4,
        most=1_000_000,
        doc="Buffers a writer may have on their way to the broker; up to eight times as many when they are smaller than 8 KiB, "
        "and fewer, down to 4, when they are larger than 32 KiB or memory is short.",
        reason="2 MiB of 32 KiB buffers: enough to fill a local network, little to hold back.",
    )
    shuffle_partition_request_timeout_ms: int = setting(
        10_000,
        kafka=None,
        least=0,
        doc="How long a reader waits for a partition that is not there (or, if blocking, not finished) yet.",
        reason="Flink's taskmanager.network.partition-request-timeout.",
    )
    shuffle_blocking_ttl_ms: int = setting(
        3_600_000,
        kafka=None,
        least=0,
        doc="How long a finished blocking partition is kept, if its writer did not say.",
        reason="An hour outlives most jobs, and a driver that died leaves nothing for ever.",
    )
    shuffle_pipelined_retention_ms: int = setting(
        0,
        kafka=None,
        least=0,
        doc="How long a pipelined partition is kept for another reader when its reader's connection is lost; it then begins "
        "again with the first buffer, so all of it is kept (and spilled) until it has been read. 0: what was sent is let go of, "
        "and a lost reader has read it.",
        reason="As Flink: a pipelined partition is bounded, and the job is restarted.",
    )
    shuffle_writer_retention_ms: int = setting(
        60_000,
        kafka=None,
        least=0,
        doc="How long a writer whose connection was lost may take to come back, before its partition fails.",
        reason="Longer than a restart of a process or of a network, shorter than anybody waits.",
    )
