"""A new segment that cannot be begun: what was fsynced is there after every restart, whatever became of its files."""

import errno
import re
from pathlib import Path
from random import Random

import pytest

from broker.errors import StorageError
from broker.storage.log.log import Log
from tests.storage.helpers import NOW_MS, TOPIC, Storage, append, append_many, batch, read_records, values

SEEDS = 60
LARGE = 500  # bytes: two do not fit a segment
SMALL = 20


def begin(storage: Storage) -> Log:
    """A segment that has no room for a large batch any more, and for some small ones."""
    log = storage.create(segment_bytes=1000, index_interval_bytes=0)
    append(log, b"x" * LARGE)
    return log


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_failed_new_segment_leaves_nothing(storage: Storage, suffix: str, code: int) -> None:
    log = begin(storage)
    for operation in ("open", "stat"):
        storage.disk.fail[operation, f"{1:020d}{suffix}"] = code
    with pytest.raises(StorageError):
        append(log, b"y" * LARGE)
    assert storage.files(".log") == [f"{0:020d}.log"]
    append(log, b"small")
    log.durability.flush_to(log.log_end_offset)
    storage.disk.fail.clear()
    assert values(storage.crash().log()) == [b"x" * LARGE, b"small"]
    append(storage.log(), b"y" * LARGE)
    assert len(values(storage.restart().log())) == 3


@pytest.mark.parametrize("stop", ["stop", "kill"])
@pytest.mark.parametrize("recovery_point", [0, 1, 2, 4])
def test_leftover_empty_segment_hides_no_records(storage: Storage, stop: str, recovery_point: int) -> None:
    """Left by a broker that did not remove it, or by a power loss that took its removal back."""
    log = begin(storage)
    for number in range(1, 5):
        append(log, b"%d" % number)
        if number == recovery_point:
            storage.manager.checkpoint()
    expected = values(log)
    getattr(storage, stop)()
    (storage.path() / f"{1:020d}.log").touch()
    storage.open()
    assert values(storage.log()) == expected
    append(storage.log(), b"more")
    assert values(storage.crash().log()) == [*expected, b"more"]
    assert storage.files(".log") == [f"{0:020d}.log"]


def test_empty_segment_in_the_middle_hides_no_records(storage: Storage) -> None:
    log = begin(storage)
    append_many(log, 3)
    append(log, b"y" * LARGE)  # in a segment of its own
    expected = values(log)
    storage.stop()
    (storage.path() / f"{2:020d}.log").touch()
    storage.open()
    assert values(storage.log()) == expected
    assert storage.files(".log") == [f"{0:020d}.log", f"{4:020d}.log"]


@pytest.mark.parametrize("large_follows", [False, True])
def test_several_empty_segments_hide_no_records(storage: Storage, large_follows: bool) -> None:
    log = begin(storage)
    append_many(log, 4)
    if large_follows:
        append(log, b"y" * LARGE)  # in a segment of its own
    expected = values(log)
    storage.stop()
    for offset in (1, 3, 4):
        (storage.path() / f"{offset:020d}.log").touch()
    storage.open()
    assert values(storage.log()) == expected
    for offset in range(5):
        assert read_records(storage.log(), start=offset)[0].offset == offset
    assert storage.files(".log") == [f"{0:020d}.log", *([f"{5:020d}.log"] if large_follows else [])]


def test_empty_segment_begun_in_order_stays(storage: Storage) -> None:
    log = begin(storage)
    with log.lock:
        log.rolling.roll(0)
    assert storage.crash().files(".log") == [f"{0:020d}.log", f"{1:020d}.log"]
    assert storage.log().log_end_offset == 1


def test_torn_batch_before_empty_segment_is_cut(storage: Storage) -> None:
    log = begin(storage)
    storage.manager.checkpoint()
    append(log, b"torn")
    size = log.size_bytes()
    storage.kill()
    with open(storage.path() / f"{0:020d}.log", "r+b") as file:
        file.truncate(size - 3)
    (storage.path() / f"{1:020d}.log").touch()
    storage.open()
    assert values(storage.log()) == [b"x" * LARGE]
    append(storage.log(), b"y" * LARGE)
    assert len(values(storage.crash().log())) == 2


