"""Several nodes of one machine with an object store: each uploads what is its own, the catalogue goes there once, and all of it
comes back for any number of nodes.
"""

import json
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.directory_objects import DirectoryObjects
from broker.storage.partition_dir import parse_name
from broker.storage.tier import keys
from tests.process.broker_process import PATIENCE_S
from tests.process.test_backup import command
from tests.process.test_nodes import PARTITIONS, NodesInUse, expected
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SETTINGS = (
    "log_segment_bytes=20000",
    "log_local_retention_bytes=20000",
    "log_flush_offset_checkpoint_interval_ms=50",
    "remote_log_manager_task_interval_ms=50",
    "remote_object_delete_delay_ms=0",
    "log_segment_delete_delay_ms=0",
)
COUNT = 40_000


class TieredNodes(NodesInUse):
    def __init__(self, directory: Path) -> None:
        self.objects = directory / "objects"
        super().__init__(directory, *SETTINGS)

    def resize(self, count: int) -> None:
        super().resize(count)
        self.options = (*self.options, "--objects", f"file://{self.objects}")

    def segments(self) -> dict[str, set[str]]:
        """The objects of each partition in the store, by topic id and number."""
        found: dict[str, set[str]] = {}
        for key, _ in DirectoryObjects(str(self.objects), read_only=True).list(keys.PREFIX):
            _, topic, partition, name = key.split("/")
            found.setdefault(f"{topic}/{partition}", set()).add(name)
        return found

    def local_bytes(self) -> int:
        total = 0
        for path in self.data_dir.glob("nodes/*/t-*/*.log"):
            with suppress(FileNotFoundError):  # evicted meanwhile
                total += path.stat().st_size
        return total

    def copies(self) -> set[str]:
        return {path.name for path in self.objects.glob("catalogue/*")}

    def fill(self, topic: str) -> None:
        """Until all partitions have much in the store, and little on the disk."""
        self.make_topic(topic)
        self.write(topic, COUNT)
        wait_for(self._is_tiered, "the segments are not uploaded")

    def _is_tiered(self) -> bool:
        found = self.segments()
        uploaded = [len(names) >= 4 for names in found.values()]
        return uploaded == [True] * PARTITIONS and self.local_bytes() < PARTITIONS * 3 * 20_000

    def restart(self) -> None:
        assert 0 == self.stop()
        self.start()


def uploaded(copy: Path) -> list[int]:
    """Where each partition ends, as this copy of the catalogue has it."""
    ends = [0] * PARTITIONS
    catalogue = SqliteCatalogue(str(copy))
    for file in catalogue.load_remote_files():
        partition, key = parse_name(file.path.partition("/")[0]), keys.parse(file.object)
        assert partition is not None
        assert key is not None
        ends[partition[1]] = max(ends[partition[1]], key.end)
    catalogue.close()
    return ends


@pytest.fixture
def nodes(tmp_path: Path) -> TieredNodes:
    return TieredNodes(tmp_path)


def test_records_are_read_from_the_store_after_each_division(nodes: TieredNodes) -> None:
    with nodes:
        nodes.fill("t")
        for count in (3, 2, 1, 4):
            assert 0 == nodes.stop()
            nodes.resize(count)
            nodes.start()
            assert expected(COUNT) == nodes.read("t"), count
        assert 0 == nodes.stop()
        assert [] == nodes.errors
        command_line = ["serve", "--nodes", "4", "--data-dir", nodes.data_dir, "--listener", "kafka://127.0.0.1:0"]
        assert "Set objects to the object store" in command(*command_line, fails=2)


def test_a_deleted_topic_leaves_nothing_in_the_store(nodes: TieredNodes) -> None:
    with nodes:
        nodes.fill("t")
        before = nodes.segments()
        ports = [broker.port for broker in nodes.admin().list_topics().brokers.values()]
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[1]}"})
        [deleted] = admin.delete_topics(["t"]).values()
        deleted.result(PATIENCE_S)
        nodes.make_topic("t")
        nodes.write("t", 40)
        assert expected(40) == nodes.read("t")
        # Objects go after the next copy of the catalogue, of which each start makes one.
        nodes.restart()
        wait_for(lambda: not set(before) & set(nodes.segments()), "objects of the deleted topic are still there")
        assert expected(40) == nodes.read("t")
        assert 0 == nodes.stop()
        assert [] == nodes.errors


def test_a_topic_deleted_while_a_node_is_away_does_not_come_back(nodes: TieredNodes) -> None:
    with nodes:
        nodes.fill("t")
        before = nodes.segments()
        assert 0 == nodes.stop()
        # As another node leaves it: neither a row nor directories.
        with sqlite3.connect(nodes.data_dir / "catalogue.sqlite") as catalogue:
            catalogue.execute("DELETE FROM topics")
        catalogue.close()
        for directory in nodes.data_dir.glob("nodes/*/t-*"):
            shutil.rmtree(directory)
        nodes.start()
        assert "t" not in nodes.admin().list_topics().topics
        nodes.make_topic("t")
        nodes.write("t", 40)
        assert expected(40) == nodes.read("t")
        nodes.restart()
        wait_for(lambda: not set(before) & set(nodes.segments()), "objects of the deleted topic are still there")
        assert 0 == nodes.stop()
        assert [] == nodes.errors


def test_a_lost_disk_comes_back_from_the_store(nodes: TieredNodes, tmp_path: Path) -> None:
    with nodes:
        nodes.fill("t")
        before = nodes.copies()
        nodes.restart()
        wait_for(lambda: nodes.copies() - before, "no copy of the catalogue is made")
        assert 0 == nodes.stop()
        ends = uploaded(max(nodes.objects.glob("catalogue/*")))
        shutil.rmtree(nodes.data_dir)
        said = command("restore", "--from", f"file://{nodes.objects}", nodes.data_dir, "--output", "json")
        assert (PARTITIONS, []) == (json.loads(said)["partitions"], json.loads(said)["missing"])
        nodes.resize(2)
        nodes.start()
        found = nodes.read("t")
        assert ends == [len(part) for part in found]
        assert all(end > COUNT // PARTITIONS // 2 for end in ends)
        assert [numbers[: len(part)] for numbers, part in zip(expected(COUNT), found, strict=True)] == found


def test_a_backup_has_what_is_in_the_store(nodes: TieredNodes, tmp_path: Path) -> None:
    with nodes:
        nodes.fill("t")
        command("backup", "-b", nodes.address, tmp_path / "backup")
        command("restore", tmp_path / "backup", tmp_path / "new" / "data")
    restored = NodesInUse(tmp_path / "new")
    with restored:
        assert expected(COUNT) == restored.read("t")


def test_the_first_node_alone_puts_copies_of_the_catalogue(nodes: TieredNodes) -> None:
    with nodes:
        nodes.make_topic("t")
        wait_for(nodes.copies, "no copy of the catalogue is made")
        assert not list(nodes.data_dir.glob("nodes/[12]/.catalogue-copy.sqlite"))
        nodes.make_topic("other")
        before = nodes.copies()
        nodes.kill_node(1)  # it makes one as soon as it is there, and the next one a minute later
        wait_for(lambda: nodes.copies() - before, "no copy of the catalogue is made")
