"""Entries made of messages and of record batches."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar import entry as entry_factory
from broker.pulsar.entry import Chunk, Entry
from broker.runtime.disk import FileRegion
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import read_header, stamp
from protocol.kafka.records.entry import build_entry
from protocol.pulsar.murmur3 import key_hash
from tests.pulsar.entries.messages import batch_of, message
from tests.storage.helpers import NOW_MS


def made_of(stored: bytes, messages: int = 1, offset: int = 7) -> Entry:
    batch = build_entry(stored, messages, NOW_MS)
    stamp(batch, 0, offset, 0)
    entry = entry_factory.from_batch(memoryview(batch), read_header(batch))
    assert (offset, messages, stored, len(stored)) == (entry.offset, entry.messages, bytes(entry.data), entry.size)  # type: ignore[arg-type]  # a view
    return entry


def test_entry_data_is_a_view_of_the_batch() -> None:
    batch = build_entry(message(b"x"), 1, NOW_MS)
    entry = entry_factory.from_batch(memoryview(batch), read_header(batch))
    assert isinstance(entry.data, memoryview)
    assert entry.data.obj is batch


def test_what_dispatchers_ask_for_comes_from_the_metadata() -> None:
    plain = made_of(message(b"x", publish_time=5))
    assert (0, None, False) == (plain.deliver_at_ms, plain.chunk, plain.marker)
    assert 99 == made_of(message(b"x", deliver_at_time=99)).deliver_at_ms
    assert made_of(message(b"x", marker_type=1)).marker
    chunk = made_of(message(b"x", uuid="u", chunk_id=2, num_chunks_from_msg=3)).chunk
    assert Chunk(b"u", 2, 3) == chunk


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({}, b"p-0"),
    ],
)
def test_hash_is_of_ordering_key(fields: dict[str, Any], key: bytes) -> None:
    entry = made_of(batch_of(b"x", b"y", **fields), 2)
    assert key_hash(key) == entry.sticky_hash == entry.sticky_hash


def test_a_number_is_taken_as_the_hash() -> None:
    assert 42 == Entry(0, 1, 0, b"", sticky_hash=42).sticky_hash


@given(payload=st.binary(max_size=200), key=st.text(max_size=50), cut=st.integers(0, 400))
def test_batch_prefix_with_metadata_is_enough(payload: bytes, key: str, cut: int) -> None:
    stored = message(payload, partition_key=key)
    batch = memoryview(build_entry(stored, 3, NOW_MS))
    header = read_header(batch)
    region: Any = FileRegion(None, 1000, len(batch))  # type: ignore[arg-type]  # nobody reads it
    needed = entry_factory.prefix_size(batch, header)
    whole = entry_factory.from_batch(batch, header)
    entry = entry_factory.from_prefix(batch[: needed + cut], header, region)
    assert isinstance(entry.data, FileRegion)
    assert (bytes(batch[entry.data.offset - 1000 :][: entry.data.size])) == stored
    assert (3, whole.sticky_hash, len(stored)) == (entry.messages, entry.sticky_hash, entry.size)


@given(data=st.binary(max_size=100))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    batch = memoryview(build_entry(data, 1, NOW_MS))
    header = read_header(batch)
    try:
        entry_factory.from_batch(batch, header)
        entry_factory.from_prefix(batch[: entry_factory.prefix_size(batch, header)], header, FileRegion(None, 0, 0))  # type: ignore[arg-type]  # nobody reads it
    except ProtocolError:
        pass
