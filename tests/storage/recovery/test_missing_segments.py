"""Closed segments whose files are gone: noticed at the start, and said which."""

import errno
import itertools
from pathlib import Path

import pytest

from broker.storage.log.log import Log
from tests.storage.helpers import Storage, append, append_many, offsets, read_records, values


def segments(storage: Storage) -> list[Path]:
    return sorted(storage.path().glob("*.log"))


def fill(storage: Storage, **configs: object) -> list[int]:
    """150 records in some segments; where each begins."""
    append_many(storage.create(segment_bytes=2000, index_interval_bytes=300, **configs), 150)
    assert len(segments(storage)) >= 6
    return [int(path.stem) for path in segments(storage)]


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("with_indexes", [True, False])
def test_a_missing_segment_takes_the_partition_offline(
    storage: Storage, how: str, number: int, with_indexes: bool
) -> None:
    bases = fill(storage)
    storage.manager.checkpoint()
    getattr(storage, how)()
    gone = segments(storage)[number]
    before = {path: path.read_bytes() for path in storage.path().iterdir()}
    taken = [path for path in before if path.stem == gone.stem and (with_indexes or path == gone)]
    for path in taken:
        path.unlink()
    for _ in range(2):
        storage.open()
        said = str(storage.log().offline)
        assert f"no records from offset {bases[number]} to {bases[number + 1] - 1}" in said
        assert gone.name in said
        storage.kill()
    for path in taken:
        path.write_bytes(before[path])
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(150))


@pytest.mark.parametrize("number", [1, 4])
def test_missing_segment_is_reported_before_anything_is_cut(storage: Storage, number: int) -> None:
    bases = fill(storage)
    storage.manager.checkpoint()
    storage.stop()
    # The point is within the missing segment.
    checkpoint = Path(storage.directory) / "recovery-point-offset-checkpoint"
    checkpoint.write_text(f"0\n1\nt 0 {bases[number] + 1}\n")
    (Path(storage.directory) / ".kafka_cleanshutdown").unlink()
    segments(storage)[number].unlink()
    left = segments(storage)
    storage.open()
    assert f"no records from offset {bases[number]}" in str(storage.log().offline)
    assert segments(storage) == left


@pytest.mark.parametrize("number", [0, 2])
def test_the_loss_is_accepted_as_the_sentence_says(storage: Storage, number: int) -> None:
    bases = fill(storage)
    storage.stop()
    segments(storage)[number].unlink()
    storage.open()
    said = str(storage.log().offline)
    storage.stop()
    name, line = (
        ("log-start-offset-checkpoint", f"t 0 {bases[1]}") if number == 0 else ("cleaner-offset-checkpoint", "t 0 0")
    )
    assert name in said and f"'{line}'" in said
    (Path(storage.directory) / name).write_text(f"0\n1\n{line}\n")
    storage.open()
    expected = [o for o in range(150) if not bases[number] <= o < bases[number + 1]]
    assert offsets(read_records(storage.log())) == expected
    append(storage.log(), b"x")
    assert offsets(read_records(storage.restart().log())) == [*expected, 150]


def test_an_empty_active_segment_may_be_missing(storage: Storage) -> None:
    log = storage.create(segment_bytes=2000)
    append_many(log, 50)
    with log.lock:
        log.rolling.roll(0)
    storage.stop()
    segments(storage)[-1].unlink()
    storage.open()
    assert offsets(read_records(storage.log())) == list(range(50))
    append(storage.log(), b"x")
    assert storage.restart().log().log_end_offset == 51


def compacted_log(storage: Storage) -> Log:
    """Of several segments with gaps between them."""
    log = storage.create(
        segment_bytes=600, cleanup_policy="compact", min_cleanable_dirty_ratio=0, file_delete_delay_ms=0
    )
    for number in range(120):
        append(log, b"%d" % number, keys=[b"%d" % (number % 3 if number % 40 else number)])
    for _ in range(3):
        storage.manager.checkpoint()
        storage.housekeep()
    return log


def test_gaps_of_compaction_are_no_missing_segments(storage: Storage) -> None:
    log = compacted_log(storage)
    found = [(r.offset, r.value) for r in read_records(log)]
    assert any(after - before > 1 for (before, _), (after, _) in itertools.pairwise(found))
    for how in ("restart", "crash", "restart"):
        getattr(storage, how)()
        assert storage.log().offline is None
        assert [(r.offset, r.value) for r in read_records(storage.log())] == found


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_records_deleted_by_retention_are_not_reported_missing(storage: Storage, how: str) -> None:
    bases = fill(storage, file_delete_delay_ms=0)
    storage.log().trimming.delete_records(bases[2] + 1)
    getattr(storage, how)()
    assert offsets(read_records(storage.log())) == list(range(bases[2] + 1, 150))
    storage.manager.alter_topic_configs("t", {"retention.bytes": "1"})
    storage.housekeep()
    assert len(segments(storage)) <= 2
    start = storage.log().log_start_offset
    getattr(storage, how)()
    assert (storage.log().offline, storage.log().log_start_offset) == (None, start)


def test_files_are_removed_after_new_log_start_saved(storage: Storage) -> None:
    fill(storage, file_delete_delay_ms=0, retention_bytes=1)
    storage.disk.fail["rename", "log-start-offset-checkpoint"] = errno.EIO
    there = segments(storage)
    for _ in range(2):
        storage.housekeep()
        assert segments(storage) == there
    storage.crash()
    assert storage.log().offline is None
    storage.disk.fail.clear()
    storage.housekeep()
    assert len(segments(storage)) <= 2
    storage.crash()
    assert storage.log().offline is None


