import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.pulsar.payload import (
    CODEC_NAMES,
    build_batch,
    compress,
    decompressed,
    is_readable,
    single_metadata,
    split_batch,
)
from protocol.pulsar.pulsar_pb2 import EncryptionKeys, KeyValue, MessageMetadata, SingleMessageMetadata
from tests.protocol.pulsar.strategies import properties, refused_or_read, texts, uint64s

singles = st.builds(
    SingleMessageMetadata,
    payload_size=st.just(0),
    properties=properties,
    partition_key=st.none() | texts,
    event_time=st.none() | uint64s,
    compacted_out=st.none() | st.booleans(),
)
batches = st.lists(st.tuples(singles, st.binary(max_size=40)), min_size=1, max_size=5)


def payload_of(messages: list[tuple[SingleMessageMetadata, bytes]]) -> bytearray:
    for single, payload in messages:
        single.payload_size = len(payload)
    return build_batch((single.SerializeToString(), payload) for single, payload in messages)


@given(batches)
def test_a_batch_splits_as_it_was_built(messages: list[tuple[SingleMessageMetadata, bytes]]) -> None:
    assert messages == [
        (single, bytes(payload)) for single, payload in split_batch(payload_of(messages), len(messages))
    ]


@given(batches, st.data())
def test_changed_bytes_are_split_or_refused(
    messages: list[tuple[SingleMessageMetadata, bytes]], data: st.DataObject
) -> None:
    payload = payload_of(messages)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    count = data.draw(st.integers(-1, 8))
    refused_or_read(lambda changed: list(split_batch(changed, count)), bytes(payload))


@given(batches, st.data())
def test_a_batch_that_is_cut_off_is_refused(
    messages: list[tuple[SingleMessageMetadata, bytes]], data: st.DataObject
) -> None:
    payload = payload_of(messages)
    with pytest.raises(ProtocolError):
        list(split_batch(payload[: data.draw(st.integers(0, len(payload) - 1))], len(messages)))


@pytest.mark.parametrize(
    ("payload", "count", "message"),
    [
        (b"", 0, "a batch of 0 messages"),
        (bytes(12), 3, "a batch of 3 messages in 12 bytes"),
        (b"", 2**31 - 1, "a batch of 2147483647 messages"),
        (b"\xff\xff\xff\xff" + bytes(8), 1, "metadata of 4294967295 bytes"),
        (b"\x00\x00\x00\x02\x18\x05xx", 1, "a message of 5 bytes where 2 are left"),
        (b"\x00\x00\x00\x0b\x18" + b"\xff" * 9 + b"\x01xx", 1, "a message of -1 bytes"),
        (b"\x00\x00\x00\x02\x20\x01xx", 1, "without a required field"),
    ],
)
def test_lies_are_refused(payload: bytes, count: int, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        list(split_batch(payload, count))


@given(
    st.integers(0, 2**31 - 1),
    st.lists(st.tuples(texts, texts), max_size=3),
    st.none() | texts,
    st.booleans(),
    st.just(0) | uint64s,
    st.booleans(),
)
def test_single_metadata_equals_protobuf_encoding(
    size: int, pairs: list[tuple[str, str]], key: str | None, is_base64: bool, event_time: int, null: bool
) -> None:
    expected = SingleMessageMetadata(
        payload_size=size,
        properties=[KeyValue(key=name, value=value) for name, value in pairs],
        partition_key=key,
        partition_key_b64_encoded=is_base64 or None,
        event_time=event_time or None,
        null_value=null or None,
    )
    assert expected.SerializeToString() == single_metadata(size, pairs, key, is_base64, event_time, null)


@pytest.mark.parametrize("codec", sorted(CODEC_NAMES))
def test_payload_is_decompressed_to_the_stated_size(codec: int) -> None:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, compression=codec, uncompressed_size=1000
    )
    assert bytes(1000) == decompressed(metadata, compress(codec, bytes(1000)))
    if codec:
        with pytest.raises(ProtocolError, match="where 999 are read"):
            decompressed(metadata, compress(codec, bytes(1000)), 999)


def test_encrypted_and_chunked_payloads_are_not_readable() -> None:
    assert is_readable(MessageMetadata(num_chunks_from_msg=1))
    assert not is_readable(MessageMetadata(num_chunks_from_msg=2))
    assert not is_readable(MessageMetadata(encryption_keys=[EncryptionKeys(key="k", value=b"v")]))
