"""Reading the entries of a log: from the cache, from the file, after a restart, and among batches of Kafka's producers."""

import copy
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from broker.errors import StorageError
from broker.pulsar import entry as entry_factory
from broker.pulsar.entries.cache import EntryCache
from broker.pulsar.entries.log_entries import SENDFILE_BYTES
from broker.pulsar.entries.reader import EntryReader, Line, Readers
from broker.pulsar.entry import Entry
from broker.runtime.disk import FileRegion
from broker.runtime.threads import SystemThreads
from broker.runtime.timers import Timer
from broker.storage.log.log import Log
from broker.storage.refusals import UnknownTopic
from protocol.pulsar.murmur3 import key_hash
from protocol.translation.to_pulsar import to_pulsar
from tests.pulsar.entries.messages import append_entry, batch_of, message
from tests.storage.helpers import HandClock, Storage, append

MANY = 1 << 20


class Reading:
    """A reader of a log, whose threads are run by hand."""

    def __init__(self, log: Log, max_bytes: int = 1 << 20) -> None:
        clock = HandClock()
        self.readers = Readers(clock, 2)
        self.cache = EntryCache(clock, Timer(clock), max_bytes, self.readers.submit)
        self.reader = EntryReader(log, self.cache, self.readers)

    def append(self, stored: bytes, messages: int = 1) -> Entry:
        entry = append_entry(self.reader._log, stored, messages)
        self.reader.appended([entry])
        return entry

    def keyed(self) -> "Reading":
        other = copy.copy(self)
        other.reader = self.reader.by_key
        return other

    def run(self) -> None:
        while any(body.step(0) for body in self.readers.bodies):
            pass

    def later(self, call: Callable[..., None], *args: Any) -> Sequence[Entry] | Exception:
        results: list[Sequence[Entry] | Exception] = []
        call(*args, results.append)
        assert [] == results
        self.run()
        (result,) = results
        return result

    def from_log(self, offset: int, max_entries: int = 100, max_bytes: int = MANY) -> Sequence[Entry]:
        result = self.later(self.reader.read_later, offset, max_entries, max_bytes)
        assert not isinstance(result, Exception)
        return result

    def all(self, max_entries: int = 100, max_bytes: int = MANY) -> list[Entry]:
        """As a cursor reads: each read goes on where the one before ended."""
        found: list[Entry] = []
        offset = 0
        while offset < self.reader.end:
            entries = self.from_log(offset, max_entries, max_bytes)
            if not entries:
                break
            found += entries
            offset = entries[-1].last + 1
        return found


def data_of(entry: Entry) -> bytes:
    data = entry.data
    if isinstance(data, FileRegion):
        data = data.file.pread(data.size, data.offset)
    assert len(data) == entry.size
    return bytes(data)


@pytest.fixture
def reading(storage: Storage) -> Reading:
    return Reading(storage.create())


def test_what_was_appended_is_read_from_the_cache(reading: Reading) -> None:
    one = reading.append(message(b"one"))
    two = reading.append(batch_of(b"a", b"b", b"c"), 3)
    assert [one, two] == reading.reader.read(0, 100, MANY)
    assert [two] == reading.reader.read(1, 100, MANY)
    assert () == reading.reader.read(4, 100, MANY)
    assert 4 == reading.reader.end


def test_cache_returns_one_to_requested_entries(reading: Reading) -> None:
    entries = [reading.append(message(b"x" * 100)) for _ in range(5)]
    size = entries[0].size
    assert entries[:2] == reading.reader.read(0, 2, MANY)
    assert entries[:3] == reading.reader.read(0, 100, 3 * size)
    assert entries[:1] == reading.reader.read(0, 100, 1)


@pytest.mark.parametrize("how", ["", "restart", "crash"])
def test_what_was_appended_is_read_from_the_log(storage: Storage, how: str) -> None:
    sent = [message(b"one"), batch_of(b"a", b"b", b"c"), message(b"", partition_key="k", deliver_at_time=7)]
    reading = Reading(storage.create())
    for stored, count in zip(sent, (1, 3, 1), strict=True):
        reading.append(stored, count)
    if how:
        getattr(storage, how)()
    reading = Reading(storage.log())
    assert reading.reader.read(0, 100, MANY) is None
    entries = reading.from_log(0)
    assert sent == [data_of(entry) for entry in entries]
    assert [(0, 1, 0), (1, 3, 0), (4, 1, 7)] == [(one.offset, one.messages, one.deliver_at_ms) for one in entries]


@pytest.mark.parametrize("max_entries", [1, 3, 1000])
@pytest.mark.parametrize("max_bytes", [1, 5_000, MANY])
def test_reading_on_and_on_gives_every_entry_once(reading: Reading, max_entries: int, max_bytes: int) -> None:
    sent = [message(b"%d" % number * (number * 7 % 301)) for number in range(200)]
    for stored in sent:
        append_entry(reading.reader._log, stored, 3)
    assert sent == [data_of(entry) for entry in reading.all(max_entries, max_bytes)]


