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
        doc="Memory for the buffers of all result partitions and for the metadata: 16 bytes for a spilled buffer, 3 KiB for "
        "a partition, 544 bytes for each of its subpartitions that is used, 1.5 KiB for a reader. Beyond half of it, "
        "buffers are spilled to files; those of a blocking partition beyond 16 MiB. When it is used up, writers wait. "
        "New partitions are refused when metadata takes 3/4 of it, and readers when readers take half; a partition fails "
        "when the metadata of its spilled buffers takes a quarter.",
        reason="8,192 buffers of Flink's 32 KiB, which leaves memory on a small machine.",
    )
    shuffle_disk_bytes: int = setting(
        -2,
        kafka=None,
        least=-2,
        doc="Bytes of result partitions on disk. When they are used up, writers of blocking partitions wait until something "
        "is released; writers of pipelined partitions wait when the memory is used up as well. -1: no limit. -2: half of "
        "what is free on the file system when the broker starts, in addition to what partitions already take there.",
        reason="A shuffle that grows without limit leaves half of the disk for the topics.",
    )
    shuffle_released_bytes: int = setting(
        1024 * 1024 * 1024,
        kafka=None,
        least=0,
        doc="Bytes of files of released partitions that are kept, for a minute at most, until other files have grown: new "
        "files are cheaper to write while memory is at hand. They count towards shuffle_disk_bytes and are removed first "
        "when the disk is full.",
        reason="The stages of a job, or successive jobs, write about as much as was released before.",
    )
    shuffle_quota_bytes: int = setting(
        -1,
        kafka=None,
        least=-1,
        doc="Bytes, in memory and on disk, of the partitions of one owner (the user or job that a writer names), metadata "
        "included. A writer that exceeds it is refused and its partition fails. -1: no limit.",
        reason="There is one user unless a writer names another.",
    )
    shuffle_pipelined_bytes: int = setting(
        16 * 1024 * 1024,
        kafka=None,
        least=1,
        doc="How far the readers of a pipelined partition may be behind its writer before the writer has to wait.",
        reason="Half a second at 32 MB/s; Flink's own buffers between two tasks are a few MB.",
    )
    shuffle_write_credit_buffers: int = setting(
        64,
        kafka=None,
        unit="buffers",
        least=4,
        most=1_000_000,
        doc="Buffers that a writer may have on their way to the broker; up to eight times as many when they are smaller than "
        "8 KiB, and fewer, down to 4, when they are larger than 32 KiB or memory is short.",
        reason="2 MiB of 32 KiB buffers: enough to fill a local network, and little memory.",
    )
    shuffle_partition_request_timeout_ms: int = setting(
        10_000,
        kafka=None,
        least=0,
        doc="How long a reader waits for a partition that does not exist yet or, if it is blocking, is not finished yet.",
        reason="Flink's taskmanager.network.partition-request-timeout.",
    )
    shuffle_blocking_ttl_ms: int = setting(
        3_600_000,
        kafka=None,
        least=0,
        doc="How long a finished blocking partition is kept if its writer did not say.",
        reason="An hour is longer than most jobs, and nothing stays for ever after a driver that died.",
    )
    shuffle_pipelined_retention_ms: int = setting(
        0,
        kafka=None,
        least=0,
        doc="How long a pipelined partition is kept for another reader when its reader's connection is lost. The next reader "
        "begins with the first buffer, so all buffers are kept (and spilled) until they have been read. 0: buffers are "
        "released when they have been sent, and the partition of a lost reader counts as read.",
        reason="As Flink: a pipelined partition is bounded, and the job is restarted.",
    )
    shuffle_writer_retention_ms: int = setting(
        60_000,
        kafka=None,
        least=0,
        doc="How long a writer whose connection was lost may take to come back before its partition fails.",
        reason="Longer than a restart of a process or of a network, and shorter than a user would wait.",
    )
