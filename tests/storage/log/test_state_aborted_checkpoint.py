"""What was aborted stays aborted, also where its index is lost or damaged."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.storage.log.log import Log
from broker.storage.log.state import NAME
from broker.storage.upkeep import cleaner, kept_records
from tests.storage.helpers import NOW_MS, Storage, append, append_many, values
from tests.storage.log.test_transactions import Dies, aborted, again, committed, compacted, end, transact, write


def fill(log: Log) -> None:
    """Over many segments: committed and aborted transactions that overlap, one across segments, and plain records."""
    log.transactions.allow(9, 0)
    write(log, 9, b"long bad")
    for number in range(12):
        producer = 7 + number % 2
        transact(log, producer, b"bad" if number % 3 else b"good %d" % number)
        append(log, b"plain %d" % number)
        end(log, producer, commit=number % 3 == 0)
        if number == 7:
            write(log, 9, b"long bad too")
            end(log, 9, commit=False)


GOOD = sorted(
    itertools.chain.from_iterable(
        [b"plain %d" % number, *([] if number % 3 else [b"good %d" % number])] for number in range(12)
    )
)


def is_right(log: Log) -> bool:
    assert sorted(value or b"" for value in committed(log)) == GOOD
    return True


def contents(storage: Storage) -> dict[str, bytes]:
    return {name: (storage.path() / name).read_bytes() for name in storage.files(".txnindex")}


@pytest.fixture
def full(storage: Storage) -> Storage:
    """Filled and checkpointed."""
    log = storage.create(segment_bytes=400)
    fill(log)
    storage.manager.checkpoint()
    assert is_right(log)
    assert len(storage.files(".txnindex")) > 3
    return storage


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-34])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [remove, cut, empty, flip])
@pytest.mark.parametrize("stop", [True, False], ids=["stop", "kill"])
def test_lost_or_damaged_index_is_rebuilt(full: Storage, harm: Callable[[Path], None], stop: bool) -> None:
    before = contents(full)
    for name in before:  # also the active segment's
        if stop:
            full.stop()
        else:
            full.kill()
        harm(full.path() / name)
        full.open()
        assert contents(full) == before
        assert is_right(full.log())


def test_all_of_them_at_once_are_made_again(full: Storage) -> None:
    before = contents(full)
    full.kill()
    for name in before:
        remove(full.path() / name)
    full.open()
    assert contents(full) == before
    assert is_right(full.log())


def test_transactions_aborted_since_checkpoint_are_found(full: Storage) -> None:
    log = full.log()
    transact(log, 7, b"bad")
    end(log, 7, False)
    append_many(log, 20)
    transact(log, 7, b"bad")
    end(log, 7, False)
    before, offsets = contents(full), aborted(log)
    full.kill()
    for name in before:
        remove(full.path() / name)
    full.open()
    assert contents(full) == before
    assert aborted(full.log()) == offsets


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("lost", list(itertools.product([False, True], repeat=4)))
def test_unsynced_entries_are_rebuilt_from_the_log(
    storage: Storage, checkpointed: bool, lost: tuple[bool, ...]
) -> None:
    """A power failure keeps any of them; where one is missing before another, the file has zeros: the records of producer 0 from
    offset 0 to 0."""
    log = storage.create()
    if checkpointed:
        for _ in range(3):
            transact(log, 7, b"bad")
            end(log, 7, commit=False)
        storage.manager.checkpoint()
    durable = (storage.path() / name).stat().st_size if (name := "".join(storage.files(".txnindex"))) else 0
    for number in range(len(lost)):
        transact(log, 0, b"good %d" % number)
        transact(log, 7, b"bad")
        end(log, 7, commit=False)
        end(log, 0, commit=True)
    before, good = contents(storage), committed(log)
    assert len(good) == len(lost)
    storage.kill()
    (name,) = before
    data = bytearray(before[name])
    for number, is_lost in enumerate(lost):
        if is_lost:
            at = durable + number * 34
            data[at : at + 34] = bytes(34)
    (storage.path() / name).write_bytes(data)
    storage.open()
    assert committed(storage.log()) == good
    assert contents(storage) == before


def test_torn_tail_after_the_checkpoint_is_cut(full: Storage) -> None:
    log = full.log()
    append(log, b"torn")
    end_offset = log.log_end_offset
    full.kill()
    for name in contents(full):
        remove(full.path() / name)
    last = full.path() / full.files(".log")[-1]
    last.write_bytes(last.read_bytes()[:-3])
    full.open()
    assert full.log().log_end_offset == end_offset - 1
    assert is_right(full.log())


def test_damage_before_checkpoint_takes_offline_instead_of_serving(full: Storage) -> None:
    full.kill()
    remove(full.path() / list(contents(full))[-1])
    first = full.path() / full.files(".log")[0]
    data = bytearray(first.read_bytes())
    data[8:12] = b"\0\0\0\0"  # the length of the first batch
    first.write_bytes(data)
    full.open()
    assert full.log().offline is not None


@pytest.mark.parametrize("text", [None, b"", b"0\n1\nx y z\n", b"0\n7\n0 1 2\n", b"\xff"])
def test_indexes_are_trusted_without_checkpoint(full: Storage, text: bytes | None) -> None:
    before = contents(full)
    full.kill()
    checkpoint = full.path() / NAME
    if text is None:
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(text)
    full.open()
    assert contents(full) == before
    assert is_right(full.log())
    append(full.log(), b"more")
    full.manager.checkpoint()
    full.kill()
    remove(full.path() / next(iter(before)))
    full.open()
    assert contents(full) == before, "there is a checkpoint again"


def test_log_without_aborted_transactions_has_no_checkpoint(storage: Storage) -> None:
    log = storage.create()
    transact(log, 7, b"a")
    end(log, 7, True)
    storage.restart()
    assert NAME not in storage.files("")


def test_crash_during_rebuild_does_no_harm(full: Storage) -> None:
    before = contents(full)
    for die_at in itertools.count(1):
        full.kill()
        for name in before:
            (full.path() / name).unlink(missing_ok=True)
        operations = itertools.count(1)

        def die(what: str, path: str, operations: "itertools.count[int]" = operations, die_at: int = die_at) -> None:
            if next(operations) == die_at:
                raise Dies

        full.disk.before = die
        try:
            full.open()
            died = False
            full.kill()
        except Dies:
            died = True
            full.kill()
        full.disk.before = lambda what, path: None
        full.open()
        assert contents(full) == before
        assert is_right(full.log())
        if not died:
            assert die_at > 20
            return


def test_deleted_segments_are_not_missed(full: Storage) -> None:
    log = full.log()
    log.trimming.delete_records(20)
    kept = contents(full)
    assert len(kept) > 1
    full.crash()
    assert contents(full) == kept
    append_many(full.log(), 1)
    full.crash()
    assert contents(full) == kept


def test_scrub_finds_damage_and_next_start_repairs_it(full: Storage) -> None:
    before = contents(full)
    full.housekeep()
    assert full.log().offline is None
    flip(full.path() / list(before)[1])
    full.clock.sleep_ms(4_000_000)
    full.housekeep()
    assert "txnindex is damaged" in str(full.log().offline)
    full.crash()
    assert contents(full) == before
    assert is_right(full.log())


@pytest.mark.parametrize("harm", [remove, flip])
def test_compacted_indexes_are_rebuilt(storage: Storage, harm: Callable[[Path], None]) -> None:
    """Records of an aborted transaction stay where the keys did not all fit into the memory."""
    log = storage.create(cleanup_policy="compact", segment_bytes=1000, min_cleanable_dirty_ratio=0)
    for number in range(4):
        append(log, b"old", keys=[b"k%d" % (number // 2)])
    transact(log, 7, b"bad", keys=[b"a"])
    end(log, 7, False)
    for number in range(12):
        append(log, b"new", keys=[b"x%d" % number])
    storage.manager.checkpoint()
    plan = cleaner.cleanable(log, NOW_MS)
    assert plan is not None
    list(cleaner.clean(plan, 2 * kept_records.KEY_OVERHEAD_BYTES, NOW_MS))
    assert values(log).count(b"old") == 3
    storage.kill()
    (name,) = contents(storage)
    harm(storage.path() / name)
    storage.open()
    assert aborted(storage.log()) == [(7, 4)]
    assert b"bad" in values(storage.log())
    assert b"bad" not in committed(storage.log())


def test_compaction_leaves_nothing_to_be_made_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = compacted(storage)
    for number in range(12):
        transact(log, 7, b"%d" % number, keys=[b"k%d" % (number % 2)])
        end(log, 7, number % 2 == 0)
    again(storage)
    before = contents(storage)
    again(storage)
    assert len(contents(storage)) < len(before), "entries go whose records the first compaction has taken away"

    def never(*args: object) -> None:
        raise AssertionError("the log was read")

    monkeypatch.setattr("broker.storage.recovery.recovery.aborted_transactions", never)
    storage.crash()
    storage.clock.sleep_ms(4_000_000)
    storage.housekeep()
    assert storage.log().offline is None


def test_cut_log_is_not_held_to_old_checkpoint(full: Storage) -> None:
    """As an operator does who accepts that records are lost."""
    full.kill()
    (Path(full.directory) / "recovery-point-offset-checkpoint").unlink()
    for name in full.files(".log")[4:]:
        (full.path() / name).unlink()
    last = full.path() / full.files(".log")[-1]
    last.write_bytes(last.read_bytes()[:-3])
    full.open()
    log = full.log()
    end_offset = log.log_end_offset
    append_many(log, 30)
    for _ in range(2):
        full.clock.sleep_ms(4_000_000)
        full.manager.housekeeper.scrub_some()
        assert log.offline is None
        full.housekeep()
    assert log.log_end_offset == end_offset + 30
    before = contents(full)
    full.restart()
    assert (full.log().offline, contents(full)) == (None, before)


def test_failed_checkpoint_is_written_later(full: Storage) -> None:
    log = full.log()
    transact(log, 7, b"bad")
    end(log, 7, False)
    full.disk.fail["write", NAME] = 28
    full.manager.checkpoint()
    full.clock.sleep_ms(4_000_000)
    full.housekeep()
    assert log.offline is None
    full.disk.fail.clear()
    append(log, b"more")
    full.manager.checkpoint()
    before = contents(full)
    full.kill()
    for name in before:
        remove(full.path() / name)
    full.open()
    assert contents(full) == before
