"""Damage on purpose: what is found, what mending keeps, and that the broker serves it afterwards."""

import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.runtime.disk import SystemDisk
from broker.runtime.open_files import OpenFiles
from broker.storage.checkpoints import CLEANER_OFFSETS
from broker.storage.repair_partition import Damage, Diagnosis, Gap, Mending, diagnose, read_state
from tests.storage.helpers import TOPIC, Storage, append, append_many, offsets, read_records

Damaging = Callable[[Path], None]


def look(directory: str, topic: str = TOPIC) -> Diagnosis:
    files = OpenFiles(SystemDisk(), 10)
    found = diagnose(files, read_state(SystemDisk(), directory), topic, 0)
    files.close_all()
    return found


def mend(directory: str) -> list[Diagnosis]:
    files = OpenFiles(SystemDisk(), 10)
    state = read_state(SystemDisk(), directory)
    found = [diagnose(files, state, *key) for key in state.partitions]
    Mending(files, state, f"{directory}/aside").mend([each for each in found if each.has_lost or each.indexes])
    files.close_all()
    return found


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def batches(path: Path) -> list[tuple[int, int, int]]:
    """Offset, position and end of each batch, of a record each."""
    content, position, found = path.read_bytes(), 0, []
    while position < len(content):
        offset, length = struct.unpack_from(">qi", content, position)
        found.append((offset, position, position + 12 + length))
        position += 12 + length
    return found


def sound(path: str) -> dict[str, tuple[bytes, int]]:
    return {
        str(each): (each.read_bytes(), each.stat().st_mtime_ns)
        for each in sorted(Path(path).rglob("*"))
        if each.is_file()
    }


@pytest.fixture
def stopped(storage: Storage) -> Storage:
    """Two logs of 30 batches of a record each, in segments of 5, checkpointed and stopped in order."""
    for topic in (TOPIC, "other"):
        # Small index intervals cannot be had; the indexes of such segments have one entry or none.
        append_many(storage.create(topic, segment_bytes=900), 30, 100)
    storage.housekeep()
    storage.stop()
    return storage


def served(storage: Storage, topic: str = TOPIC) -> list[int]:
    log = storage.log(topic)
    assert log.offline is None, log.offline
    return offsets(read_records(log, start=log.log_start_offset))


def test_sound_logs_are_neither_reported_nor_changed(stopped: Storage) -> None:
    before = sound(stopped.directory)
    assert not any(each.has_lost or each.indexes or each.torn for each in mend(stopped.directory))
    assert before == sound(stopped.directory)
    stopped.open()


def test_flipped_bit_in_middle_costs_only_its_batch(stopped: Storage) -> None:
    segment = stopped.path() / stopped.files(".log")[1]
    base = int(segment.name[:20])
    _, position, end = batches(segment)[2]
    flip(segment, position + 80)
    damaged = segment.read_bytes()[position:end]
    other = sound(f"{stopped.directory}/other-0")
    (found,) = [each for each in mend(stopped.directory) if each.has_lost]
    assert [Damage(base, position, end, base + 2, base + 3)] == found.damages
    assert [(base + 2, base + 3)] == found.lost
    kept = list(Path(stopped.directory, "aside").rglob("*.damaged"))
    assert [damaged] == [each.read_bytes() for each in kept]
    assert other == sound(f"{stopped.directory}/other-0"), "a sound log was touched"
    assert not look(stopped.directory).has_lost
    stopped.open()
    assert [n for n in range(30) if n != base + 2] == served(stopped)
    assert list(range(30)) == served(stopped, "other")
    append(stopped.log(), b"goes on")
    stopped.crash()
    assert [*(n for n in range(30) if n != base + 2), 30] == served(stopped)


def test_cut_segment_costs_only_its_lost_end(stopped: Storage) -> None:
    segment = stopped.path() / stopped.files(".log")[1]
    base, following = (int(name[:20]) for name in stopped.files(".log")[1:3])
    os.truncate(segment, batches(segment)[2][1] + 30)
    (found,) = [each for each in mend(stopped.directory) if each.has_lost]
    assert [(base + 2, following)] == found.lost
    stopped.open()
    assert [n for n in range(30) if not base + 2 <= n < following] == served(stopped)


def test_missing_segment_is_reported_and_its_loss_accepted(stopped: Storage) -> None:
    base, following = (int(name[:20]) for name in stopped.files(".log")[2:4])
    (stopped.path() / f"{base:020d}.log").unlink()
    stopped.open()
    assert stopped.log().offline is not None
    stopped.stop()
    (found,) = [each for each in mend(stopped.directory) if each.has_lost]
    assert [Gap(base, following)] == found.gaps
    stopped.open()
    assert [n for n in range(30) if not base <= n < following] == served(stopped)
    stopped.crash()
    assert [n for n in range(30) if not base <= n < following] == served(stopped)


def test_a_missing_first_segment_moves_the_start(stopped: Storage) -> None:
    following = int(stopped.files(".log")[1][:20])
    (stopped.path() / f"{0:020d}.log").unlink()
    (found,) = [each for each in mend(stopped.directory) if each.has_lost]
    assert Gap(0, following) == found.begins_late
    stopped.open()
    assert list(range(following, 30)) == served(stopped)


def test_missing_last_segment_is_reported_as_early_end(stopped: Storage) -> None:
    last = int(stopped.files(".log")[-1][:20])
    (stopped.path() / f"{last:020d}.log").unlink()
    stopped.open()
    assert stopped.log().offline is not None
    stopped.stop()
    (found,) = [each for each in mend(stopped.directory) if each.has_lost]
    assert Gap(last, 30) == found.ends_early
    stopped.open()
    assert list(range(last)) == served(stopped)


