"""The cache of entries: what is found in it, and what goes when."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.entries import cache as module
from broker.pulsar.entries.cache import MAX_AGE_S, MOST_REQUEUES, OVERHEAD_BYTES, RUN_BYTES, EntryCache, LogEntries
from broker.pulsar.entry import Entry
from broker.runtime.disk import FileRegion
from broker.runtime.timers import Timer
from tests.storage.helpers import HandClock

ALONE = 100 + OVERHEAD_BYTES + RUN_BYTES  # the bytes of an entry in a run of its own


class World:
    """A cache with a clock that is set by hand. What it wants to have run is run at once."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.clock = HandClock()
        self.timer = Timer(self.clock)
        self.ran = 0
        self.cache = EntryCache(self.clock, self.timer, max_bytes, self._run)

    def _run(self, job: Callable[[], None]) -> None:
        self.ran += 1
        job()

    def log(self, cursors: int = 0) -> LogEntries:
        entries = LogEntries(self.cache)
        entries.cursors = cursors
        return entries

    def sleep(self, seconds: float) -> None:
        self.clock.now_s += seconds
        while self.timer.step(0):
            pass


def entry(offset: int, messages: int = 1, size: int = 100) -> Entry:
    return Entry(offset, messages, size, b"x" * size)


def cached(log: LogEntries) -> list[int]:
    return sorted(log._runs)


def test_reader_steps_through_entries_by_offset() -> None:
    log = World().log()
    one, two = entry(0, 10), entry(10, 3)
    log.put([one, two])
    assert (one, two, None, None) == (log.get(0), log.get(one.last + 1), log.get(two.last + 1), log.get(5))


def test_the_data_is_not_copied() -> None:
    log = World().log()
    data = memoryview(bytearray(100))
    log.put([Entry(0, 1, 100, data)])
    found = log.get(0)
    assert found is not None
    assert found.data is data


def test_reader_steps_over_entries_not_for_consumers() -> None:
    log = World().log()
    one, two = entry(5), entry(9)  # markers at 3, 4, 6, 7 and 8
    log.put([one, two], 3)
    assert [one, one, two, two] == [log.get(offset) for offset in (3, 5, 6, 9)]


def test_unneeded_entry_expires_when_old() -> None:
    world = World()
    log = world.log()
    log.put([entry(0)])
    world.sleep(MAX_AGE_S / 2)
    log.put([entry(1)])
    world.sleep(MAX_AGE_S / 2)
    assert [1] == cached(log)
    world.sleep(MAX_AGE_S)
    assert ([], 0, 0) == (cached(log), world.cache.bytes, len(world.cache))


def test_an_empty_cache_winds_no_alarm() -> None:
    world = World()
    log = world.log()
    log.put([entry(0)])
    world.sleep(10)
    assert (0, 1) == (len(world.timer), world.ran)
    log.put([entry(1)])
    assert 1 == len(world.timer)


def test_entry_stays_until_cursors_have_read_it() -> None:
    world = World()
    log = world.log(cursors=2)
    log.put([entry(0)])
    log.put([entry(1), entry(2)])
    log.get(0), log.get(0), log.read(1, 3, 10, 1000), log.get(2)
    world.sleep(MAX_AGE_S)
    assert [1, 2] == cached(log)  # entries that were appended together stay together
    log.get(1)
    world.sleep(MAX_AGE_S)
    assert [] == cached(log)


def test_idle_cursor_does_not_keep_entry_forever() -> None:
    world = World()
    log = world.log(cursors=1)
    log.put([entry(0)])
    for _ in range(MOST_REQUEUES):
        world.sleep(MAX_AGE_S)
        assert [0] == cached(log)
    world.sleep(MAX_AGE_S)
    assert [] == cached(log)


def test_idle_cursor_eventually_costs_nothing() -> None:
    """Two cursors, of which one reads. Until it is known that the other one does not, everything is kept for it."""
    world = World()
    log = world.log(cursors=2)
    offset = 0
    for _ in range(MOST_REQUEUES + 1):
        log.put([entry(offset), entry(offset + 1)])
        log.read(offset, offset + 2, 10, 1000)
        offset += 2
        world.sleep(MAX_AGE_S)
    assert 2 * (MOST_REQUEUES + 1) > len(cached(log)) >= 2 * MOST_REQUEUES
    log.put([entry(offset)])
    log.get(offset)
    world.sleep(MAX_AGE_S)
    assert offset not in cached(log)  # no cursor waits for this entry
    log.missed()  # the other cursor reads the log, so it may catch up
    log.put([entry(offset + 1)])
    log.get(offset + 1)
    world.sleep(MAX_AGE_S)
    assert offset + 1 in cached(log)


def test_entry_awaiting_redelivery_stays() -> None:
    world = World()
    log = world.log(cursors=1)
    log.put([entry(0)])
    log.put([entry(1)])
    log.get(0), log.get(1)
    log.expect([1, 7])
    world.sleep(MAX_AGE_S)
    assert [1] == cached(log)


def test_oldest_entries_of_all_topics_are_evicted_first() -> None:
    world = World(max_bytes=3 * ALONE)
    one, two = world.log(), world.log()
    one.put([entry(0)])
    two.put([entry(0)])
    one.put([entry(1)])
    one.put([entry(2)])
    assert ([1, 2], [0]) == (cached(one), cached(two))
    two.put([entry(1)])
    assert ([1, 2], [1]) == (cached(one), cached(two))


