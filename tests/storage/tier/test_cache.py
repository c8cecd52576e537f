"""The cache of pieces: one request for each, bounded, and never other bytes than the object's."""

import threading
from pathlib import Path

import pytest

from broker.metadata.catalogue import RemoteFile
from broker.runtime.disk import File, SystemDisk, Unreachable
from broker.storage.tier.cache import ChunkCache
from tests.storage.tier.helpers import CHUNK, Store
from tests.waiting import wait_for

DATA = bytes(range(250)) * 40
FILE = RemoteFile("t-0/0.log", "segments/a", 0, len(DATA))


@pytest.fixture
def store() -> Store:
    store = Store()
    store.put(FILE.object, [DATA], len(DATA))
    return store


@pytest.fixture
def cache(store: Store, tmp_path: Path) -> ChunkCache:
    cache = ChunkCache(SystemDisk(), str(tmp_path / "cache"), store, 3 * CHUNK, CHUNK)
    cache.start()
    return cache


def read(cache: ChunkCache, number: int) -> bytes:
    return content(cache.open(FILE, len(DATA), number))


def content(file: File) -> bytes:
    return file.pread(CHUNK + 1, 0)


def on_disk(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())


def test_pieces_are_those_of_object_and_asked_for_once(cache: ChunkCache, store: Store) -> None:
    for _ in range(2):
        assert DATA[2 * CHUNK : 3 * CHUNK] == read(cache, 2)
    assert [(FILE.object, 2 * CHUNK, CHUNK)] == store.gets
    assert (1, CHUNK, 0, 1) == (cache.counts.requests, cache.counts.bytes, cache.counts.errors, cache.counts.hits)


def test_last_piece_is_shorter(store: Store, tmp_path: Path) -> None:
    cache = ChunkCache(SystemDisk(), str(tmp_path / "cache"), store, 1 << 20, 3000)
    cache.start()
    assert DATA[9000:] == content(cache.open(FILE, len(DATA), 3))


def test_disk_has_no_more_than_limit(cache: ChunkCache, store: Store, tmp_path: Path) -> None:
    for _ in range(2):
        for number in range(10):
            assert DATA[number * CHUNK : (number + 1) * CHUNK] == read(cache, number)
            assert on_disk(tmp_path) == cache.kept_bytes <= 3 * CHUNK
    assert 20 == len(store.gets)


def test_least_recently_used_piece_goes_first(cache: ChunkCache, store: Store) -> None:
    for number in (0, 1, 2, 0, 3, 0):
        read(cache, number)
    assert 4 == len(store.gets)
    read(cache, 1)
    assert 5 == len(store.gets)


def test_evicted_piece_keeps_its_bytes_for_who_has_opened_it(cache: ChunkCache) -> None:
    file = cache.open(FILE, len(DATA), 0)
    for number in range(1, 10):
        read(cache, number)
    assert DATA[:CHUNK] == content(file)


def test_start_removes_what_was_there(cache: ChunkCache, store: Store, tmp_path: Path) -> None:
    read(cache, 0)
    cache = ChunkCache(SystemDisk(), str(tmp_path / "cache"), store, 3 * CHUNK, CHUNK)
    cache.start()
    assert 0 == on_disk(tmp_path)
    read(cache, 0)
    assert 2 == len(store.gets)


def test_file_that_somebody_removed_is_fetched_again(cache: ChunkCache, store: Store, tmp_path: Path) -> None:
    read(cache, 0)
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    assert DATA[:CHUNK] == read(cache, 0)
    assert 2 == len(store.gets)


def test_many_who_want_a_piece_wait_for_one_request(cache: ChunkCache, store: Store) -> None:
    asked, go = threading.Event(), threading.Event()

    def wait(operation: str, key: str) -> None:
        asked.set()
        assert go.wait(30)

    store.before = wait
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(read(cache, 0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert asked.wait(30)
    go.set()
    for thread in threads:
        thread.join(30)
    assert [DATA[:CHUNK]] * 8 == found
    assert 1 == len(store.gets)


def test_error_goes_to_all_who_wait_and_is_not_remembered(cache: ChunkCache, store: Store) -> None:
    asked, go = threading.Event(), threading.Event()

    def wait(operation: str, key: str) -> None:
        asked.set()
        assert go.wait(30)

    store.before, store.down = wait, True
    failed: list[Unreachable] = []

    def fail() -> None:
        try:
            read(cache, 0)
        except Unreachable as error:
            failed.append(error)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert asked.wait(30)
    go.set()
    for thread in threads:
        thread.join(30)
    assert 4 == len(failed)
    assert all("t-0/0.log" in str(error) and "segments/a" in str(error) for error in failed)
    store.down = False
    assert DATA[:CHUNK] == read(cache, 0)


def test_object_that_is_missing_once_is_asked_for_again(cache: ChunkCache, store: Store) -> None:
    """As behind a gateway that has just seen nothing."""
    store.delete([FILE.object])

    def bring_back(operation: str, key: str) -> None:
        if operation == "get" and len(store.gets) == 2:
            store.put(FILE.object, [DATA], len(DATA))

    store.before = bring_back
    assert DATA[:CHUNK] == read(cache, 0)


def test_object_that_is_lost_or_cut_is_named(cache: ChunkCache, store: Store) -> None:
    store.cut(FILE.object, 1500)
    assert DATA[:CHUNK] == read(cache, 0)
    with pytest.raises(Unreachable, match=r"t-0/0.log .*segments/a.* ends before byte 2000"):
        read(cache, 1)
    store.delete([FILE.object])
    with pytest.raises(Unreachable, match=r"t-0/0.log is lost: .*segments/a"):
        read(cache, 2)
    assert 2 == cache.counts.errors


def test_pieces_are_fetched_ahead(cache: ChunkCache, store: Store) -> None:
    reader = cache.new_readers(1)[0]
    for number in (1, 2, 99):
        cache.ahead(FILE, len(DATA), number)
    while reader.step(0):
        pass
    assert [CHUNK, 2 * CHUNK] == [offset for _, offset, _ in store.gets]
    read(cache, 1)
    read(cache, 2)
    assert 2 == len(store.gets)


def test_errors_of_fetching_ahead_are_those_of_nobody(cache: ChunkCache, store: Store) -> None:
    reader = cache.new_readers(1)[0]
    store.down = True
    cache.ahead(FILE, len(DATA), 1)
    while reader.step(0):
        pass
    store.down = False
    assert DATA[CHUNK : 2 * CHUNK] == read(cache, 1)


def test_what_is_fetched_ahead_is_bounded(cache: ChunkCache, store: Store) -> None:
    reader = cache.new_readers(1)[0]
    big = RemoteFile("t-0/1.log", "segments/b", 0, 1000 * CHUNK)
    for number in range(1000):
        cache.ahead(big, 1000 * CHUNK, number)
    steps = 0
    while reader.step(0):
        steps += 1
    assert 64 == steps
    cache.ahead(big, 1000 * CHUNK, 0)
    assert reader.step(0)


def test_many_threads_read_a_cache_that_is_too_small(cache: ChunkCache) -> None:
    wrong: list[int] = []

    def go_round(start: int) -> None:
        for step in range(60):
            number = (start + step * 3) % 10
            if read(cache, number) != DATA[number * CHUNK : (number + 1) * CHUNK]:
                wrong.append(number)

    threads = [threading.Thread(target=go_round, args=(start,)) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == wrong
    wait_for(lambda: cache.kept_bytes <= 3 * CHUNK)
