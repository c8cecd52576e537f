"""Any log of entries and record batches, fetched in any steps: every record once, in order, and never more than was asked for."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.kafka import fetches
from broker.runtime.disk import FileRegion
from protocol.kafka.records.batch import batches, check_crc
from protocol.kafka.records.records import records
from protocol.pulsar.pulsar_pb2 import CompressionType
from tests.pulsar.entries.messages import append_entry, batch_of, compressed_batch_of, message
from tests.storage.conftest import storage as storage
from tests.storage.helpers import Storage, append

values = st.binary(max_size=30) | st.sampled_from([b"x" * 3000, b"y" * 300_000])
writes = st.lists(
    st.tuples(
        st.sampled_from(["kafka", "message", "batch", "compressed"]),
        st.lists(values, min_size=1, max_size=4),
        st.integers(0, 4),
    ),
    max_size=12,
)


def data_of(parts: list[Any]) -> bytes:
    return b"".join(
        part.file.pread(part.size, part.offset) if isinstance(part, FileRegion) else bytes(part) for part in parts
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    writes=writes,
    most=st.sampled_from([1, 500, 5000, 400_000, 1 << 20]),
    segment_bytes=st.sampled_from([2_000_000, 1 << 30]),
    restart=st.booleans(),
)
def test_any_log_is_fetched_whole(
    storage: Storage, writes: list[tuple[str, list[bytes], int]], most: int, segment_bytes: int, restart: bool
) -> None:
    if storage.manager.get("t", 0):
        storage.manager.delete_topic("t")
    log = storage.create(segment_bytes=segment_bytes, max_message_bytes=2_000_000)
    expected: list[tuple[int, bytes]] = []
    for kind, payloads, codec in writes:
        offset = log.log_end_offset
        if kind == "message":
            payloads = payloads[:1]
            append_entry(log, message(payloads[0]))
        elif kind == "batch":
            append_entry(log, batch_of(*payloads), len(payloads))
        elif kind == "compressed":
            codec = CompressionType.values()[codec]
            append_entry(log, compressed_batch_of(codec, *payloads), len(payloads))
        else:
            append(log, *payloads, compression=codec)
        expected += [(offset + number, payload) for number, payload in enumerate(payloads)]
    if restart:
        storage.crash()
        log = storage.log()
    found: list[tuple[int, bytes | None]] = []
    offset = 0
    while offset < log.high_watermark:
        read = log.read(offset, most)
        translated = fetches.translate(log, read.regions, most, at_least_one=True)
        data = data_of(translated.parts)
        assert len(data) == translated.size
        headers = [header for _, header in batches(data)]
        assert len(data) <= most or len(headers) == 1
        for position, header in batches(data):
            check_crc(memoryview(data), position, header)
            assert not header.is_entry
            found += [(record.offset, record.value) for record in records(data, position) if record.offset >= offset]
        assert translated.whole or headers[-1].next_offset < log.high_watermark
        offset = headers[-1].next_offset
    assert expected == found


@pytest.mark.parametrize("most", [0, -5])
def test_without_room_nothing_is_read(storage: Storage, most: int) -> None:
    log = storage.create()
    append_entry(log, message(b"a"))
    regions = log.read(0, 1000).regions
    storage.disk.fail["read", ".log"] = 5
    assert ([], 0, False) == fetches.translate(log, regions, most, at_least_one=False)
    assert ([], 0, True) == fetches.translate(log, [], most, at_least_one=False)
