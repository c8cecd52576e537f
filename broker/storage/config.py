"""Values of the storage: its settings, which the assembly makes of the broker's, and a topic with the rules for its name.

No thread, no lock, no I/O: ``log_manager.py`` owns the topics.
"""

import re
import uuid
from collections.abc import Mapping

import attrs

from broker.config import BrokerConfig
from broker.metadata.catalogue import TopicRow
from broker.storage.log.log_config import LogConfig
from broker.storage.refusals import InvalidTopicName

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
    # For the storage alone. Sockets need descriptors too, and 1024 is the usual soft limit of a process.
    max_open_files: int = _DEFAULTS.max_open_files
    # A MiB, or 500 small batches, takes a millisecond of one core; 0 switches verification off.
    scrub_bytes_per_second: int = _DEFAULTS.scrub_bytes_per_second
    remote_log_manager_task_interval_ms: int = _DEFAULTS.remote_log_manager_task_interval_ms
    remote_object_delete_delay_ms: int = _DEFAULTS.remote_object_delete_delay_ms

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> "StorageConfig":
        """Raises AttributeError if the broker has no setting for a field of the storage's."""
        fields = {field.name: getattr(config, field.name) for field in attrs.fields(cls) if field.name != "defaults"}
        return cls(**fields, defaults=LogConfig.from_broker(config))


# Kafka's Topic.MAX_NAME_LENGTH: with "-" and the number of a partition it is a file name.
LONGEST_NAME = 249
# Of one topic. A larger number is more likely a typing error, or a directory's name that is not a partition's, than intended.
MOST_PARTITIONS = 100_000

_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{LONGEST_NAME}}}")


@attrs.frozen
class TopicInfo:
    """A topic as it is now. ``configs`` holds only what it sets itself. ``version`` rises with each change."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    version: int = 0

    def row(self) -> TopicRow:
        return TopicRow(self.name, self.topic_id, self.partitions, self.configs)


def check_name(name: str) -> None:
    """Raises InvalidTopicName for a name that Kafka does not allow."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicName(
            f"Topic name {name[:300]!r} is not allowed: it has 1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 . _ -"
        )


def collision_key(name: str) -> str:
    """Two topics with the same key cannot exist side by side. Kafka treats "." and "_" as the same: metrics could not tell the
    topics apart."""
    return name.replace(".", "_")
