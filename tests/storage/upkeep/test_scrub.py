"""Damage is found while the broker runs, wherever it is."""

from pathlib import Path

import pytest

from tests.storage.helpers import Storage, append_many, offsets, read_records


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    with path.open("r+b") as file:
        file.write(content)


def scrub(storage: Storage, budget: int = 1 << 30) -> list[str]:
    return [log.topic for log in storage.manager.housekeeper.scrub.step(storage.manager.partitions, budget)]


def test_nothing_is_wrong_with_a_good_log(storage: Storage) -> None:
    storage.create("empty")
    append_many(storage.create("a", segment_bytes=300), 20)
    append_many(storage.create("b"), 20)
    storage.log("b").trimming.delete_records(10)
    for _ in range(5):
        assert scrub(storage) == []
        storage.clock.sleep_ms(3_600_000)
    assert storage.manager.housekeeper.scrub.rounds == 5


def test_round_over_little_data_is_followed_later(storage: Storage) -> None:
    append_many(storage.create(), 20)
    scrub(storage)
    storage.disk.read_bytes = 0
    for _ in range(100):
        scrub(storage)
    assert storage.disk.read_bytes == 0


def test_it_leaves_the_open_files_alone(storage: Storage) -> None:
    append_many(storage.create(segment_bytes=300), 20)
    storage.manager.files.close_all()
    scrub(storage)
    assert storage.manager.files.count() == 0


@pytest.mark.parametrize("segment", [0, 2, -1])
def test_a_damaged_batch_takes_its_partition_offline(storage: Storage, segment: int) -> None:
    append_many(storage.create("good"), 20)
    append_many(storage.create("bad", segment_bytes=300), 20)
    storage.restart()
    flip(storage.path("bad") / storage.files(".log", "bad")[segment], 100)
    assert scrub(storage) == ["bad"]
    assert "is damaged: no valid record batch at position" in str(storage.log("bad").offline)
    assert storage.log("good").offline is None


def test_the_next_start_knows_of_it(storage: Storage) -> None:
    append_many(storage.create(), 20)
    storage.manager.checkpoint()
    path = storage.path() / storage.files(".log")[0]
    flip(path, 100)
    storage.manager.housekeeper.scrub_some()
    for stop in (storage.restart, storage.crash):
        stop()
        assert storage.log().offline is not None
    flip(path, 100)
    storage.restart()
    assert offsets(read_records(storage.log())) == list(range(20))


def test_scrub_reads_limited_bytes_and_returns_to_everything(storage: Storage) -> None:
    for name in ("a", "b", "c"):
        append_many(storage.create(name), 10, size=1_000_000)
    steps = 0
    storage.disk.read_bytes = 0
    while storage.disk.read_bytes < 30_000_000:
        before = storage.disk.read_bytes
        scrub(storage, 2_000_000)
        assert 0 < storage.disk.read_bytes - before < 7_000_000
        steps += 1
    assert steps >= 10
    flip(storage.path("b") / storage.files(".log", "b")[0], 5_000_000)
    found: list[str] = []
    storage.clock.sleep_ms(3_600_000)
    for _ in range(20):
        found += scrub(storage, 2_000_000)
    assert found == ["b"]


def test_deleted_topics_and_segments_do_not_disturb_it(storage: Storage) -> None:
    for name in ("a", "b"):
        append_many(storage.create(name, segment_bytes=300), 20)
    scrub(storage, 1)
    storage.manager.delete_topic("a")
    storage.log("b").trimming.delete_records(15)
    for _ in range(3):
        assert scrub(storage) == []
        storage.clock.sleep_ms(3_600_000)
    storage.manager.delete_topic("b")
    assert scrub(storage) == []