def test_retention_makes_room_on_a_full_disk(storage: Storage) -> None:
    fill(storage, file_delete_delay_ms=0)
    storage.restart()
    storage.disk.room = 0
    storage.manager.alter_topic_configs("t", {"retention.bytes": "1"})
    storage.housekeep()
    storage.disk.room = None
    assert len(segments(storage)) <= 2
    start = storage.log().log_start_offset
    assert start > 0
    storage.crash()
    assert (storage.log().offline, storage.log().log_start_offset) == (None, start)


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_a_checkpoint_that_is_lost_takes_nothing_offline(storage: Storage, name: str) -> None:
    log = storage.create(segment_bytes=600, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    for number in range(60):
        append(log, b"%d" % number, keys=[b"%d" % (number % 3)])
    storage.manager.checkpoint()
    storage.housekeep()
    append_many(storage.create("u", segment_bytes=300), 20)
    storage.log("u").trimming.delete_records(10)
    expected = values(log), values(storage.log("u"))
    for _ in range(2):
        storage.stop()
        (Path(storage.directory) / name).unlink()
        storage.open()
        assert (storage.log().offline, storage.log("u").offline) == (None, None)
        assert values(storage.log()) == expected[0]
        assert values(storage.log("u"))[-10:] == expected[1][-10:]
        storage.crash()


def compacted(storage: Storage) -> list[tuple[int, bytes | None]]:
    """A topic of several segments with gaps between them; its records."""
    log = compacted_log(storage)
    found = offsets_and_values(storage)
    assert found[1][0] - found[0][0] > 1 and len(log.view.bases) > 2
    return found


def offsets_and_values(storage: Storage) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in read_records(storage.log())]


@pytest.mark.parametrize("text", [None, "0\n7\nx", "0\n0\n"])
def test_compaction_gaps_without_recovery_point_cut_nothing(storage: Storage, text: str | None) -> None:
    expected = compacted(storage)
    storage.stop()
    checkpoint = Path(storage.directory) / "recovery-point-offset-checkpoint"
    checkpoint.unlink()
    if text is not None:
        checkpoint.write_text(text)
    storage.open()
    for how in ("crash", "crash", "restart"):
        assert (storage.log().offline, offsets_and_values(storage)) == (None, expected)
        getattr(storage, how)()


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    "at", ["log-start-offset-checkpoint", "cleaner-offset-checkpoint", "recovery-point-offset-checkpoint", None]
)
def test_start_that_adopts_topics_may_be_interrupted(storage: Storage, at: str | None) -> None:
    """The checkpoints are Kafka's then: no line for a log that begins with its first segment, and recovery points that
    compaction does not stop at."""
    expected = compacted(storage)
    others = storage.create("u", segment_bytes=600, file_delete_delay_ms=0)
    append_many(others, 100)
    others.trimming.delete_records(others.view.bases[2])
    others.trimming.drop_old_segments()
    of_others = values(others)
    storage.stop()
    root = Path(storage.directory)
    for path in root.glob("catalogue.sqlite*"):
        path.unlink()
    (root / "log-start-offset-checkpoint").write_text("0\n0\n")
    (root / "recovery-point-offset-checkpoint").write_text(f"0\n2\nt 0 30\nu 0 {others.view.bases[3]}\n")
    (root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 110\n")
    (root / ".kafka_cleanshutdown").unlink()

    def kill(what: str, path: str) -> None:
        if what == "rename" and at is not None and at in path:
            raise Killed

    storage.disk.before = kill
    try:
        storage.open()
        assert at is None
        storage.kill()
    except Killed:
        pass
    storage.disk.before = lambda what, path: None
    storage.open()
    for how in ("crash", "crash", "restart"):
        assert (storage.log().offline, offsets_and_values(storage)) == (None, expected)
        assert (storage.log("u").offline, values(storage.log("u"))) == (None, of_others)
        getattr(storage, how)()


def test_offline_adopted_topic_is_not_settled(storage: Storage) -> None:
    expected = compacted(storage)
    storage.stop()
    root = Path(storage.directory)
    for path in [*root.glob("catalogue.sqlite*"), *root.glob("*checkpoint")]:
        path.unlink()
    storage.disk.fail["stat", "t-0/"] = errno.EIO
    for _ in range(2):
        storage.open()
        assert storage.log().offline is not None
        storage.stop()
    storage.disk.fail.clear()
    storage.open()
    for how in ("crash", "restart"):
        assert (storage.log().offline, offsets_and_values(storage)) == (None, expected)
        getattr(storage, how)()


def test_missing_records_of_adopted_topic_are_unknown(storage: Storage) -> None:
    fill(storage)
    storage.log().trimming.delete_records(20)
    storage.stop()
    for path in Path(storage.directory).glob("*checkpoint"):
        path.unlink()
    for path in Path(storage.directory).glob("catalogue.sqlite*"):
        path.unlink()
    for how in ("crash", "restart", "crash"):
        if storage.manager._opened:
            getattr(storage, how)()
        else:
            storage.open()
        assert storage.log().offline is None
        assert storage.log().log_end_offset == 150
