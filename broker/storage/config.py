"""What the storage needs to know of the broker's settings: a value, made by the assembly."""

from typing import Any

import attrs

from broker.storage.log.log_config import LogConfig


@attrs.frozen(kw_only=True)
class StorageConfig:
    """Fields have the names, units and meaning of the broker's settings of the same name; ``defaults`` are those that a topic
    may override."""

    data_dir: str
    node_id: int = 1
    num_partitions: int = 1
    # Use a directory that holds other people's files and was no broker's before.
    data_dir_accept_foreign_files: bool = False
    defaults: LogConfig = attrs.field(factory=LogConfig)
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_enable: bool = True
    log_cleaner_backoff_ms: int = 15_000
    # Kafka counts 24 bytes a key; a Python dict entry with its key takes about 150, so the cleaner counts those.
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    # How often the recovery point is moved up (fsync, snapshot, checkpoint): what a crash leaves to be scanned.
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    # Of the storage alone. Sockets need descriptors too, and 1024 is the usual soft limit of a process.
    max_open_files: int = 400
    # Background verification of checksums; 0 switches it off. A MiB, or 500 small batches, takes a millisecond, so one core is
    # busy with it for 0.1 % and no request waits longer; a day is enough for 80 GiB.
    scrub_bytes_per_second: int = 1_048_576

    @classmethod
    def from_broker(cls, config: Any) -> "StorageConfig":
        """From any object that has the broker's settings as attributes; missing ones keep the defaults above."""
        fields = {f.name: getattr(config, f.name) for f in attrs.fields(cls) if hasattr(config, f.name)}
        fields["data_dir"] = str(fields["data_dir"])
        fields["defaults"] = LogConfig.from_broker(config)
        return cls(**fields)