def test_damaged_last_segment_is_cut_at_the_damage(stopped: Storage) -> None:
    segment = stopped.path() / stopped.files(".log")[-1]
    base = int(segment.name[:20])
    flip(segment, segment.stat().st_size - 3)
    (found,) = [each for each in mend(stopped.directory) if each.has_lost]
    assert [(29, None)] == [each for each in found.lost if each[1] is None]
    stopped.open()
    assert list(range(29)) == served(stopped)
    assert base <= 29


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_files_mended_by_root_belong_to_directory_owner(stopped: Storage) -> None:
    owner = 10001, 10002
    for each in (Path(stopped.directory), *Path(stopped.directory).rglob("*")):
        os.chown(each, *owner)
    segment = stopped.path() / stopped.files(".log")[-1]
    flip(segment, segment.stat().st_size - 3)
    mend(stopped.directory)
    assert list(Path(stopped.directory, "aside").rglob("*.damaged"))
    for each in Path(stopped.directory).rglob("*"):
        assert owner == (each.stat().st_uid, each.stat().st_gid), each


def test_segment_without_good_batch_is_removed_whole(stopped: Storage) -> None:
    name = stopped.files(".log")[2]
    base, following = int(name[:20]), int(stopped.files(".log")[3][:20])
    segment = stopped.path() / name
    content = segment.read_bytes()
    segment.write_bytes(b"\xa5" * len(content))
    (found,) = [each for each in mend(stopped.directory) if each.has_lost]
    assert [(base, following)] == found.lost
    assert [b"\xa5" * len(content)] == [
        each.read_bytes() for each in Path(stopped.directory, "aside").rglob("*.damaged")
    ]
    stopped.open()
    assert [n for n in range(30) if not base <= n < following] == served(stopped)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_index_is_rebuilt_and_nothing_is_lost(stopped: Storage, suffix: str, how: str) -> None:
    path = stopped.path() / f"{0:020d}{suffix}"
    before = path.read_bytes() if path.exists() else b""
    if not before and how == "damaged":
        pytest.skip("an index of so small a segment has no entry")
    path.unlink() if how == "missing" else path.write_bytes(b"\x7f" * len(before))
    (found,) = [each for each in mend(stopped.directory) if each.indexes]
    assert ([0], False) == (found.indexes, found.has_lost)
    assert before == path.read_bytes()
    stopped.open()
    assert list(range(30)) == served(stopped)


def test_torn_end_after_crash_is_left_to_broker(storage: Storage) -> None:
    append_many(storage.create(), 10, 100)
    storage.kill()
    segment = storage.path() / storage.files(".log")[-1]
    os.truncate(segment, segment.stat().st_size - 7)
    (found,) = mend(storage.directory)
    assert not found.has_lost
    assert [9] == [each.first for each in found.torn]
    storage.open()
    assert list(range(9)) == served(storage)


def test_interrupted_attempt_takes_no_more_than_first(stopped: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = stopped.path() / stopped.files(".log")[1]
    flip(segment, 80)
    first = look(stopped.directory).lost
    for name in ("rename", "sync_dir"):
        with monkeypatch.context() as patch:
            patch.setattr(SystemDisk, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                mend(stopped.directory)
        assert first == look(stopped.directory).lost, name
    mend(stopped.directory)
    assert [] == look(stopped.directory).lost
    stopped.open()
    base = int(segment.name[:20])
    assert [n for n in range(30) if n != base] == served(stopped)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_sound_logs_stay_online_without_reliable_gap_list(storage: Storage, how: str) -> None:
    compacted = {
        "cleanup_policy": "compact",
        "segment_bytes": 400,
        "min_cleanable_dirty_ratio": 0,
        "file_delete_delay_ms": 0,
    }
    append_many(storage.create(segment_bytes=900), 30, 100)
    log = storage.create("other", **compacted)
    for _ in range(40):
        append(log, b"x" * 50, keys=[b"same"])
    storage.housekeep()
    storage.clock.sleep_ms(60_000)
    storage.housekeep()
    left = served(storage, "other")
    assert left != list(range(40)), "nothing was compacted"
    storage.stop()
    checkpoint = Path(storage.directory, CLEANER_OFFSETS)
    checkpoint.unlink() if how == "missing" else checkpoint.write_text("?")
    flip(storage.path() / storage.files(".log")[1], 80)
    assert [TOPIC] == [each.topic for each in mend(storage.directory) if each.has_lost]
    storage.open()
    assert left == served(storage, "other")
    assert 29 == len(served(storage))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = Storage(tmp_path_factory.mktemp("original"))
    append_many(storage.create(segment_bytes=900), 30, 100)
    storage.housekeep()
    storage.stop()
    return Path(storage.directory)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 850)), min_size=1, max_size=6))
@example([(2, 4), (2, 180)])  # a base offset, which no checksum covers, beside other damage
def test_broker_serves_every_whole_batch_after_mending(original: Path, flips: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as parent:
        directory = f"{parent}/data"
        shutil.copytree(original, directory)
        logs = sorted(Path(directory, f"{TOPIC}-0").glob("*.log"))
        whole = [batches(log) for log in logs]
        hit = set()
        for number, position in flips:
            flip(logs[number], position)
            hit |= {offset for offset, begin, end in whole[number] if begin <= position < end}
        mend(directory)
        storage = Storage(directory)
        left = served(storage)
        assert sorted(left) == left
        assert set(range(30)) - hit <= set(left)
        storage.stop()
