"""What a log has where."""

import pytest

from broker.storage.log.log import Log
from tests.storage.helpers import append_many
from tests.storage.tier.helpers import TieredStorage


@pytest.fixture
def log(storage: TieredStorage) -> Log:
    log = storage.create(local_retention_bytes=2500)
    append_many(log, 60)
    return log


def test_log_that_is_on_disk_only(storage: TieredStorage, log: Log) -> None:
    tier = storage.tier
    assert (0, None, log.size_bytes()) == (tier.earliest_local(log), tier.latest_tiered(log), tier.local_bytes(log))


def test_log_of_which_disk_has_newest_part(storage: TieredStorage, log: Log) -> None:
    storage.upload()
    tier = storage.tier
    kept = storage.local(".log")
    assert 1 < len(kept) < len(log.view.segments)
    assert int(kept[0].removesuffix(".log")) == tier.earliest_local(log)
    assert log.view.bases[-1] - 1 == tier.latest_tiered(log)
    assert sum(segment.size for segment in log.view.segments[-len(kept) :]) == log.local_bytes() < log.size_bytes()


def test_first_local_offset_is_not_before_start_of_log(storage: TieredStorage, log: Log) -> None:
    log.trimming.delete_records(3)
    assert 3 == storage.tier.earliest_local(log)


def test_what_is_before_a_segment_that_is_not_there_counts_only(storage: TieredStorage, log: Log) -> None:
    storage.upload()
    second = [path for path in log.view.segments[-2].paths() if storage.tier.disk.is_remote(path)]
    storage.tier.disk.abandon(second)
    assert log.view.bases[-2] - 1 == storage.tier.latest_tiered(log)


def test_names_of_threads(storage: TieredStorage) -> None:
    bodies = storage.tier.bodies(storage.entropy, storage.manager.partitions, lambda: storage.manager.config)
    assert ["segment-uploader", *(f"remote-reader-{number}" for number in range(4))] == [name for name, _ in bodies]