def test_reads_are_bounded(reading: Reading) -> None:
    for _ in range(50):
        append_entry(reading.reader._log, message(b"x" * 1000))
    assert 7 == len(reading.from_log(0, 7))
    entries = reading.from_log(0, 100, 10_000)
    assert 8 <= len(entries) <= 9
    assert sum(entry.size for entry in entries) <= 10_000
    assert 1 == len(reading.from_log(0, 100, 1))


def test_an_offset_within_an_entry_means_that_entry(reading: Reading) -> None:
    append_entry(reading.reader._log, message(b"before"))
    append_entry(reading.reader._log, batch_of(*[b"x"] * 10), 10)
    assert [1] == [entry.offset for entry in reading.from_log(7)]


def test_large_entry_stays_in_file_among_small_ones(reading: Reading) -> None:
    large = message(b"x" * (3 * SENDFILE_BYTES), properties=[{"key": "k", "value": "v" * 20_000}])
    huge = message(b"y" * (1 << 20), partition_key="k")
    sent = [message(b"a"), large, message(b"b"), huge, huge, message(b"c")]
    for stored in sent:
        append_entry(reading.reader._log, stored)
    entries = reading.from_log(0, 100, 10 << 20)
    assert sent == [data_of(entry) for entry in entries]
    assert [isinstance(entry.data, FileRegion) for entry in entries[3:]] == [True, True, False]
    assert entries[3].sticky_hash == entries[4].sticky_hash > 0


def test_replay_reads_entries_at_given_offsets(reading: Reading) -> None:
    for number in range(20):
        append_entry(reading.reader._log, batch_of(b"%d" % number, b""), 2)
    result = reading.later(reading.reader.replay_later, [2, 6, 8, 30])
    assert not isinstance(result, Exception)
    assert [2, 6, 8, 30] == [entry.offset for entry in result]
    assert reading.reader.replay([2]) is None


def test_replay_leaves_out_what_is_gone(storage: Storage) -> None:
    log = storage.create(segment_bytes=200)
    for _ in range(10):
        append_entry(log, message(b"x" * 100))
    log.trimming.delete_records(5)
    storage.housekeep()
    reading = Reading(log)
    result = reading.later(reading.reader.replay_later, [1, 4, 5, 8, 99])
    assert not isinstance(result, Exception)
    assert [5, 8] == [entry.offset for entry in result]
    assert [5, 6, 7, 8, 9] == [entry.offset for entry in reading.from_log(0)]


def test_replay_from_the_cache_needs_all_of_them(reading: Reading) -> None:
    one, two = reading.append(message(b"a")), reading.append(message(b"b"))
    assert [one, two] == reading.reader.replay([0, 1])
    assert reading.reader.replay([0, 1, 2]) is None


def test_read_entries_are_shared_with_other_subscriptions(reading: Reading) -> None:
    append_entry(reading.reader._log, message(b"a"))
    append_entry(reading.reader._log, message(b"b"))
    reading.reader.cursor_opened()
    reading.from_log(0)
    assert reading.reader.read(0, 100, MANY) is None
    reading.reader.cursor_opened()
    entries = reading.from_log(0)
    assert entries == reading.reader.read(0, 100, MANY)
    reading.reader.cursor_closed()
    reading.reader.close()
    assert reading.reader.read(0, 100, MANY) is None


def test_kafka_entries_are_split_by_key_pulsars_not(reading: Reading) -> None:
    log, reader = reading.reader._log, reading.reader
    one = reading.append(batch_of(b"a", b"b", keys=["x", "y"]), 2)
    append(log, *[b"."] * 5, keys=[b"k", b"k", b"l", None, b"k"])
    assert [one] == reader.by_key.read(0, 100, MANY) == reader.read(0, 100, MANY)
    reader.cursor_opened(), reader.cursor_opened()
    plain, keyed = reading.from_log(2), Reading.from_log(reading.keyed(), 2)
    assert [(2, 5)] == [(entry.offset, entry.messages) for entry in plain]
    assert [(2, 2), (4, 1), (5, 1), (6, 1)] == [(entry.offset, entry.messages) for entry in keyed]
    assert [key_hash(b"k"), key_hash(b"l"), key_hash(b"kafka-5"), key_hash(b"k")] == [one.sticky_hash for one in keyed]
    # Each reader finds its own entries in the cache.
    assert (plain, keyed) == (reader.read(2, 100, MANY), reader.by_key.read(2, 100, MANY))
    assert ([keyed[1]], None) == (reader.by_key.replay([4]), reader.replay([4]))
    reader.close()
    assert (None, None) == (reader.read(2, 100, MANY), reader.by_key.read(2, 100, MANY))


