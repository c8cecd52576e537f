import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import check_crc, read_header
from protocol.kafka.records.records import Record, records
from protocol.pulsar.payload import CODEC_NAMES, LZ4, ZSTD, build_batch, compress
from protocol.pulsar.pulsar_pb2 import EncryptionKeys, KeyValue, MessageMetadata, SingleMessageMetadata
from protocol.pulsar.sends import write_stored_part
from protocol.translation import to_kafka as module
from protocol.translation.to_kafka import to_kafka
from tests.protocol.pulsar.strategies import refused_or_read, texts

NOW = 1_700_000_000_000
times = st.integers(0, 2**63 - 1)
pairs = st.lists(st.tuples(texts, texts), max_size=3)
singles = st.tuples(st.none() | texts, st.none() | st.binary(max_size=40), pairs, st.just(0) | times)
codecs = st.sampled_from(sorted(CODEC_NAMES))


def metadata_of(**fields: object) -> MessageMetadata:
    values = {"producer_name": "p", "sequence_id": 7, "publish_time": NOW} | fields
    return MessageMetadata(**{name: value for name, value in values.items() if value is not None})  # type: ignore[arg-type]


def stored_of(metadata: MessageMetadata, payload: bytes, codec: int = 0) -> bytes:
    if codec:
        metadata.compression = codec
        metadata.uncompressed_size = len(payload)
        payload = compress(codec, payload)
    return write_stored_part(metadata.SerializeToString(), payload)


def batch_of(singles: list[SingleMessageMetadata], payloads: list[bytes]) -> bytes:
    for single, payload in zip(singles, payloads, strict=True):
        single.payload_size = len(payload)
    return bytes(build_batch((s.SerializeToString(), p) for s, p in zip(singles, payloads, strict=True)))


