from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.runtime.disk import FileRegion
from broker.storage.log.inspection import walk
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import HEADER_SIZE, BatchHeader, batches
from protocol.kafka.records.entry import build_entry


class Bytes:
    """A file in memory that counts what is read."""

    path = "bytes"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read = 0

    def pread(self, size: int, offset: int) -> bytes:
        found = self.data[offset : offset + size]
        self.read += len(found)
        return found


def region_of(file: Any, offset: int, size: int) -> FileRegion:
    return FileRegion(file, offset, size)


logs = st.lists(st.integers(0, 400), max_size=8).map(lambda sizes: [bytes(build_entry(b"x" * s, 1, 5)) for s in sizes])


@given(logs, st.integers(HEADER_SIZE, 900), st.integers(0, 500), st.binary(max_size=9), st.binary(max_size=9))
def test_walk_yields_each_batch_once_with_needed_bytes(
    log: list[bytes], chunk: int, least: int, before: bytes, after: bytes
) -> None:
    data = b"".join(log)
    region = region_of(Bytes(before + data + after), len(before), len(data))

    def needed(header: BatchHeader) -> int:
        return min(least, header.size)

    found = list(walk(region, chunk, needed))
    assert [(len(before) + at, header) for at, header in batches(memoryview(data))] == [
        (position, header) for header, position, _ in found
    ]
    for (header, _, part), whole in zip(found, log, strict=True):
        assert whole.startswith(part)
        assert len(part) >= needed(header)


def test_what_is_not_needed_is_not_read() -> None:
    data = bytes(build_entry(b"x" * 100_000, 1, 5)) * 5
    file = Bytes(data)
    assert 5 == len(list(walk(region_of(file, 0, len(data)), 1000, lambda header: 0)))
    assert file.read == 5000


@given(logs.filter(bool), st.integers(HEADER_SIZE, 900), st.data())
def test_region_or_file_that_ends_early_is_damaged(log: list[bytes], chunk: int, data: st.DataObject) -> None:
    whole = b"".join(log)
    cut = data.draw(st.integers(len(whole) - len(log[-1]) + 1, len(whole) - 1))
    for file, size in ((Bytes(whole), cut), (Bytes(whole[:cut]), len(whole))):
        with pytest.raises(ProtocolError):
            list(walk(region_of(file, 0, size), chunk, lambda header: header.size))


def test_other_bytes_are_no_batch() -> None:
    with pytest.raises(ProtocolError, match="no record batch at position 0"):
        list(walk(region_of(Bytes(bytes(100)), 0, 100), 1000, lambda header: header.size))
