"""What the storage takes from the broker's settings."""

import attrs

from broker.config import BrokerConfig
from broker.storage.config import StorageConfig


def test_storage_without_settings_has_defaults_of_broker() -> None:
    broker = BrokerConfig()
    assert StorageConfig(data_dir=broker.data_dir) == StorageConfig.from_broker(broker)


def test_every_field_is_taken_from_setting_of_name() -> None:
    broker = BrokerConfig(
        data_dir="/d",
        node_id=2,
        num_partitions=3,
        data_dir_accept_foreign_files=True,
        log_retention_check_interval_ms=4,
        log_cleaner_enable=False,
        log_cleaner_backoff_ms=5,
        log_cleaner_dedupe_buffer_size=1_048_577,
        log_flush_offset_checkpoint_interval_ms=6,
        producer_id_expiration_ms=7,
        producer_id_expiration_check_interval_ms=8,
        max_open_files=17,
        scrub_bytes_per_second=9,
        log_retention_ms=10,
        remote_log_manager_task_interval_ms=11,
        remote_object_delete_delay_ms=12,
    )
    config = StorageConfig.from_broker(broker)
    for field in attrs.fields(StorageConfig):
        if field.name != "defaults":
            assert getattr(config, field.name) == getattr(broker, field.name)
            assert getattr(config, field.name) != field.default
    assert config.defaults.retention_ms == 10
