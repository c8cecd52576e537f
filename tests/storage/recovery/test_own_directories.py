"""Two nodes with a catalogue in common and disks of their own: topics that were changed while one was not there."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cluster.nodes import Nodes
from broker.metadata.catalogue import TopicRow
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.disk import SystemDisk, SystemFile
from broker.storage.config import StorageConfig
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager
from tests.storage.helpers import CountingEntropy, HandClock, append, values

PARTITIONS = 4


class _Held:
    def close(self) -> None:
        pass


class Two:
    """Both see a change at once, if they run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.catalogue = SqliteCatalogue(f"{directory}/catalogue.sqlite")
        self.disk = SystemDisk()
        self.entropy = CountingEntropy()
        self.running: dict[int, LogManager] = {}
        self.changed: list[str] | None = None  # what nodes are told has changed

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        return 0, self.changed

    def settle(self, timeout_s: float, node: int) -> bool:
        for place, manager in self.running.items():
            if place != node - 1:
                manager.catch_up()
        return True

    def start(self, place: int) -> LogManager:
        data_dir = self.path(place)
        data_dir.mkdir(parents=True, exist_ok=True)
        nodes = Nodes(place, 2, 1, str(self.directory), self.disk, self, lock_topics=lambda _wait_s: _Held())
        manager = LogManager(
            self.disk,
            HandClock(),
            self.entropy,
            StorageConfig(data_dir=str(data_dir)),
            self.catalogue,
            nodes=nodes,
        )
        manager.open()
        self.running[place] = manager
        return manager

    def stop(self, place: int) -> None:
        self.running.pop(place).close()

    def lose(self, place: int) -> None:
        """As kill -9."""
        manager = self.running.pop(place)
        manager.files.close_all()
        manager._release_directory()

    def path(self, place: int) -> Path:
        return self.directory / "nodes" / str(place)

    def partitions(self, place: int) -> list[str]:
        """The directories of partitions, deleted ones not counted."""
        names = (path.name for path in self.path(place).iterdir() if path.is_dir())
        return sorted(name for name in names if not name.endswith("-delete"))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    for place in list(made.running):
        made.stop(place)
    made.catalogue.close()


def logs(manager: LogManager, topic: str = "t") -> list[Log]:
    return [log for (name, _), log in sorted(manager.partitions.items()) if name == topic]


def names(manager: LogManager) -> list[str]:
    return [f"{log.topic}-{log.partition}" for log in logs(manager)]


def test_each_node_makes_and_removes_its_own_directories(two: Two) -> None:
    first, second = two.start(0), two.start(1)
    first.create_topic("t", PARTITIONS)
    assert PARTITIONS == len(names(first) + names(second))
    assert (names(first), names(second)) == (two.partitions(0), two.partitions(1))
    second.add_partitions("t", 2 * PARTITIONS)
    assert 2 * PARTITIONS == len(names(first) + names(second))
    assert (names(first), names(second)) == (two.partitions(0), two.partitions(1))
    second.delete_topic("t")
    assert ([], []) == (two.partitions(0), two.partitions(1))


