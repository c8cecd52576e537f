"""Partitions are where so many nodes look for them, whatever the number was before, and their offsets with them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.nodes import ORDERS, directory_of, leader_epoch, owner_of
from broker.errors import ConfigError
from broker.runtime.disk import SystemDisk
from broker.server.node_directories import arrange
from broker.storage.checkpoints import LOG_STARTS, RECOVERY_POINTS, read_offsets, write_offsets
from broker.storage.recovery.startup import CLEAN, mark_clean_stop
from tests.sim.catalogue import SimCatalogue, Tables

DISK = SystemDisk()


def fill(directory: Path, partitions: dict[tuple[str, int], int]) -> None:
    directory.mkdir()
    for topic, number in partitions:
        (directory / f"{topic}-{number}").mkdir()
        (directory / f"{topic}-{number}" / "records").write_text(f"of {topic} {number}")
    write_offsets(DISK, f"{directory}/{RECOVERY_POINTS}", {key: offset for key, offset in partitions.items() if offset})


def place(directory: Path, key: tuple[str, int], count: int) -> Path:
    return directory if count == 1 else Path(directory_of(str(directory), owner_of(*key, count)))


@given(
    partitions=st.dictionaries(
        st.tuples(st.sampled_from(["a", "b-1", "node", "nodes", "x.y"]), st.integers(0, 7)),
        st.integers(0, 99),
        max_size=20,
    ),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_each_number_of_nodes_finds_each_partition_and_its_offsets(
    tmp_path_factory: "object", partitions: dict[tuple[str, int], int], counts: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("data") / "here"  # type: ignore[attr-defined]
    fill(directory, partitions)
    for count in counts:
        arrange(DISK, str(directory), count)
        for key, offset in partitions.items():
            where = place(directory, key, count)
            assert f"of {key[0]} {key[1]}" == (where / f"{key[0]}-{key[1]}" / "records").read_text()
            assert (offset or None) == read_offsets(DISK, f"{where}/{RECOVERY_POINTS}").get(key)


def test_a_second_time_nothing_is_moved(tmp_path: Path) -> None:
    fill(tmp_path / "here", {("a", 0): 1, ("a", 1): 2})
    assert 2 == arrange(DISK, str(tmp_path / "here"), 2)
    assert 0 == arrange(DISK, str(tmp_path / "here"), 2)


def test_what_is_not_a_partition_stays(tmp_path: Path) -> None:
    fill(tmp_path / "here", {("a", 0): 1})
    (tmp_path / "here" / "catalogue.sqlite").write_text("rows")
    (tmp_path / "here" / "notes").mkdir()
    arrange(DISK, str(tmp_path / "here"), 3)
    assert {"catalogue.sqlite", "notes", "nodes"} <= {each.name for each in (tmp_path / "here").iterdir()}


def test_all_are_clean_only_if_all_were(tmp_path: Path) -> None:
    directory = tmp_path / "here"
    fill(directory, {("a", 0): 1, ("a", 1): 2})
    mark_clean_stop(DISK, str(directory))
    arrange(DISK, str(directory), 2)
    nodes = [Path(directory_of(str(directory), number)) for number in range(2)]
    assert [True, True, False] == [(each / CLEAN).exists() for each in (*nodes, directory)]
    (nodes[1] / CLEAN).unlink()
    arrange(DISK, str(directory), 1)
    assert [False, False, False] == [(each / CLEAN).exists() for each in (*nodes, directory)]


def test_lines_of_an_interrupted_move_do_not_count_for_a_partition_that_is_elsewhere(tmp_path: Path) -> None:
    directory = tmp_path / "here"
    fill(directory, {("a", 0): 5})
    other = Path(directory_of(str(directory), owner_of("a", 0, 2)))
    other.mkdir(parents=True)
    write_offsets(DISK, f"{other}/{LOG_STARTS}", {("a", 0): 99})
    arrange(DISK, str(directory), 2)
    assert {} == read_offsets(DISK, f"{other}/{LOG_STARTS}")


@given(st.lists(st.integers(1, 4), max_size=12))
def test_the_leader_epoch_rises_whenever_partitions_may_have_moved(counts: list[int]) -> None:
    catalogue = SimCatalogue(None, Tables())
    expected, before = 0, 1
    for count in counts:
        expected, before = expected + (count != before), count
        # Each node asks, and each again when it is started again.
        assert [expected] * (count + 1) == [leader_epoch(catalogue, count) for _ in range(count + 1)]


def test_the_number_does_not_change_while_a_node_has_orders() -> None:
    catalogue = SimCatalogue(None, Tables())
    assert 1 == leader_epoch(catalogue, 3)
    order = (ORDERS, "2\0number", b"what to do")
    catalogue.alter_documents([order])
    with pytest.raises(ConfigError, match="Start with --nodes 3 once more"):
        leader_epoch(catalogue, 2)
    assert 1 == leader_epoch(catalogue, 3)
    catalogue.alter_documents([(*order[:2], None)])
    assert 2 == leader_epoch(catalogue, 2)


def test_a_backup_that_was_pinned_by_a_node_goes_with_it(tmp_path: Path) -> None:
    here = tmp_path / "here"
    fill(here, {("a", 0): 1, ("a", 1): 2})
    arrange(DISK, str(here), 3)
    for place in range(3):
        (here / "nodes" / str(place) / ".backup" / "a-0").mkdir(parents=True)
    arrange(DISK, str(here), 2)
    assert {"0", "1"} == {path.parent.name for path in here.glob("nodes/*/.backup")}
    arrange(DISK, str(here), 1)
    assert [] == list(here.glob("**/.backup"))
