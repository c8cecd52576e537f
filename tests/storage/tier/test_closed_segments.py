"""Closed segments of a stopped broker: which can go to the object store as they are. The uploader is the judge."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from broker.errors import StorageError
from broker.storage import partition_dir
from broker.storage.segments.segment import CLEANED, DELETED
from broker.storage.tier import keys
from broker.storage.tier.closed_segments import ClosedSegment, Partition, closed_segments, files_to_ship
from tests.storage.helpers import Storage, append_many
from tests.storage.log.test_transactions import end, transact
from tests.storage.tier.helpers import TieredStorage


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Storage]:
    (tmp_path / "plain").mkdir()
    storage = Storage(tmp_path / "plain")
    storage.create(segment_bytes=1000)
    yield storage
    storage.kill()


def partition(
    storage: Storage, recovery_point: int | None = None, elsewhere: frozenset[int] = frozenset()
) -> Partition:
    """As after a clean stop, unless a recovery point is given."""
    log = storage.log()
    return Partition(
        directory=log.dir,
        names=partition_dir.read_contents(storage.disk, log.dir).own,
        recovery_point=log.log_end_offset if recovery_point is None else recovery_point,
        dense_from=0,
        newest_epoch=0,
        elsewhere=elsewhere,
    )


def test_a_large_active_segment_is_taken_for_closed_after_a_clean_stop(plain: Storage) -> None:
    log = plain.log()
    append_many(log, 65)
    plain.restart()
    size, end_offset = plain.log().view.segments[-1].size, plain.log().log_end_offset
    assert size
    for roll_from, point, rolled in [(size, None, True), (size + 1, None, False), (size, end_offset - 1, False)]:
        given = attrs.evolve(partition(plain, point), roll_from=roll_from)
        last = closed_segments(plain.disk, given, lambda _: None)[-1]
        assert rolled == ((last.base, last.end) == (plain.log().view.bases[-1], end_offset))
    transact(plain.log(), 7, b"open")
    plain.restart()
    given = attrs.evolve(partition(plain), roll_from=1)
    assert plain.log().view.bases[-1] not in [each.base for each in closed_segments(plain.disk, given, lambda _: None)]


def found(storage: Storage, *args: object) -> list[ClosedSegment]:
    return closed_segments(storage.disk, partition(storage, *args), lambda _: None)  # type: ignore[arg-type]


def test_they_are_those_that_the_uploader_takes(storage: TieredStorage) -> None:
    log = storage.create(local_retention_bytes=-1)
    append_many(log, 60)
    for number in range(6):
        transact(log, number, b"a" * 300)
        end(log, number, commit=number % 2 == 0)
    storage.manager.checkpoint()
    before = found(storage, log.saved_point)
    storage.upload()
    uploaded = [keys.parse(key) for key in storage.store.names()]
    expected = [(key.base, key.end, key.largest_timestamp, key.timestamp_offset) for key in uploaded if key]
    assert expected == [(each.base, each.end, each.largest_timestamp, each.timestamp_offset) for each in before]
    names = {each.names[0]: each.names for each in before}
    rows = sorted(storage.rows())
    assert rows == sorted(f"t-0/{name}" for of_one in names.values() for name in of_one)
    assert any(name.endswith(".txnindex") for name in rows)


def test_those_beyond_the_recovery_point_are_not(plain: Storage) -> None:
    append_many(plain.log(), 60)
    plain.stop()
    plain.open()
    bases = plain.log().view.bases
    assert list(itertools.pairwise(bases)) == [(each.base, each.end) for each in found(plain)]
    assert [(0, bases[1])] == [(each.base, each.end) for each in found(plain, bases[2] - 1)]
    assert [] == found(plain, 0)


def test_those_with_an_open_transaction_or_after_it_are_not(plain: Storage) -> None:
    log = plain.log()
    append_many(log, 30)
    opened_at = transact(log, 7, b"open")
    transact(log, 8, b"ended")
    end(log, 8, commit=False)
    append_many(log, 30)
    plain.restart()
    ends = [each.end for each in found(plain)]
    assert ends
    assert max(ends) <= opened_at
    end(plain.log(), 7, commit=True)
    plain.restart()
    assert max(each.end for each in found(plain)) > opened_at


def test_one_without_sound_indexes_is_left_to_recovery(plain: Storage) -> None:
    log = plain.log()
    append_many(log, 60)
    plain.stop()
    first, second, third = (base for base in log.view.bases[:3])
    plain.path().joinpath(f"{first:020d}.index").unlink()
    plain.path().joinpath(f"{second:020d}.timeindex").write_bytes(b"\1" * 12)
    expected = [base for base in log.view.bases[:-1] if base not in (first, second)]
    names = partition_dir.read_contents(plain.disk, log.dir).own
    given = Partition(directory=log.dir, names=names, recovery_point=log.log_end_offset, dense_from=0, newest_epoch=0)
    assert expected == [each.base for each in closed_segments(plain.disk, given, lambda _: None)]
    assert third in expected
    plain.open()


def test_an_index_of_aborted_transactions_without_checkpoint_is_left_to_recovery(plain: Storage) -> None:
    log = plain.log()
    transact(log, 7, b"a" * 500)
    end(log, 7, commit=False)
    append_many(log, 60)
    plain.restart()
    assert 0 == found(plain)[0].base
    plain.path().joinpath("txnindex-checkpoint").unlink()
    assert 0 < found(plain)[0].base


def test_damage_is_an_error(plain: Storage) -> None:
    append_many(plain.log(), 60)
    plain.restart()
    path = plain.path() / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match="is damaged at position 89"):
        found(plain)
    assert [] == found(plain, 0), "recovery decides about what is not known to be durable"


def test_those_in_the_store_and_unfinished_compactions_are_left_out(plain: Storage) -> None:
    append_many(plain.log(), 60)
    plain.restart()
    everything = found(plain)
    assert everything[1:] == found(plain, None, frozenset([0]))
    plain.path().joinpath(f"{0:020d}.log.swap").touch()
    assert [] == found(plain)
    plain.path().joinpath(f"{0:020d}.log.swap").unlink()


def test_bytes_that_were_read_are_told(plain: Storage) -> None:
    append_many(plain.log(), 60)
    plain.restart()
    told: list[int] = []
    closed_segments(plain.disk, partition(plain), told.append)
    assert sum(segment.size for segment in plain.log().view.segments) == sum(told)


def test_other_files_are_shipped_but_for_indexes_and_remains() -> None:
    names = frozenset(
        ["partition.metadata", "a.log", "a.index", "a.timeindex", "a.txnindex", "b.log", "b.index", f"c.log{DELETED}"]
    )
    closed = ClosedSegment(0, 1, -1, 0, ("a.log", "a.index", "a.timeindex", "a.txnindex"))
    assert ["b.log", "partition.metadata"] == files_to_ship(names, [closed], (DELETED, CLEANED))
