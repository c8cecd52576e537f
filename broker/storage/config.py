"""What the storage needs to know of the broker's settings: a value, made by the assembly."""

import attrs

from broker.config import BrokerConfig
from broker.storage.log.log_config import LogConfig

_DEFAULTS = BrokerConfig()


@attrs.frozen(kw_only=True)
class StorageConfig:
    """Fields have the names, units, meaning and defaults of the broker's settings of the same name, except for ``defaults``: the
    settings that a topic may override."""

    data_dir: str
    node_id: int = _DEFAULTS.node_id
    num_partitions: int = _DEFAULTS.num_partitions
    data_dir_accept_foreign_files: bool = _DEFAULTS.data_dir_accept_foreign_files
    defaults: LogConfig = attrs.field(factory=LogConfig)
    log_retention_check_interval_ms: int = _DEFAULTS.log_retention_check_interval_ms
    log_cleaner_enable: bool = _DEFAULTS.log_cleaner_enable
    log_cleaner_backoff_ms: int = _DEFAULTS.log_cleaner_backoff_ms
    # Kafka counts 24 bytes a key; a Python dict entry with its key takes about 150, so the cleaner counts those.
    log_cleaner_dedupe_buffer_size: int = _DEFAULTS.log_cleaner_dedupe_buffer_size
    log_flush_offset_checkpoint_interval_ms: int = _DEFAULTS.log_flush_offset_checkpoint_interval_ms
    producer_id_expiration_ms: int = _DEFAULTS.producer_id_expiration_ms
    producer_id_expiration_check_interval_ms: int = _DEFAULTS.producer_id_expiration_check_interval_ms
    # Of the storage alone. Sockets need descriptors too, and 1024 is the usual soft limit of a process.
    max_open_files: int = _DEFAULTS.max_open_files
    # A MiB, or 500 small batches, takes a millisecond of one core; 0 switches verification off.
    scrub_bytes_per_second: int = _DEFAULTS.scrub_bytes_per_second

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> "StorageConfig":
        """Raises AttributeError where a field of the storage's is not a setting of the broker's."""
        fields = {field.name: getattr(config, field.name) for field in attrs.fields(cls) if field.name != "defaults"}
        return cls(**fields, defaults=LogConfig.from_broker(config))