def test_unneeded_entries_are_evicted_before_needed_ones() -> None:
    world = World(max_bytes=30 * ALONE)
    needed, others = world.log(cursors=1), world.log()
    needed.put([entry(0)])
    for offset in range(100):
        others.put([entry(offset)])
    assert ([0], [*range(71, 100)]) == (cached(needed), cached(others))


def test_the_bound_holds_although_everything_is_needed() -> None:
    world = World(max_bytes=100 * ALONE)
    log = world.log(cursors=1000)
    for offset in range(2000):
        log.put([entry(offset)])
        assert world.cache.bytes <= world.cache.max_bytes * 9 // 8 + ALONE


def test_a_file_region_does_not_count_as_memory() -> None:
    world = World(max_bytes=10_000)
    log = world.log()
    region: Any = FileRegion(None, 0, 1 << 20)  # type: ignore[arg-type]  # nobody reads it
    log.put([Entry(0, 1, 1 << 20, region)])
    assert ([0], OVERHEAD_BYTES + RUN_BYTES) == (cached(log), world.cache.bytes)


def test_closed_log_leaves_cache_and_refuses_entries() -> None:
    world = World()
    log, other = world.log(cursors=5), world.log()
    log.put([entry(0)])
    other.put([entry(0)])
    log.close()
    log.put([entry(1)])
    assert (None, None) == (log.get(0), log.get(1))
    world.sleep(MAX_AGE_S)
    assert (0, 0) == (world.cache.bytes, len(world.cache))


def test_without_room_nothing_is_kept() -> None:
    world = World(max_bytes=0)
    log = world.log()
    log.put([entry(0)])
    assert (None, 0) == (log.get(0), len(world.cache))


def test_a_read_ends_where_its_bounds_are() -> None:
    log = World().log()
    entries = [entry(3, 10), entry(13, 2), entry(16)]
    log.put(entries, 2)
    assert entries == list(log.read(2, 17, 3, 300))
    assert (
        entries[:2] == list(log.read(3, 17, 2, 300)) == list(log.read(3, 16, 3, 300)) == list(log.read(3, 17, 3, 299))
    )
    assert entries[1:] == list(log.read(13, 17, 3, 300))
    assert entries[2:] == list(log.read(15, 17, 3, 300))
    assert [] == list(log.read(3, 17, 3, 99)) == list(log.read(4, 17, 3, 300))


def test_entries_that_were_read_twice_are_kept_once() -> None:
    world = World()
    log = world.log()
    first = [entry(5), entry(6)]
    log.put(first, 4)
    log.put([entry(1), *first, entry(9)], 1)
    assert 4 == len(world.cache)
    assert [1, 5, 5, 6, 9, 9] == [found.offset for offset in (1, 4, 5, 6, 7, 9) if (found := log.get(offset))]


def test_eviction_runs_in_bounded_steps() -> None:
    world = World(max_bytes=1 << 30)
    log = world.log()
    log.put([entry(offset) for offset in range(20_000)])
    world.clock.now_s += MAX_AGE_S
    world.cache.evict()
    assert 20_000 - 16 * module.STEP <= len(world.cache) < 20_000
    for _ in range(100):
        world.sleep(MAX_AGE_S / 20)
    assert 0 == len(world.cache)


@pytest.mark.parametrize("max_bytes", [0, 2_000, 1 << 20])
@given(data=st.data())
def test_whatever_happens_the_books_are_right(max_bytes: int, data: st.DataObject) -> None:
    world = World(max_bytes)
    logs = [world.log(cursors) for cursors in (0, 1, 3)]
    ends = [0, 0, 0]
    for _ in range(data.draw(st.integers(0, 60))):
        number = data.draw(st.integers(0, 2))
        log = logs[number]
        match data.draw(st.integers(0, 5)):
            case 0 | 1 | 2:
                start = ends[number]
                skipped = data.draw(st.integers(0, 2))
                count = data.draw(st.integers(1, 4))
                offset, entries = start + skipped, []
                for _ in range(count):
                    entries.append(entry(offset, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 900))))
                    offset = entries[-1].last + 1
                ends[number] = offset
                log.put(entries, start)
            case 3:
                offset = data.draw(st.integers(0, 50))
                found = log.get(offset)
                assert found is None or found.offset == offset or found.last >= offset
                end, most, size = (data.draw(st.integers(0, limit)) for limit in (60, 4, 2000))
                many = log.read(offset, end, most + 1, size)
                assert not many or found is many[0]
                assert len(many) <= most + 1
                assert sum(one.size for one in many) <= size
                assert all(one.offset < end for one in many)
            case 4:
                world.sleep(data.draw(st.floats(0, 3)))
            case 5:
                log.close()
                logs[number], ends[number] = world.log(number), 0
    queue = list(world.cache._queue)
    assert world.cache.bytes == sum(cached.size for cached in queue)
    for log in logs:
        assert all(found in queue for found in log._runs.values())
    world.sleep(100)
    for _ in range(20):
        world.sleep(2)
    assert (0, 0) == (world.cache.bytes, len(world.cache))
    assert not any(log._runs for log in logs)