def properties(pairs: list[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in pairs]


def translated(stored: bytes, base_offset: int, messages: int, **settings: int) -> list[Record]:
    batch = to_kafka(stored, base_offset, messages, **settings)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert (base_offset, base_offset + messages - 1) == (header.base_offset, header.last_offset)
    assert header.attributes & ~7 == 0
    return list(records(batch))


@given(singles, times, codecs, st.integers(0, 2**62), st.integers(0, 4))
def test_a_single_message_becomes_a_record(single: tuple, publish: int, codec: int, offset: int, result: int) -> None:
    key, value, headers, event_time = single
    metadata = metadata_of(
        publish_time=publish,
        partition_key=key,
        null_value=value is None or None,
        properties=properties(headers),
        event_time=event_time or None,
    )
    (record,) = translated(stored_of(metadata, value or b"", codec), offset, 1, compression=result)
    expected_headers = [(name, text.encode()) for name, text in headers]
    expected_key = None if key is None else key.encode()
    assert (offset, event_time or publish, expected_key, value, expected_headers) == record


@given(st.lists(st.tuples(singles, st.booleans()), min_size=1, max_size=6), times, codecs)
def test_batched_message_becomes_record_at_its_offset(
    messages: list[tuple[tuple, bool]], publish: int, codec: int
) -> None:
    payload = batch_of(
        [
            SingleMessageMetadata(
                partition_key=key,
                null_value=value is None,
                properties=properties(headers),
                event_time=event_time,
                compacted_out=removed,
            )
            for (key, value, headers, event_time), removed in messages
        ],
        [value or b"" for (_, value, _, _), _ in messages],
    )
    metadata = metadata_of(publish_time=publish, num_messages_in_batch=len(messages))
    expected = [
        (
            1000 + index,
            event_time or publish,
            None if key is None else key.encode(),
            value,
            [(name, text.encode()) for name, text in headers],
        )
        for index, ((key, value, headers, event_time), removed) in enumerate(messages)
        if not removed
    ]
    assert expected == translated(stored_of(metadata, payload, codec), 1000, len(messages))


def test_kafkas_own_reader_reads_it() -> None:
    payload = batch_of([SingleMessageMetadata(partition_key=key) for key in "ab"], [b"1", b"2"])
    batch = to_kafka(stored_of(metadata_of(num_messages_in_batch=2), payload, ZSTD), 40, 2, compression=4)
    read = DefaultRecordBatch(bytes(batch))
    assert read.validate_crc()
    assert [(40, NOW, b"a", b"1"), (41, NOW, b"b", b"2")] == [(r.offset, r.timestamp, r.key, r.value) for r in read]


def test_a_key_in_base64_becomes_its_bytes() -> None:
    metadata = metadata_of(partition_key="AP8=", partition_key_b64_encoded=True)
    assert [b"\x00\xff"] == [record.key for record in translated(stored_of(metadata, b""), 0, 1)]


def test_encrypted_batch_is_one_record_with_decryption_headers() -> None:
    metadata = metadata_of(
        num_messages_in_batch=3,
        compression=LZ4,
        uncompressed_size=99,
        encryption_keys=[EncryptionKeys(key="rsa", value=b"\x01\x02")],
        encryption_algo="AES",
        encryption_param=b"iv",
        properties=properties([("a", "b")]),
    )
    (record,) = translated(stored_of(metadata, b"\xffsecret"), 10, 3)
    assert (10, NOW, None, b"\xffsecret") == record[:4]
    assert record.headers == [
        ("a", b"b"),
        ("pulsar.encryption.algorithm", b"AES"),
        ("pulsar.encryption.parameter", b"iv"),
        ("pulsar.encryption.key.rsa", b"\x01\x02"),
        ("pulsar.compression", b"lz4"),
        ("pulsar.uncompressed_size", b"99"),
        ("pulsar.batch", b"3"),
    ]


def test_chunk_is_a_record_that_names_its_part() -> None:
    metadata = metadata_of(
        partition_key="k", uuid="u-1", chunk_id=1, num_chunks_from_msg=3, total_chunk_msg_size=900, compression=ZSTD
    )
    (record,) = translated(stored_of(metadata, b"part"), 10, 1)
    assert (10, NOW, b"k", b"part") == record[:4]
    assert record.headers == [
        ("pulsar.chunk.uuid", b"u-1"),
        ("pulsar.chunk.id", b"1"),
        ("pulsar.chunk.count", b"3"),
        ("pulsar.chunk.size", b"900"),
        ("pulsar.compression", b"zstd"),
        ("pulsar.uncompressed_size", b"0"),
    ]


@pytest.mark.parametrize(
    ("fields", "payload", "why"),
    [
        ({"compression": 9, "uncompressed_size": 4}, b"data", b"no codec has the number 9"),
        ({"compression": LZ4, "uncompressed_size": 1 << 31}, b"data", b"compressed data of 2147483648 bytes"),
        ({"compression": ZSTD, "uncompressed_size": 50}, b"data", b"bad zstd data"),
        ({"num_messages_in_batch": 2}, b"data" * 9, b"metadata of 1684108385 bytes"),
        ({"num_messages_in_batch": 3}, b"data" * 9, b"3 messages at 2 offsets"),
    ],
)
def test_unreadable_entry_is_one_record_with_the_reason(fields: dict[str, int], payload: bytes, why: bytes) -> None:
    messages = 2 if "num_messages_in_batch" in fields else 1
    (record,) = translated(stored_of(metadata_of(**fields), payload), 10, messages)
    assert (10, payload) == (record.offset, record.value)
    (reason,) = [value for name, value in record.headers if name == "pulsar.unreadable"]
    assert reason is not None and reason.startswith(why)


def test_truncated_batch_leaves_no_record_of_its_beginning() -> None:
    payload = batch_of([SingleMessageMetadata(), SingleMessageMetadata()], [b"12345", b"12345"])
    (record,) = translated(stored_of(metadata_of(num_messages_in_batch=2), payload[:-1]), 10, 2)
    assert payload[:-1] == record.value


def test_bomb_becomes_a_record_of_its_compressed_bytes() -> None:
    bomb = stored_of(metadata_of(), bytes(10 << 20), LZ4)
    (record,) = translated(bomb, 0, 1, max_size=1 << 20)
    assert record.value == compress(LZ4, bytes(10 << 20))


def test_batch_of_too_many_messages_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 2)
    payload = batch_of([SingleMessageMetadata() for _ in range(3)], [b""] * 3)
    (record,) = translated(stored_of(metadata_of(num_messages_in_batch=3), payload), 10, 3)
    assert payload == record.value


def test_fully_compacted_batch_keeps_offsets_without_records() -> None:
    payload = batch_of([SingleMessageMetadata(compacted_out=True) for _ in range(3)], [b""] * 3)
    assert [] == translated(stored_of(metadata_of(num_messages_in_batch=3), payload), 10, 3)


@given(st.binary(max_size=80), st.integers(1, 5))
def test_random_bytes_are_translated_or_refused(stored: bytes, messages: int) -> None:
    refused_or_read(lambda data: to_kafka(data, 0, messages), stored)


@given(singles, codecs, st.data())
def test_changed_bytes_are_translated_or_refused(single: tuple, codec: int, data: st.DataObject) -> None:
    key, value, headers, _ = single
    payload = batch_of([SingleMessageMetadata(partition_key=key, properties=properties(headers))], [value or b""])
    stored = bytearray(stored_of(metadata_of(num_messages_in_batch=1), payload, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    refused_or_read(lambda changed: translated(changed, 5, 1), bytes(stored))


def test_metadata_that_is_not_even_protobuf_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not a MessageMetadata"):
        to_kafka(write_stored_part(b"\xff", b""), 0, 1)
