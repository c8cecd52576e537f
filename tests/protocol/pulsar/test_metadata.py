import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.pulsar.metadata import (
    MAX_METADATA_SIZE,
    check_batch,
    event_time_ms,
    is_batch,
    is_chunk,
    is_encrypted,
    message_key,
    messages_in,
    publish_time_ms,
    read_metadata,
    read_stored_metadata,
    sticky_key,
)
from protocol.pulsar.pulsar_pb2 import EncryptionKeys, KeyValue, MessageMetadata, SingleMessageMetadata
from tests.protocol.pulsar.strategies import metadata, mutated, refused_or_read


def of(**fields: object) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 7, "publish_time": 1} | fields)  # type: ignore[arg-type]


@given(metadata)
def test_metadata_reads_as_it_was_written(written: MessageMetadata) -> None:
    data = written.SerializeToString()
    assert written == read_metadata(memoryview(data)) == read_stored_metadata(data)


@given(mutated(metadata.map(lambda written: written.SerializeToString())))
def test_whatever_it_holds_every_question_has_an_answer(data: bytes) -> None:
    def ask(data: bytes) -> None:
        written = read_metadata(data)
        assert isinstance(sticky_key(written), bytes)
        assert isinstance(message_key(written), bytes | None)
        assert isinstance(is_batch(written) or is_chunk(written) or is_encrypted(written), bool)
        assert 0 <= publish_time_ms(written) < 2**63 and 0 <= event_time_ms(written) < 2**63
        assert check_batch(written, 100, 1000) == messages_in(written) >= 1

    refused_or_read(ask, data)


@pytest.mark.parametrize("missing", ["producer_name", "sequence_id", "publish_time"])
def test_metadata_unreadable_to_clients_is_not_accepted(missing: str) -> None:
    fields = {"producer_name": b"\x0a\x01p", "sequence_id": b"\x10\x07", "publish_time": b"\x18\x01"}
    assert of() == read_metadata(b"".join(fields.values()))
    del fields[missing]
    data = b"".join(fields.values())
    with pytest.raises(ProtocolError, match="required"):
        read_metadata(data)


def test_a_property_without_its_value_is_not_accepted() -> None:
    data = of(properties=[KeyValue(key="a", value="b")]).SerializeToString()
    assert data.endswith(b"\x22\x06\x0a\x01a\x12\x01b")
    with pytest.raises(ProtocolError, match="required"):
        read_metadata(data[:-8] + b"\x22\x03\x0a\x01a")


def test_metadata_size_is_bounded() -> None:
    rest = len(of(properties=[KeyValue(key="a", value="x" * (1 << 20))]).SerializeToString()) - (1 << 20)
    largest = of(properties=[KeyValue(key="a", value="x" * (MAX_METADATA_SIZE - rest))])
    assert largest == read_metadata(largest.SerializeToString())
    with pytest.raises(ProtocolError, match="at most 1048576 are allowed"):
        read_metadata(largest.SerializeToString() + b"\x20\x00")


def test_a_batch_of_one_is_a_batch() -> None:
    assert not is_batch(of())
    assert is_batch(of(num_messages_in_batch=1))
    assert is_batch(of(num_messages_in_batch=2))


@pytest.mark.parametrize(
    ("fields", "payload_size", "most"),
    [
        ({}, 60, 10),
        ({"uncompressed_size": 6000}, 60, 10),  # without a codec the payload's size counts
        ({"uncompressed_size": 6000, "compression": 1}, 60, 1000),
        ({"uncompressed_size": 2**32 - 1, "compression": 1}, 60, 10_000),  # no larger than a message may be
        ({"uncompressed_size": 0, "compression": 3}, 60, 10),
        ({"uncompressed_size": 6000, "encryption_keys": [EncryptionKeys(key="k", value=b"")]}, 60, 1000),
    ],
)
def test_batch_has_no_more_messages_than_payload_allows(
    fields: dict[str, object], payload_size: int, most: int
) -> None:
    assert most == check_batch(of(num_messages_in_batch=most, **fields), payload_size, 60_000)
    for lie in (most + 1, 2**31 - 1, 0, -1, -(2**31)):
        with pytest.raises(ProtocolError, match=f"a batch of {lie} messages"):
            check_batch(of(num_messages_in_batch=lie, **fields), payload_size, 60_000)


def test_unbatched_message_may_be_empty() -> None:
    assert 1 == check_batch(of(), 0, 1000)
    assert 1 == check_batch(of(num_messages_in_batch=1), 6, 1000)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ordering_key": b"o", "partition_key": "k"}, b"o"),
        ({"ordering_key": b"", "partition_key": "k"}, b""),
        ({"partition_key": "k\u00e9"}, b"k\xc3\xa9"),
        ({"partition_key": "AP8=", "partition_key_b64_encoded": True}, b"\x00\xff"),
        ({"partition_key": "AP8", "partition_key_b64_encoded": True}, b"\x00\xff"),
        ({"partition_key": "A", "partition_key_b64_encoded": True}, b"A"),  # no base64 at all
        ({"partition_key": "\u00e9", "partition_key_b64_encoded": True}, "\u00e9".encode()),
        ({"partition_key": ""}, b""),
        ({}, b"p-7"),
        ({"sequence_id": 2**64 - 1}, b"p--1"),
    ],
)
def test_the_key_that_orders(fields: dict[str, object], expected: bytes) -> None:
    assert expected == sticky_key(of(**fields))


def test_messages_without_key_and_producer_share_a_key() -> None:
    assert b"NONE_KEY" == sticky_key(read_stored_metadata(b""))


def test_message_key_may_be_missing_null_or_empty() -> None:
    assert message_key(of()) is None
    assert message_key(of(partition_key="k", null_partition_key=True)) is None
    assert message_key(of(partition_key="")) == b""
    assert message_key(SingleMessageMetadata(payload_size=0, partition_key="k")) == b"k"


def test_a_time_beyond_kafkas_becomes_the_last_one() -> None:
    assert 2**63 - 1 == publish_time_ms(of(publish_time=2**64 - 1)) == event_time_ms(of(event_time=2**63))
    assert (1, 0) == (publish_time_ms(of()), event_time_ms(of()))


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_codec_that_nobody_knows_is_told(codec: int) -> None:
    assert codec == read_metadata(of(compression=codec).SerializeToString()).compression
