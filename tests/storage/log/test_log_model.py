"""A log against a plain list, whatever is done to it: hypothesis chooses what.

The model knows every batch that was appended and where its bytes are, so it can say what must be left after the files were cut
or a byte of them was flipped while the broker was down.
"""

import shutil
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.errors import Refusal
from tests.storage.helpers import NOW_MS, Storage, append, offsets, read_bytes, read_records, records_in

HOUR_MS = 3_600_000


@attrs.frozen
class Batch:
    base: int
    values: tuple[bytes, ...]
    size: int
    segment: int  # base offset of its segment
    position: int
    producer: tuple[int, int, int] | None

    @property
    def next(self) -> int:
        return self.base + len(self.values)


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.storage: Storage | None = None
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.sequences: dict[int, int] = {}
        self.counter = 0

    @initialize(interval=st.sampled_from([0, 200, 4096]), segment=st.sampled_from([400, 1500, 100_000]))
    def create(self, interval: int, segment: int) -> None:
        self.storage = Storage(self.directory, max_open_files=3)
        self.storage.create(index_interval_bytes=interval, segment_bytes=segment, file_delete_delay_ms=0)

    def teardown(self) -> None:
        if self.storage is not None:
            self.everything_can_be_read()
            self.storage.kill()
        shutil.rmtree(self.directory)

    # -- what clients and time do ----------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 4),
        size=st.integers(0, 60),
        producer=st.sampled_from([None, 1, 2]),
        codec=st.sampled_from([0, 0, 4]),
    )
    def append(self, count: int, size: int, producer: int | None, codec: int) -> None:
        assert self.storage is not None
        log = self.storage.log()
        values = tuple(b"%d:%d" % (self.counter, i) + b"." * size for i in range(count))
        self.counter += 1
        who = None
        if producer is not None:
            who = (producer, 0, self.sequences.get(producer, 0))
            self.sequences[producer] = who[2] + count
        before = log.size_bytes()
        info = append(log, *values, producer=who, compression=codec)
        assert (info.base_offset, info.last_offset, info.duplicate) == (self.end, self.end + count - 1, False)
        segment = log.view.segments[-1]
        size = log.size_bytes() - before
        self.batches.append(Batch(self.end, values, size, segment.base_offset, segment.size - size, who))
        self.end += count

    @rule(number=st.integers(1, 5))
    def append_again(self, number: int) -> None:
        """One of the last batches of a producer comes again."""
        assert self.storage is not None
        for producer in (1, 2):
            mine = [batch for batch in self.batches if batch.producer is not None and batch.producer[0] == producer]
            if len(mine) >= number and mine[-number].next > self.start:
                again = mine[-number]
                info = append(self.storage.log(), *again.values, producer=again.producer)
                assert (info.base_offset, info.last_offset, info.duplicate) == (again.base, again.next - 1, True)

    @rule(where=st.floats(0, 1), max_bytes=st.integers(0, 2000))
    def read(self, where: float, max_bytes: int) -> None:
        assert self.storage is not None
        offset = self.start + int(where * (self.end - self.start))
        data = read_bytes(self.storage.log(), offset, max_bytes)
        expected: list[int] = []
        room = max_bytes
        for batch in self.batches:
            if batch.next > offset:
                if batch.size > room and expected:
                    break
                expected += range(batch.base, batch.next)
                room -= batch.size
                if room < 0:
                    break
        assert offsets(records_in(data)) == expected

    @rule(where=st.floats(0, 1))
    def delete_records(self, where: float) -> None:
        assert self.storage is not None
        before = self.start + int(where * (self.end - self.start))
        assert self.storage.log().trimming.delete_records(before) == before
        self.start = before

    @rule(limit=st.integers(0, 3000))
    def retain_bytes(self, limit: int) -> None:
        assert self.storage is not None
        storage, log = self.storage, self.storage.log()
        sizes = [segment.size for segment in log.view.segments]
        bases = [*log.view.bases]
        while len(sizes) > 1 and sum(sizes) - sizes[0] >= limit:
            del sizes[0], bases[0]
        storage.manager.alter_topic_configs("t", {"retention.bytes": str(limit)})
        storage.housekeep()
        storage.manager.alter_topic_configs("t", {"retention.bytes": None})
        self.start = max(self.start, bases[0])

    @rule(hours=st.integers(0, 200))
    def time_passes(self, hours: int) -> None:
        """A week is retention.ms."""
        assert self.storage is not None
        storage, log = self.storage, self.storage.log()
        storage.clock.sleep_ms(hours * HOUR_MS)
        if log.log_end_offset > 0 and storage.clock.now_ms - NOW_MS > 168 * HOUR_MS:
            self.start = self.end
        list(storage.manager.housekeeper.apply_retention())
        storage.clock.now_ms = NOW_MS  # and the clock jumps back

    @rule()
    def housekeep(self) -> None:
        assert self.storage is not None
        self.storage.housekeep()

    # -- what happens to the broker --------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        assert self.storage is not None
        self.storage.restart()

    @rule()
    def crash(self) -> None:
        assert self.storage is not None
        self.storage.crash()

    @precondition(lambda self: self.end > self.start)
    @rule(where=st.floats(0, 1), clean=st.booleans())
    def cut_tail(self, where: float, clean: bool) -> None:
        assert self.storage is not None
        storage = self.storage
        (storage.stop if clean else storage.kill)()
        path = storage.path() / storage.files(".log")[-1]
        content = path.read_bytes()
        size = int(where * len(content))
        path.write_bytes(content[:size])
        segment = int(path.stem)
        left = [b for b in self.batches if b.segment != segment or b.position + b.size <= size]
        end = left[-1].next if left else segment
        end = max(end, segment)
        durable = self._recovery_point()
        storage.open()
        if end < durable:
            assert storage.log().offline is not None
            storage.kill()
            path.write_bytes(content)
            storage.open()
            return
        self.batches, self.end = left, end
        if end < self.start:  # what is deleted stays deleted, and its offsets are not given again
            self.end = self.start
        self._forget_sequences()

    @precondition(lambda self: self.end > self.start)
    @rule(which=st.floats(0, 0.999), where=st.floats(0, 0.999), bit=st.integers(0, 7), clean=st.booleans())
    def flip(self, which: float, where: float, bit: int, clean: bool) -> None:
        assert self.storage is not None
        storage = self.storage
        (storage.stop if clean else storage.kill)()
        names = storage.files(".log")
        path = storage.path() / names[int(which * len(names))]
        content = path.read_bytes()
        if not content:
            storage.open()
            return
        position = int(where * len(content))
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        segment = int(path.stem)
        bad = next(b for b in self.batches if b.segment == segment and b.position <= position < b.position + b.size)
        is_last = bad is self.batches[-1]
        durable = self._recovery_point()
        storage.open()
        log = storage.log()
        if log.offline is None and is_last and bad.base >= durable:
            assert log.log_end_offset == max(bad.base, self.start)
            del self.batches[-1]
            self.end = log.log_end_offset
            self._forget_sequences()
            return
        if log.offline is None:  # it lies where recovery does not look: the scrub finds it
            assert bad.next <= durable
            storage.manager.housekeeper.scrub.step(storage.manager.partitions, 1 << 30)
        assert log.offline is not None
        assert f"position {bad.position}" in str(log.offline) or f"ends at offset {bad.base}," in str(log.offline)
        storage.kill()
        path.write_bytes(content)
        storage.open()

    @rule(
        suffix=st.sampled_from([".index", ".timeindex", ".snapshot"]),
        junk=st.sampled_from([b"", b"\0" * 64, b"junk!" * 7]),
    )
    def spoil(self, suffix: str, junk: bytes) -> None:
        """All files that can be made again, and are."""
        assert self.storage is not None
        storage = self.storage
        storage.kill()
        names = storage.files(suffix)
        if suffix == ".snapshot":
            names = [] if self.start else names  # what is only in a snapshot cannot be made again
        for name in names:
            (storage.path() / name).write_bytes(junk)
        storage.open()

    @rule(
        name=st.sampled_from(["recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"]),
        junk=st.sampled_from([b"", b"0\n9\n"]),
    )
    def spoil_checkpoint(self, name: str, junk: bytes) -> None:
        assert self.storage is not None
        self.storage.kill()
        (Path(self.directory) / name).write_bytes(junk)
        self.storage.open()

    def _recovery_point(self) -> int:
        path = Path(self.directory) / "recovery-point-offset-checkpoint"
        lines = path.read_text().splitlines()[2:] if path.exists() else []
        return int(lines[0].split()[2]) if lines else 0

    def _forget_sequences(self) -> None:
        for producer in (1, 2):
            mine = [b for b in self.batches if b.producer is not None and b.producer[0] == producer]
            if mine:
                assert mine[-1].producer is not None
                self.sequences[producer] = mine[-1].producer[2] + len(mine[-1].values)
            else:
                self.sequences.pop(producer, None)

    # -- what is always so -----------------------------------------------------------------------------------------------

    @invariant()
    def begins_and_ends_where_it_should(self) -> None:
        if self.storage is not None:
            log = self.storage.log()
            assert log.offline is None
            assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (self.start, self.end, self.end)
            assert log.durable_offset <= self.end
            assert self.storage.manager.files.count() <= 3

    @rule(max_bytes=st.sampled_from([1, 100, 1000, 1 << 20]))
    def everything_can_be_read(self, max_bytes: int = 300) -> None:
        assert self.storage is not None
        expected = [
            (batch.base + i, value)
            for batch in self.batches
            for i, value in enumerate(batch.values)
            if batch.base + i >= self.start
        ]
        assert [(r.offset, r.value) for r in read_records(self.storage.log(), max_bytes)] == expected
        for outside in (self.start - 1, self.end + 1):
            with pytest.raises(Refusal):
                self.storage.log().read(outside, 100)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=30)