def test_partitions_that_were_made_while_it_was_away_are_made_at_the_start(two: Two) -> None:
    two.start(0).create_topic("t", PARTITIONS)
    assert not two.path(1).exists()
    second = two.start(1)
    assert names(second) == two.partitions(1)
    assert [None] * (PARTITIONS // 2) == [log.offline for log in logs(second)]


def test_a_topic_that_was_deleted_while_it_was_away_does_not_come_back(two: Two) -> None:
    first, second = two.start(0), two.start(1)
    first.create_topic("t", PARTITIONS)
    for log in logs(second):
        append(log, b"x")
    two.stop(1)
    first.delete_topic("t")
    second = two.start(1)
    assert [] == two.partitions(1)
    assert [] == second.topics()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_topic_of_the_same_name_has_nothing_of_the_one_before(two: Two, interrupted: bool) -> None:
    first, second = two.start(0), two.start(1)
    first.create_topic("t", PARTITIONS)
    for log in logs(second):
        append(log, b"old")
    two.stop(1)
    first.delete_topic("t")
    first.create_topic("t", PARTITIONS)
    second = two.start(1)
    if interrupted:  # before it has written its checkpoints
        two.lose(1)
        second = two.start(1)
    assert [None] * (PARTITIONS // 2) == [log.offline for log in logs(second)]
    for log in logs(second):
        assert [] == values(log)
        append(log, b"new")
    two.stop(1)
    assert [[b"new"]] * (PARTITIONS // 2) == [values(log) for log in logs(two.start(1))]


def test_a_topic_that_is_made_anew_while_it_is_away_is_made_here_as_well(two: Two) -> None:
    first, second = two.start(0), two.start(1)
    first.create_topic("t", PARTITIONS)
    for log in logs(second):
        append(log, b"old")
    two.stop(1)  # it writes checkpoints
    second = two.start(1)
    first.delete_topic("t")
    assert [] == two.partitions(1)
    two.lose(1)
    first.create_topic("t", PARTITIONS)
    second = two.start(1)
    assert [None] * (PARTITIONS // 2) == [log.offline for log in logs(second)]


def test_what_could_not_be_removed_is_not_in_the_way(two: Two) -> None:
    first, second = two.start(0), two.start(1)
    first.create_topic("t", PARTITIONS)
    kept = two.path(1) / names(second)[0]
    text = (kept / "partition.metadata").read_text()
    first.delete_topic("t")
    kept.mkdir()
    (kept / "partition.metadata").write_text(text)
    (kept / "00000000000000000000.log").write_bytes(b"old")
    first.create_topic("t", PARTITIONS)
    assert [None] * (PARTITIONS // 2) == [log.offline for log in logs(second)]


def test_a_partition_that_is_lost_is_not_made_anew(two: Two) -> None:
    first, second = two.start(0), two.start(1)
    first.create_topic("t", PARTITIONS)
    lost = logs(second)[0]
    append(lost, b"x")
    two.stop(1)
    for path in Path(lost.dir).iterdir():
        path.unlink()
    Path(lost.dir).rmdir()
    second = two.start(1)
    assert [True, False] == [log.offline is not None for log in logs(second)]


def test_files_of_somebody_else_stay(two: Two) -> None:
    two.start(1)
    two.stop(1)
    notes = two.path(1) / "notes-1"
    notes.mkdir()
    (notes / "a").write_text("x")
    two.start(1)
    assert "x" == (notes / "a").read_text()


class _OutOfDescriptors(SystemDisk):
    """The files can be made, and not opened again."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SystemFile:
        if "/unlucky-" in path and path.endswith(".log") and self.exists(path):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path, create=create, read_only=read_only)


def test_what_cannot_be_opened_of_what_another_node_has_made_is_offline_and_the_rest_is_there(two: Two) -> None:
    one = two.start(0)
    two.disk = _OutOfDescriptors()
    other = two.start(1)
    for name in ("unlucky", "lucky"):
        one.create_topic(name, PARTITIONS)
    offline = {log.topic: log.offline is not None for log in other.partitions.values()}
    assert {"unlucky": True, "lucky": False} == offline
    one.delete_topic("unlucky")
    assert ["lucky"] == [info.name for info in other.topics()]


def test_topics_that_have_not_changed_are_not_read_again(two: Two) -> None:
    one, other = two.start(0), two.start(1)
    one.create_topic("changed", PARTITIONS)
    one.create_topic("same", PARTITIONS)
    two.stop(1)
    other = two.start(1)
    two.changed = ["changed"]
    for name in ("changed", "same"):
        two.catalogue.delete_topic(name)
    other.catch_up()
    assert (None, "same") == (other.topic("changed"), other.require_topic("same").name)
    two.catalogue.put_topic(TopicRow("changed", two.entropy.uuid(), 1))
    other.catch_up()
    assert 1 == other.require_topic("changed").partitions
    before = other.require_topic("changed").topic_id
    two.catalogue.put_topic(TopicRow("changed", two.entropy.uuid(), 2))  # deleted, and made again meanwhile
    other.catch_up()
    assert 2 == other.require_topic("changed").partitions
    assert other.topic_by_id(before) is None
    two.changed = None
    other.catch_up()
    assert other.topic("same") is None
