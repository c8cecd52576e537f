"""What services have beside the partitions is where the nodes look for it, however their number changes."""

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.nodes import directory_of, owner_of
from broker.runtime.disk import SystemDisk
from broker.server.node_directories import COMPACTED, SHUFFLE, arrange
from broker.storage import partition_dir

DISK = SystemDisk()
IDS = {"a": uuid.UUID(int=7), "b": uuid.UUID(int=2**127)}


def place(data_dir: Path, node: int, count: int) -> Path:
    return data_dir if count == 1 else Path(directory_of(str(data_dir), node))


def fill(data_dir: Path, partitions: int) -> None:
    for topic, topic_id in IDS.items():
        for number in range(partitions):
            partition_dir.make(DISK, f"{data_dir}/{topic}-{number}", topic_id, partitions)


def compacted(topic: str, number: int) -> str:
    return f"{IDS[topic].hex}-{number}-50.compacted"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_compacted_files_are_with_the_nodes_of_their_partitions(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    data_dir = tmp_path_factory.mktemp("data")
    fill(data_dir, 3)
    (data_dir / COMPACTED).mkdir()
    kept = [(topic, number) for topic in IDS for number in range(3)]
    for topic, number in kept:
        (data_dir / COMPACTED / compacted(topic, number)).write_text(f"of {topic} {number}")
    for count in counts:
        arrange(DISK, str(data_dir), count)
        for topic, number in kept:
            where = place(data_dir, owner_of(topic, number, count), count)
            assert f"of {topic} {number}" == (where / COMPACTED / compacted(topic, number)).read_text()


def test_files_of_unknown_topics_stay(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / COMPACTED).mkdir()
    stranger = f"{uuid.UUID(int=1).hex}-0-5.compacted"
    for name in (stranger, "notes.txt"):
        (tmp_path / COMPACTED / name).write_text("")
    arrange(DISK, str(tmp_path), 2)
    assert [stranger, "notes.txt"] == sorted(each.name for each in (tmp_path / COMPACTED).iterdir())


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_result_partitions_are_where_the_first_address_leads(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    data_dir = tmp_path_factory.mktemp("data")
    (data_dir / SHUFFLE).mkdir()
    (data_dir / SHUFFLE / "ab-1.data").write_text("rows")
    for count in counts:
        arrange(DISK, str(data_dir), count)
        assert "rows" == (place(data_dir, 0, count) / SHUFFLE / "ab-1.data").read_text()


def test_those_of_a_further_node_wait_for_it(tmp_path: Path) -> None:
    arrange(DISK, str(tmp_path), 2)
    second = Path(directory_of(str(tmp_path), 1)) / SHUFFLE
    second.mkdir()
    (second / "cd-1.data").write_text("its")
    for count in (1, 2):
        arrange(DISK, str(tmp_path), count)
    assert "its" == (second / "cd-1.data").read_text()
