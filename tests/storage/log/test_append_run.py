"""``append_run`` stores what ``append`` would, or leaves it to ``append``."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import Refusal
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.storage.helpers import NOW_MS, Storage, offsets, read_bytes, records_in


@attrs.frozen
class Batch:
    values: int = 1
    producer: tuple[int, int, int] | None = None
    codec: int = 0
    late_ms: int = 0
    broken: bool = False
    transactional: bool = False

    def build(self) -> memoryview:
        producer_id, epoch, sequence = self.producer or (-1, -1, -1)
        rows: list[tuple[None, bytes, tuple[()], int]] = [(None, b"value", (), NOW_MS + self.late_ms)] * self.values
        batch = build_batch(
            rows,
            compression=self.codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if self.transactional else 0,
        )
        if self.broken:
            batch[-1] ^= 1
        return memoryview(batch)


def one_by_one(storage: Storage, batches: Sequence[Batch]) -> list[int | str]:
    """Base offset of each, or the name of what it was refused with."""
    found: list[int | str] = []
    for batch in batches:
        try:
            found.append(storage.log().append(batch.build(), now_ms=NOW_MS).base_offset)
        except Refusal as error:
            found.append(type(error).__name__)
    return found


def in_runs(storage: Storage, batches: Sequence[Batch]) -> list[int | str]:
    """The same, with ``append`` for what a run has left."""
    found: list[int | str] = []
    left = list(batches)
    while left:
        bases, start = storage.log().append_run([batch.build() for batch in left], now_ms=NOW_MS)
        assert start == storage.log().log_start_offset
        found += bases
        left = left[len(bases) :]
        if left:
            found += one_by_one(storage, left[:1])
            left = left[1:]
    return found


BATCHES = st.lists(
    st.builds(
        Batch,
        values=st.integers(1, 3),
        producer=st.none() | st.tuples(st.integers(1, 2), st.integers(0, 1), st.integers(0, 4)),
        codec=st.sampled_from([0, 0, 4]),
        late_ms=st.sampled_from([0, 0, 5, 100_000_000_000]),
        broken=st.sampled_from([False] * 9 + [True]),
        transactional=st.sampled_from([False] * 9 + [True]),
    ),
    max_size=10,
)


@given(BATCHES, st.sampled_from([300, 1000, 1_000_000]), st.sampled_from([0, 100, 4096]))
def test_run_stores_the_same_as_single_batches(batches: list[Batch], segment_bytes: int, interval: int) -> None:
    directories = [tempfile.mkdtemp() for _ in range(2)]
    outcomes = []
    try:
        for directory, way in zip(directories, (one_by_one, in_runs), strict=True):
            storage = Storage(directory)
            storage.create(segment_bytes=segment_bytes, index_interval_bytes=interval)
            found = way(storage, batches)
            log = storage.log()
            state = log.state
            ends = (log.log_end_offset, log.high_watermark, state.tail[0], state.tail[2])
            segments = [(one.base_offset, one.size, one.largest_timestamp) for one in log.view.segments]
            everything = read_bytes(log, 0)
            producers = state.producers.freeze().to_snapshot()
            # And recovery finds the same.
            storage.kill()
            storage = Storage(directory)
            again = (storage.log().log_end_offset, read_bytes(storage.log(), 0))
            outcomes.append((found, ends, segments, everything, producers, again))
            storage.kill()
        assert outcomes[0] == outcomes[1]
    finally:
        for directory in directories:
            shutil.rmtree(directory)


def test_a_run_is_one_write(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    log = storage.create()
    log.append(Batch().build(), now_ms=NOW_MS)
    done: list[str] = []
    storage.disk.before = lambda what, path: done.append(what)
    assert [1, 2, 3, 4] == log.append_run([Batch().build() for _ in range(4)], now_ms=NOW_MS)[0]
    assert ["write"] == done
    storage.disk.before = lambda what, path: None
    assert [0, 1, 2, 3, 4] == offsets(records_in(read_bytes(log, 0)))
    storage.kill()


def test_a_run_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    log = storage.create()
    log.append(Batch().build(), now_ms=NOW_MS)
    before = read_bytes(log, 0)
    numbered = [Batch(producer=(1, 0, sequence)) for sequence in range(3)]
    storage.disk.room = 100
    assert [] == log.append_run([batch.build() for batch in numbered], now_ms=NOW_MS)[0]
    storage.disk.room = None
    assert before == read_bytes(log, 0)
    assert 1 == log.log_end_offset
    # The producer was not taken for one that has written, so it can send the same again.
    assert [1, 2, 3] == log.append_run([batch.build() for batch in numbered], now_ms=NOW_MS)[0]
    storage.kill()


@pytest.mark.parametrize("number", [1, 3])
def test_watchers_hear_of_a_run_once(tmp_path: Path, number: int) -> None:
    storage = Storage(tmp_path)
    log = storage.create()
    log.append(Batch().build(), now_ms=NOW_MS)
    heard: list[int] = []
    log.watch(lambda: heard.append(log.log_end_offset))
    log.append_run([Batch().build() for _ in range(number)], now_ms=NOW_MS)
    assert [1 + number] == heard
    storage.kill()
