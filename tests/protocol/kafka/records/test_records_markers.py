import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import check_crc, read_header
from protocol.kafka.records.records import Marker, build_marker, parse_marker, read_marker, records


@given(
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**15 - 1),
    commit=st.booleans(),
    coordinator_epoch=st.integers(0, 2**31 - 1),
)
def test_a_marker_says_what_it_was_built_from(
    producer_id: int, epoch: int, commit: bool, coordinator_epoch: int
) -> None:
    batch = build_marker(producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp_ms=1_000)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert (producer_id, epoch, -1, 1) == header[9:]
    assert header.is_control and header.is_transactional
    assert Marker(commit, coordinator_epoch) == read_marker(batch)


@pytest.mark.parametrize(("commit", "kind"), [(False, 0), (True, 1)])
def test_key_and_value_are_kafkas(commit: bool, kind: int) -> None:
    (record,) = records(build_marker(1, 0, commit=commit, coordinator_epoch=7, timestamp_ms=1_000))
    assert bytes([0, 0, 0, kind]) == record.key
    assert bytes([0, 0, 0, 0, 0, 7]) == record.value


def test_other_control_records_are_no_markers() -> None:
    assert parse_marker(b"\0\0\0\2", b"the leader changed") is None


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\0\0\0", b""), (b"\xff\xff\0\1", b"\0" * 6), (b"\0\0\0\1", b"\0" * 5)]
)
def test_what_kafka_would_not_write_is_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_marker(key, value)