def test_a_batch_of_many_entries_is_translated_once(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    translated = []

    def counted(*args: Any, **how: Any) -> Any:
        translated.append(1)
        return to_pulsar(*args, **how)

    monkeypatch.setattr(entry_factory, "to_pulsar", counted)
    reading = Reading(reading.reader._log, 16 << 20)
    append(reading.reader._log, *[b"."] * 3000, keys=[b"%d" % number for number in range(3000)])
    keyed = reading.keyed()
    entries, offset = [], 0
    while offset < 3000:
        found = keyed.reader.read(offset, 100, MANY) or keyed.from_log(offset)
        assert 1 <= len(found) <= 100
        entries += found
        offset = entries[-1].last + 1
    assert [*range(3000)] == [entry.offset for entry in entries]
    assert 1 == len(translated)
    reading.reader.close()
    result = reading.later(keyed.reader.replay_later, [7, 8, 900, 2999])
    assert not isinstance(result, Exception)
    assert [7, 8, 900, 2999] == [entry.offset for entry in result]
    assert 2 == len(translated)


def test_offline_log_answers_with_its_error(reading: Reading) -> None:
    reading.append(message(b"a"))
    reading.reader._log.state.go_offline("a test")
    assert reading.reader.read(0, 100, MANY) is None
    assert isinstance(reading.later(reading.reader.read_later, 0, 100, MANY), StorageError)
    assert isinstance(reading.later(reading.reader.replay_later, [0]), StorageError)


def test_deleted_topic_answers_with_refusal(storage: Storage, reading: Reading) -> None:
    reading.append(message(b"a"))
    storage.manager.delete_topic("t")
    assert isinstance(reading.later(reading.reader.read_later, 0, 100, MANY), UnknownTopic)


def test_an_error_of_the_disk_is_answered(storage: Storage, reading: Reading) -> None:
    append_entry(reading.reader._log, message(b"a"))
    storage.disk.fail["read", ".log"] = 5
    assert isinstance(reading.later(reading.reader.read_later, 0, 100, MANY), StorageError)
    assert reading.reader._log.offline is not None


def test_a_damaged_batch_is_not_delivered(storage: Storage, reading: Reading) -> None:
    append_entry(reading.reader._log, message(b"a" * 100))
    path = next(storage.path().glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    assert isinstance(reading.later(reading.reader.read_later, 0, 100, MANY), StorageError)


def test_defect_is_answered_and_threads_continue(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    reading.append(message(b"a"))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("broker.pulsar.entries.log_entries.LogEntriesReader.replay", fail)
    assert isinstance(reading.later(reading.reader.replay_later, [3]), StorageError)
    assert 1 == len(reading.from_log(0))


def test_a_slow_read_holds_up_no_other(reading: Reading) -> None:
    readers = reading.readers
    reading.append(message(b"a"))
    slow, began, done = threading.Event(), threading.Event(), threading.Event()

    def wait_for_the_disk() -> None:
        began.set()
        assert slow.wait(30)

    crashes: list[BaseException] = []
    threads = [SystemThreads().spawn("reader", body, crashes.append) for body in readers.bodies]
    try:
        readers.submit(wait_for_the_disk)
        assert began.wait(30)
        for _ in range(10):
            done.clear()
            reading.reader.read_later(0, 1, MANY, lambda result: done.set())
            assert done.wait(30)
        slow.set()
    finally:
        slow.set()
        for thread in threads:
            thread.ask_to_stop()
        assert all(thread.stop(30) for thread in threads)
    assert [] == crashes


def test_jobs_of_one_line_leave_threads_for_others() -> None:
    readers = Readers(HandClock(), 4)
    busy, other = Line(), Line()
    done: list[str] = []
    for number in range(100):
        readers.submit(partial(done.append, f"busy {number}"), busy)
    readers.submit(partial(done.append, "other"), other)
    first = [readers.take(readers.bodies[0], 0) for _ in range(4)]
    assert [busy, other, busy, None] == [taken and taken[0] for taken in first]
    for taken in first:
        if taken is not None:
            readers.run(*taken)
    assert {"busy 0", "other", "busy 1"} == set(done)
    while readers.bodies[1].step(0):
        pass
    assert [f"busy {number}" for number in range(100)] == [one for one in done if one != "other"]
    assert (0, 0, False) == (busy.running, other.running, busy.ready)


def test_failed_job_frees_its_place_in_line() -> None:
    readers = Readers(HandClock(), 1)
    line, done = Line(), []

    def fail() -> None:
        raise ZeroDivisionError

    readers.submit(fail, line)
    readers.submit(lambda: done.append(1), line)
    assert readers.bodies[0].step(0)
    assert readers.bodies[0].step(0)
    assert not readers.bodies[0].step(0)
    assert [1] == done


def test_each_thread_ends_when_it_is_told_to() -> None:
    for _ in range(20):
        readers = Readers(HandClock(), 4)
        threads = [SystemThreads().spawn("reader", body, lambda error: None) for body in readers.bodies]
        assert all(thread.stop(30) for thread in threads)
