"""A file in the object store reads as the file that was uploaded."""

import errno
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.metadata.catalogue import RemoteFile
from broker.runtime.disk import FileRegion, SystemDisk, warm_all
from broker.storage.tier.cache import ChunkCache
from broker.storage.tier.remote_view import RemoteView, view_of
from tests.storage.tier.helpers import CHUNK, Store

DATA = bytes(range(251)) * 40


@pytest.fixture(scope="module")
def store() -> Store:
    store = Store()
    store.put("segments/a", [DATA], len(DATA))
    return store


@pytest.fixture(scope="module")
def cache(store: Store) -> Iterator[ChunkCache]:
    with tempfile.TemporaryDirectory() as directory:
        cache = ChunkCache(SystemDisk(), directory, store, 2 * CHUNK, CHUNK)
        cache.start()
        yield cache


def view(cache: ChunkCache, position: int = 0, size: int = len(DATA)) -> RemoteView:
    return RemoteView("/data/t-0/0.log", RemoteFile("t-0/0.log", "segments/a", position, size), len(DATA), cache)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 6000), st.integers(0, 6000))
def test_reads_are_those_of_file(cache: ChunkCache, position: int, size: int, offset: int, length: int) -> None:
    file = view(cache, position, size)
    expected = DATA[position : position + size][offset : offset + length]
    assert expected == file.pread(length, offset)
    assert size == file.size()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 4000), st.integers(1, 4000))
def test_regions_that_are_sent_are_those_of_file(cache: ChunkCache, position: int, offset: int, length: int) -> None:
    """The cache has room for two pieces, so some are evicted before they are sent."""
    regions = FileRegion(view(cache, position, 5000), offset, min(length, 5000 - offset)).warm()
    assert DATA[position : position + 5000][offset : offset + length] == b"".join(region.read() for region in regions)
    assert not any(region.file.is_remote for region in regions)
    assert all(region.file.fileno() > 0 for region in regions)


def test_regions_are_warmed_in_order(cache: ChunkCache) -> None:
    file = view(cache)
    parts = warm_all([b"head", FileRegion(file, 10, 2500), b"middle", FileRegion(file, 3, 5)])
    sent = b"".join(part.read() if isinstance(part, FileRegion) else part for part in parts)
    assert b"head" + DATA[10:2510] + b"middle" + DATA[3:8] == sent


def test_it_cannot_be_changed_or_sent(cache: ChunkCache) -> None:
    file = view(cache)
    for change in (lambda: file.pwrite([b"x"], 0), lambda: file.truncate(0), file.fileno):
        with pytest.raises(OSError) as caught:
            change()
        assert errno.EROFS == caught.value.errno
    file.sync()
    file.begin_sync(0, 1)
    file.close()
    assert DATA[:5] == file.pread(5, 0)


def test_it_is_never_in_memory(cache: ChunkCache) -> None:
    file = view(cache)
    file.pread(10, 0)
    assert not file.is_resident(0, 10)


def test_a_reader_that_goes_on_has_next_pieces_fetched(cache: ChunkCache, store: Store) -> None:
    file = view(cache)
    reader = cache.new_readers(1)[0]
    try:
        cache._evict(0)
        file.bring(5000, 100)
        assert not reader.step(0), "it has just begun in the middle"
        file.bring(5100, 100)
        steps = 0
        while reader.step(0):
            steps += 1
        assert 3 == steps
    finally:
        cache.readers = []


def test_other_files_are_no_views(cache: ChunkCache, tmp_path: object) -> None:
    assert view_of(SystemDisk().open(f"{tmp_path}/f", create=True)) is None
    file = view(cache)
    assert file is view_of(file)
    assert file.key is None
