"""Checkpoint files: Kafka's format, replaced as a whole."""

import contextlib
import errno
import re
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.checkpoints import (
    CorruptCheckpoint,
    partition_metadata_text,
    read_leader_epochs,
    read_offsets,
    read_partition_metadata,
    replace_text,
    write_offsets,
)
from tests.sim.disk import Medium, SimDisk
from tests.sim.world import Killed, World
from tests.storage.helpers import FaultyDisk

topics = st.text("abc.-_", min_size=1, max_size=10)


@given(offsets=st.dictionaries(st.tuples(topics, st.integers(0, 99)), st.integers(0, 2**62)))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[tuple[str, int], int]
) -> None:
    path = f"{tmp_path_factory.mktemp('c')}/checkpoint"
    write_offsets(FaultyDisk(), path, offsets)
    assert read_offsets(FaultyDisk(), path) == offsets


def test_offsets_file_is_laid_out_as_kafka_reads(tmp_path: Path) -> None:
    write_offsets(FaultyDisk(), f"{tmp_path}/c", {("b", 1): 5, ("a", 0): 7})
    assert (tmp_path / "c").read_text() == "0\n2\na 0 7\nb 1 5\n"


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    assert read_offsets(FaultyDisk(), f"{tmp_path}/c") == {}
    assert read_leader_epochs(FaultyDisk(), str(tmp_path)) == []
    assert read_partition_metadata(FaultyDisk(), str(tmp_path)) == (None, None)


@pytest.mark.parametrize(
    "text", [b"", b"0", b"1\n0\n", b"0\n2\na 0 7\n", b"0\n1\na 0\n", b"0\n1\na x 7\n", b"\xff\xfe", b"0\n1\na 0 7 8\n"]
)
def test_a_damaged_file_is_known_as_such(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "c").write_bytes(text)
    with pytest.raises(CorruptCheckpoint):
        read_offsets(FaultyDisk(), f"{tmp_path}/c")


def test_spare_file_allows_writing_offsets_on_full_disk(tmp_path: Path) -> None:
    disk, path = FaultyDisk(), f"{tmp_path}/c"
    write_offsets(disk, path, {("a", 0): 7, ("b", 0): 9}, spare=True)
    disk.room = 0
    now = {("a", number): 10 * number for number in range(100)}
    write_offsets(disk, path, now, spare=True)
    assert read_offsets(disk, path) == now
    with pytest.raises(OSError):  # there was no room for the next spare file
        write_offsets(disk, path, {("a", 0): 8}, spare=True)
    assert read_offsets(disk, path) == now


def test_power_loss_on_full_disk_leaves_either_offsets() -> None:
    path, before, now = "/c", {("a", 0): 7, ("b", 0): 9}, {("a", number): 10 * number for number in range(100)}
    seen = []
    for seed in range(100):
        world = World(seed)
        medium = Medium(world)
        process = world.boot()
        disk = SimDisk(process, medium)
        write_offsets(disk, path, before, spare=True)
        medium.faults.full = True
        process.countdown = seed // 8  # disk operations until the power goes
        with contextlib.suppress(Killed):
            write_offsets(disk, path, now, spare=True)
        process.countdown = -1
        world.end_process()
        medium.process_died(process, power=True)
        found = read_offsets(SimDisk(world.boot(), medium), path)
        assert found in (before, now)
        seen.append(found)
    assert before in seen and now in seen


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename"])
def test_a_failed_replacement_leaves_the_old_content(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk()
    replace_text(disk, f"{tmp_path}/c", "old")
    disk.fail[operation, "c.tmp"] = errno.EIO
    with pytest.raises(OSError):
        replace_text(disk, f"{tmp_path}/c", "new and longer")
    disk.fail.clear()
    assert (tmp_path / "c").read_text() == "old"
    replace_text(disk, f"{tmp_path}/c", "n")
    assert (tmp_path / "c").read_text() == "n"


def test_content_synced_before_name_and_name_before_end(tmp_path: Path) -> None:
    disk = FaultyDisk()
    order: list[str] = []
    disk.before = lambda what, path: order.append(what)
    replace_text(disk, f"{tmp_path}/c", "text")
    assert order == ["open", "write", "truncate", "sync", "rename", "sync_dir"]


TOPIC_ID = uuid.UUID("fb4ff8e2-7d5c-4bd5-8f3a-9d7f6c1b2a3e")


def test_topic_id_and_number_of_partitions_come_back(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text(partition_metadata_text(TOPIC_ID, 12))
    assert read_partition_metadata(FaultyDisk(), str(tmp_path)) == (TOPIC_ID, 12)


def test_topic_id_is_written_so_that_kafka_reads() -> None:
    """Kafka splits the first line and the second at a colon with white space behind it, and looks at no other line."""
    first, second, *_ = partition_metadata_text(TOPIC_ID, 12).splitlines()
    assert re.split(r":\s+", first) == ["version", "0"]
    assert re.split(r":\s+", second) == ["topic_id", "-0_44n1cS9WPOp1_bBsqPg"]


def test_kafka_metadata_has_no_number_of_partitions(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text("version: 0\ntopic_id: -0_44n1cS9WPOp1_bBsqPg")
    assert read_partition_metadata(FaultyDisk(), str(tmp_path)) == (TOPIC_ID, None)


@pytest.mark.parametrize(
    "text", ["", "version: 0", "version: 0\ntopic_id: short", "version: 0\ntopic_id: ***", "topic_id:"]
)
def test_an_illegible_topic_id_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    assert read_partition_metadata(FaultyDisk(), str(tmp_path)) == (None, None)


@pytest.mark.parametrize(
    "end", ["partitions: 1", "partitions: \n", "partitions: -3\n", "partitions: \u0663\n", "partit"]
)
def test_number_that_may_be_incomplete_is_ignored(tmp_path: Path, end: str) -> None:
    text = partition_metadata_text(TOPIC_ID, 12)
    (tmp_path / "partition.metadata").write_text(text[: text.index("partitions")] + end)
    assert read_partition_metadata(FaultyDisk(), str(tmp_path)) == (TOPIC_ID, None)
