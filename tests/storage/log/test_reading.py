"""Reading from any offset in any size, and looking up by time."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import Refusal
from broker.storage.refusals import OffsetOutOfRange
from protocol.kafka.records.batch import batches
from tests.storage.helpers import NOW_MS, Storage, append, append_many, offsets, read_bytes, read_records, records_in


def test_an_empty_log_gives_nothing(storage: Storage) -> None:
    log = storage.create()
    result = log.read(0, 1000)
    assert (result.regions, result.size, result.high_watermark, result.resident) == ([], 0, 0, True)


def test_read_at_high_watermark_is_empty_beyond_refused(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", b"b")
    assert log.read(2, 1000).size == 0
    for offset in (3, -1, 2**62):
        with pytest.raises(Refusal) as error:
            log.read(offset, 1000)
        assert type(error.value) is OffsetOutOfRange


def test_the_batch_that_has_the_offset_comes_whole(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", b"b", b"c")
    append(log, b"d")
    assert offsets(records_in(read_bytes(log, 1))) == [0, 1, 2, 3]
    assert offsets(records_in(read_bytes(log, 3))) == [3]


def test_only_whole_batches_that_fit_are_given(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10)
    size = log.size_bytes() // 10
    assert offsets(records_in(read_bytes(log, 0, 3 * size))) == [0, 1, 2]
    assert offsets(records_in(read_bytes(log, 0, 3 * size + size - 1))) == [0, 1, 2]
    assert offsets(records_in(read_bytes(log, 4, 4 * size))) == [4, 5, 6, 7]


def test_too_large_first_batch_comes_unless_not_wanted(storage: Storage) -> None:
    log = storage.create()
    append(log, b"x" * 1000)
    append(log, b"y")
    assert offsets(records_in(read_bytes(log, 0, 1))) == [0]
    assert offsets(records_in(read_bytes(log, 0, 0))) == [0]
    assert read_bytes(log, 0, 500, at_least_one=False) == b""
    assert read_bytes(log, 1, 10, at_least_one=False) == b""


def test_read_continues_into_next_segments_with_regions(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    result = log.read(1, 10_000)
    assert len(result.regions) == len(log.view.segments) == 4
    assert offsets(records_in(read_bytes(log, 1))) == list(range(1, 10))
    size = log.size_bytes() // 10
    assert offsets(records_in(read_bytes(log, 1, 4 * size))) == [1, 2, 3, 4]


def test_a_reader_may_be_held_back(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    assert [len(records_in(read_bytes(log, 1, up_to=up_to))) for up_to in (1, 2, 3, 6, 10, 99)] == [0, 1, 2, 5, 9, 9]


def test_what_was_deleted_is_out_of_range(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 5)
    assert log.trimming.delete_records(3) == 3
    assert log.read(3, 1000).log_start_offset == 3
    with pytest.raises(Refusal) as error:
        log.read(2, 1000)
    assert type(error.value) is OffsetOutOfRange


def test_reader_that_continues_at_end_needs_no_lookup(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 3)
    read_bytes(log, 0)
    storage.disk.fail["read", ".log"] = 5
    for _ in range(5):
        offset = log.high_watermark
        append(log, b"a")
        assert log.read(offset, 1000).size > 0


def test_reader_that_continues_in_middle_reads_little_more(storage: Storage) -> None:
    log = storage.create(index_interval_bytes=4096)
    append_many(log, 3000, size=300)
    found, offset = 0, 0
    storage.disk.read_bytes = 0
    while offset < log.high_watermark:
        result = log.read(offset, 50_000)
        found += 1
        storage.disk.read_bytes -= result.size  # what the next line reads to know how to go on
        offset = list(batches(b"".join(r.file.pread(r.size, r.offset) for r in result.regions)))[-1][1].next_offset
    assert found > 20
    assert storage.disk.read_bytes / found < 5000


def test_positions_of_readers_that_stay_away_are_forgotten(storage: Storage) -> None:
    log = storage.create()
    for _ in range(1000):
        offset = log.high_watermark
        append(log, b"a")
        log.read(offset, 1000)
    assert len(log.reader.read_ends) <= 256


def test_regions_stay_readable_when_their_segment_is_deleted(storage: Storage) -> None:
    log = storage.create(segment_bytes=300, file_delete_delay_ms=0)
    append_many(log, 10)
    before = read_bytes(log, 0)
    regions = log.read(0, 10_000).regions
    log.trimming.delete_records(10)
    storage.housekeep()
    assert storage.files(".log") == [f"{9:020d}.log"]
    assert b"".join(region.file.pread(region.size, region.offset) for region in regions) == before


def test_data_that_left_page_cache_is_not_resident(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 100, size=10_000)
    assert log.read(0, 1 << 30).resident
    storage.crash()
    log = storage.log()
    file = log.read(0, 1).regions[0].file
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # Nothing may ask before: to ask for a page that is not there makes the kernel read it, and more, ahead.
    resident = log.read(0, 1 << 30).resident
    if resident:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if file.is_resident(0, 1_000_000):
            pytest.skip("this file system keeps everything in memory")
    assert not resident


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    interval=st.sampled_from([0, 150, 4096]),
    segment_bytes=st.sampled_from([400, 1000, 1 << 20]),
    reads=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2000), st.booleans()), max_size=20),
    reopen=st.booleans(),
)
def test_any_read_equals_that_of_batch_list(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    interval: int,
    segment_bytes: int,
    reads: list[tuple[int, int, bool]],
    reopen: bool,
) -> None:
    storage = Storage(tmp_path_factory.mktemp("read"))
    try:
        log = storage.create(segment_bytes=segment_bytes, index_interval_bytes=interval)
        model: list[tuple[int, int, int]] = []  # base offset, next offset, bytes
        for size in sizes:
            info = append(log, *[b"v" * 7] * size)
            model.append((info.base_offset, info.last_offset + 1, log.size_bytes() - sum(b[2] for b in model)))
        if reopen:
            storage.restart()
            log = storage.log()
        end = model[-1][1]
        for offset, max_bytes, at_least_one in reads:
            offset %= end
            first = next(i for i, (_, following, _) in enumerate(model) if following > offset)
            expected, room = [], max_bytes
            for base, following, size in model[first:]:
                if size > room and not (at_least_one and not expected):
                    break
                expected += range(base, following)
                room -= size
            data = read_bytes(log, offset, max_bytes, at_least_one=at_least_one)
            found = offsets(records_in(data))
            assert found == expected[: len(found)]
            # It may end at an index entry and one batch, which is up to an interval before it must.
            assert len(found) == len(expected) or (
                found and max_bytes - len(data) <= interval + 2 * max(b[2] for b in model)
            )
    finally:
        storage.kill()


# -- by time ---------------------------------------------------------------------------------------------------------------


def test_first_record_not_older_than_time_is_found(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", b"b", b"c", timestamps=[10, 20, 30])
    append(log, b"d", b"e", timestamps=[40, 40])
    found = {timestamp: log.times.offset_for_timestamp(timestamp) for timestamp in (0, 10, 11, 30, 31, 40, 41)}
    assert found == {0: (0, 10), 10: (0, 10), 11: (1, 20), 30: (2, 30), 31: (3, 40), 40: (3, 40), 41: None}


def test_empty_log_has_no_record_of_any_time(storage: Storage) -> None:
    log = storage.create()
    assert log.times.offset_for_timestamp(0) is None
    assert log.times.max_timestamp_offset() is None


def test_records_without_a_time_are_not_found(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", timestamp=-1)
    assert log.times.offset_for_timestamp(0) is None
    assert log.times.max_timestamp_offset() is None


def test_largest_timestamp_belongs_to_first_record_with_it(storage: Storage) -> None:
    log = storage.create(segment_bytes=200)
    append(log, b"a", timestamp=5)
    append(log, b"b", b"c", b"d", timestamps=[7, 99, 99])
    append(log, b"e", timestamp=99)
    append(log, b"f", timestamp=3)
    assert log.times.max_timestamp_offset() == (2, 99)
    storage.restart()
    assert storage.log().times.max_timestamp_offset() == (2, 99)


def test_records_before_the_log_start_are_not_found(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", b"b", b"c", timestamps=[10, 20, 30])
    log.trimming.delete_records(1)
    assert log.times.offset_for_timestamp(0) == (1, 20)


def test_compressed_batches_are_looked_into(storage: Storage) -> None:
    log = storage.create()
    append(log, b"a", b"b", b"c", timestamps=[10, 20, 30], compression=4)
    assert log.times.offset_for_timestamp(15) == (1, 20)


@settings(max_examples=60)
@given(
    times=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=30),
    wanted=st.lists(st.integers(-1, 52), min_size=1, max_size=10),
    interval=st.sampled_from([0, 150, 4096]),
    how=st.sampled_from(["running", "restart", "crash"]),
)
def test_any_time_lookup_equals_that_of_record_list(
    tmp_path_factory: pytest.TempPathFactory, times: list[list[int]], wanted: list[int], interval: int, how: str
) -> None:
    storage = Storage(tmp_path_factory.mktemp("time"))
    try:
        log = storage.create(segment_bytes=600, index_interval_bytes=interval)
        model: list[int] = []
        for batch_times in times:
            append(log, *[b"v"] * len(batch_times), timestamps=batch_times)
            model += batch_times
        if how != "running":
            (storage.restart if how == "restart" else storage.crash)()
            log = storage.log()
        for timestamp in wanted:
            expected = next(((offset, t) for offset, t in enumerate(model) if t >= timestamp), None)
            assert log.times.offset_for_timestamp(timestamp) == expected
        assert log.times.max_timestamp_offset() == (model.index(max(model)), max(model))
    finally:
        storage.kill()


# -- damaged indexes -------------------------------------------------------------------------------------------------------


def damage(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("junk", [b"\xff" * 4, b"\0" * 4, b"\x00\x00\x01\x23", b"\x7f\xff\xff\xff"])
def test_a_damaged_index_never_makes_a_wrong_answer(storage: Storage, suffix: str, where: str, junk: bytes) -> None:
    log = storage.create(segment_bytes=20_000, index_interval_bytes=200)
    for offset in range(300):
        append(log, b"%d" % offset + b"." * 20, timestamp=NOW_MS + offset)
    storage.stop()
    for name in storage.files(suffix):
        path = storage.path() / name
        entry = 8 if suffix == ".index" else 12
        entries = path.stat().st_size // entry
        number = {"first": 0, "middle": entries // 2, "last": entries - 1}[where]
        for column in (0, entry - 4):
            damage(path, number * entry + column, junk)
    storage.open()
    log = storage.log()
    for offset in [*range(0, 300, 7), 299]:
        assert offsets(records_in(read_bytes(log, offset, 500)))[0] == offset
        assert log.times.offset_for_timestamp(NOW_MS + offset) == (offset, NOW_MS + offset)
    assert offsets(read_records(log, 1000)) == list(range(300))
    assert log.offline is None


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("stop", [Storage.restart, Storage.crash])
def test_missing_empty_and_cut_indexes_are_made_again(storage: Storage, suffix: str, stop: object) -> None:
    log = storage.create(segment_bytes=20_000, index_interval_bytes=200)
    for offset in range(600):
        append(log, b"%d" % offset + b"." * 20, timestamp=NOW_MS + offset)
    storage.stop()
    first, second, third, *_ = storage.files(suffix)
    (storage.path() / first).unlink()
    (storage.path() / second).write_bytes(b"")
    path = storage.path() / third
    path.write_bytes(path.read_bytes()[:-5])
    storage.open()
    log = storage.log()
    for offset in range(0, 600, 11):
        assert offsets(records_in(read_bytes(log, offset, 300)))[0] == offset
        assert log.times.offset_for_timestamp(NOW_MS + offset) == (offset, NOW_MS + offset)
    assert storage.files(suffix) == [f"{base:020d}{suffix}" for base in log.view.bases]
    assert (storage.path() / first).stat().st_size > 0


def test_index_damaged_in_use_is_rebuilt(storage: Storage) -> None:
    log = storage.create(segment_bytes=20_000, index_interval_bytes=0)
    append_many(log, 1000, size=30)
    good = [(storage.path() / name).read_bytes() for name in storage.files(".index")[:-1]]
    for name in storage.files(".index"):
        path = storage.path() / name
        path.write_bytes(b"\x00\x00\x00\x05" * (path.stat().st_size // 4))
    assert offsets(records_in(read_bytes(log, 567, 100))) == [567]
    assert offsets(read_records(log, 1000)) == list(range(1000))
    assert offsets(records_in(read_bytes(log, 123, 1000)))[0] == 123
    for offset in range(0, 1000, 50):
        assert offsets(records_in(read_bytes(log, offset, 200)))[0] == offset
    assert log.offline is None
    again = [(storage.path() / name).read_bytes() for name in storage.files(".index")[:-1]]
    assert sum(a == b for a, b in zip(again, good, strict=True)) > len(good) // 2