class Run:
    """Appends of all sizes while files cannot be opened or written now and then, deaths and starts in between. What ``flush_to``
    returned for must be there."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.storage = Storage(directory, max_open_files=3)
        self.storage.create(segment_bytes=1000, index_interval_bytes=100, retention_ms=-1)
        self.appended: dict[int, bytes] = {}
        self.durable = 0
        self.count = 0
        self.refused = 0

    def step(self) -> None:
        rng, log = self.rng, self.storage.log()
        if rng.random() < 0.4:
            self.storage.disk.before = self.fails if rng.random() < 0.7 else lambda what, path: None
        self.storage.disk.room = rng.randrange(3000) if rng.random() < 0.1 else None
        try:
            if rng.random() < 0.3:
                run = [self.new_batch() for _ in range(rng.randrange(1, 5))]
                bases, _ = log.append_run([records for _, records in run], now_ms=NOW_MS)
                self.appended.update(zip(bases, (value for value, _ in run), strict=False))
            elif rng.random() < 0.7:
                value, records = self.new_batch()
                info = log.append(records, now_ms=NOW_MS)
                self.appended[info.base_offset] = value
            elif rng.random() < 0.7:
                end = log.log_end_offset
                log.durability.flush_to(end)
                self.durable = max(self.durable, end)
            else:
                self.storage.housekeep()
        except StorageError:
            self.refused += 1

    def new_batch(self) -> tuple[bytes, memoryview]:
        """Its value, and the batch."""
        self.count += 1
        value = b"%d" % self.count + b"." * self.rng.choice([SMALL, SMALL, LARGE])
        return value, batch(value, producer=(self.count, 0, 0) if self.rng.random() < 0.1 else None)

    def fails(self, what: str, path: str) -> None:
        if self.rng.random() < 0.2 and re.search(r"\.(log|index|timeindex|snapshot)$", path):
            if what in ("open", "stat"):
                raise OSError(self.rng.choice([errno.EMFILE, errno.ENOSPC]), "for a test", path)
            if what == "write":
                raise OSError(errno.ENOSPC, "for a test", path)

    def start_again(self) -> None:
        stop = self.rng.choice([self.storage.stop, self.storage.kill])
        if self.rng.random() < 0.5:
            self.storage.disk.before, self.storage.disk.room = lambda what, path: None, None
        try:
            stop()
        except StorageError:  # a full disk takes no mark of a clean stop
            self.storage.catalogue.close()
        self.storage.disk.before, self.storage.disk.room = lambda what, path: None, None
        self.storage.open()
        self.check()

    def check(self) -> None:
        log = self.storage.log()
        assert log.offline is None, log.offline
        found = {record.offset: record.value for record in read_records(log)}
        # All that was appended: only processes die here, never the machine.
        assert found == self.appended
        assert log.log_end_offset == len(self.appended) >= self.durable


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_stored_survives_rolls_that_fail(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, seed)
    for _ in range(6):
        for _ in range(run.rng.randrange(1, 40)):
            run.step()
        if run.storage.manager.get(TOPIC, 0) is not None:
            run.start_again()
    run.storage.kill()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_failed_fsync_before_roll_survives_later_one(storage: Storage, code: int) -> None:
    # After a failed fsync the kernel takes the pages for clean, so the next one would succeed without having written them.
    log = begin(storage)
    storage.disk.room = 10
    with pytest.raises(StorageError):
        append(log, b"small")  # written in part and taken back
    storage.disk.room = None
    storage.disk.fail["sync", f"{0:020d}.log"] = code
    with pytest.raises(StorageError):
        append(log, b"y" * LARGE)
    storage.disk.fail.clear()
    answers: list[StorageError | None] = []
    storage.manager.flusher.wait_durable(log, 1, answers.append)
    storage.housekeep()
    assert log.durable_offset == 0
    assert isinstance(answers[0], StorageError)
    assert log.offline is not None
