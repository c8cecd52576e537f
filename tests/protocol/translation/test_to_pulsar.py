from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.records.batch import read_header, set_log_append_time
from protocol.kafka.records.records import Headers, Record, build_batch, records
from protocol.pulsar.metadata import message_key, read_metadata, sticky_key
from protocol.pulsar.payload import build_batch as build_payload
from protocol.pulsar.payload import decompressed, single_metadata, split_batch
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import crc_matches, read_stored_part, write_stored_part
from protocol.translation import to_pulsar as module
from protocol.translation.to_kafka import to_kafka
from protocol.translation.to_pulsar import Translated, header_of, property_of, text_of, to_pulsar
from tests.protocol.pulsar.strategies import refused_or_read

NOW = 1_700_000_000_000
names = st.one_of(st.text(max_size=8), st.binary(max_size=8).map(lambda name: name.decode("utf-8", "surrogateescape")))
values = st.none() | st.binary(max_size=30) | st.sampled_from([b"data:", b"data:null", b"data:;base64,AA=="])
headers = st.lists(st.tuples(names, values), max_size=3)
plain = st.text(max_size=8).filter(lambda text: not text.startswith("data:"))
# Key, value, headers, timestamp.
kept = st.tuples(st.none() | st.binary(max_size=8), st.none() | st.binary(max_size=40), headers, st.integers(1, 2**62))
Kept = tuple[bytes | None, bytes | None, Headers, int]


def entries(batch: bytearray, **settings: int) -> list[Translated]:
    return to_pulsar(batch, 0, read_header(batch), **settings)


def metadata_of(entry: Translated) -> MessageMetadata:
    part = read_stored_part(entry.stored)
    assert part.crc >= 0 and crc_matches(entry.stored, part)
    return read_metadata(entry.stored[part.metadata : part.payload])


def payload_of(entry: Translated) -> bytes:
    part = read_stored_part(entry.stored)
    return bytes(decompressed(metadata_of(entry), entry.stored[part.payload : part.end]))


def back(translated: list[Translated]) -> list[Record]:
    """The records that a Kafka consumer would get from the entries, with Kafka's headers again."""
    return [
        record._replace(headers=[(name, header_of((value or b"").decode())) for name, value in record.headers])
        for entry in translated
        for record in records(to_kafka(entry.stored, entry.offset, entry.messages))
    ]


def properly_named(record: Record) -> Record:
    return record._replace(headers=[(text_of(name), value) for name, value in record.headers])


@given(st.lists(kept, min_size=1, max_size=6), st.integers(0, 4), st.integers(0, 2**60), st.booleans())
def test_what_becomes_of_a_batch_holds_its_records(
    batch_records: list[Kept], codec: int, offset: int, by_key: bool
) -> None:
    batch = build_batch(batch_records, base_offset=offset, compression=codec)
    translated = entries(batch, by_key=by_key)
    assert [properly_named(record) for record in records(batch)] == back(translated)
    if not by_key:
        assert [(offset, len(batch_records))] == [(entry.offset, entry.messages) for entry in translated]


@given(st.lists(kept, min_size=1, max_size=6), st.data())
def test_offsets_stay_where_compaction_has_removed_records(batch_records: list[Kept], data: st.DataObject) -> None:
    offsets = sorted(
        data.draw(st.sets(st.integers(100, 110), min_size=len(batch_records), max_size=len(batch_records)))
    )
    batch = build_batch(batch_records, base_offset=100, offsets=offsets, last_offset_delta=15)
    translated = entries(batch)
    assert [properly_named(record) for record in records(batch)] == back(translated)
    # No entry has a gap, and none begins immediately after the previous entry.
    assert offsets == [entry.offset + index for entry in translated for index in range(entry.messages)]
    assert all(a.offset + a.messages < b.offset for a, b in pairwise(translated))


@given(st.lists(kept, min_size=1, max_size=4))
def test_log_append_time_is_publish_time_only(batch_records: list[Kept]) -> None:
    batch = build_batch(batch_records)
    set_log_append_time(batch, 0, read_header(batch), NOW)
    translated = entries(batch)
    assert [NOW] * len(batch_records) == [record.timestamp for record in back(translated)]
    assert [(NOW, 0)] == [(metadata_of(entry).publish_time, metadata_of(entry).event_time) for entry in translated]


def test_a_record_alone_is_no_batch() -> None:
    (entry,) = entries(build_batch([(b"k", b"v", [("h", b"x")], NOW)], base_offset=7))
    metadata = metadata_of(entry)
    assert (7, 1) == entry[:2]
    assert not metadata.HasField("num_messages_in_batch")
    assert ("kafka", 7, NOW, NOW, "k") == (
        metadata.producer_name,
        metadata.sequence_id,
        metadata.publish_time,
        metadata.event_time,
        metadata.partition_key,
    )
    assert [("h", "x")] == [(pair.key, pair.value) for pair in metadata.properties]
    assert b"v" == payload_of(entry)


def test_publish_time_of_batch_is_largest_timestamp() -> None:
    (entry,) = entries(build_batch([(None, b"", [], NOW), (None, b"", [], NOW + 5), (None, b"", [], NOW + 1)]))
    assert NOW + 5 == metadata_of(entry).publish_time
    singles = [single for single, _ in split_batch(payload_of(entry), 3)]
    assert [NOW, NOW + 5, NOW + 1] == [single.event_time for single in singles]


def test_inexpressible_times_become_the_publish_time() -> None:
    (entry,) = entries(build_batch([(None, b"", [], -1), (None, b"", [], 0), (None, b"", [], 5)]))
    assert [5, 5, 5] == [record.timestamp for record in back([entry])]
    (entry,) = entries(build_batch([(None, b"", [], -1)]))
    assert 0 == metadata_of(entry).publish_time


def test_null_is_not_empty() -> None:
    (entry,) = entries(build_batch([(None, None, [], NOW), (b"", b"", [], NOW)]))
    (null, _), (empty, _) = split_batch(payload_of(entry), 2)
    assert (True, False) == (null.null_value, empty.null_value)
    assert (None, b"") == (message_key(null), message_key(empty))
    (entry,) = entries(build_batch([(b"k", None, [], NOW)]))
    assert metadata_of(entry).null_value


def test_a_key_is_text_where_it_can_be() -> None:
    (entry,) = entries(build_batch([("\u00e9".encode(), b"", [], NOW), (b"\x00\xff", b"", [], NOW)]))
    (text, _), (other, _) = split_batch(payload_of(entry), 2)
    assert ("\u00e9", False) == (text.partition_key, text.partition_key_b64_encoded)
    assert ("AP8=", True) == (other.partition_key, other.partition_key_b64_encoded)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", ""),
        ("\u00e9".encode(), "\u00e9"),
        (None, "data:null"),
        (b"\x00\xff", "data:;base64,AP8="),
        (b"data:null", "data:;base64,ZGF0YTpudWxs"),
    ],
)
def test_headers_that_are_not_text_are_still_there(value: bytes | None, text: str) -> None:
    assert text == property_of(value)
    assert value == header_of(text)


def test_repeated_header_is_a_repeated_property() -> None:
    (entry,) = entries(build_batch([(None, b"", [("a", b"1"), ("b", b"2"), ("a", b"3")], NOW)]))
    assert [("a", "1"), ("b", "2"), ("a", "3")] == [(pair.key, pair.value) for pair in metadata_of(entry).properties]


def test_by_key_gives_each_entry_one_key() -> None:
    batch = build_batch([(key, b"", [], NOW) for key in (b"a", b"a", b"b", None, None, b"\xff")], base_offset=50)
    translated = entries(batch, by_key=True)
    assert [(50, 2), (52, 1), (53, 2), (55, 1)] == [entry[:2] for entry in translated]
    assert [b"a", b"b", b"kafka-53", b"\xff"] == [sticky_key(metadata_of(entry)) for entry in translated]
    # A whole batch with a single key has that key anyway.
    (entry,) = entries(build_batch([(b"a", b"", [], NOW)] * 3))
    assert b"a" == sticky_key(metadata_of(entry))
    (entry,) = entries(build_batch([(b"a", b"", [], NOW), (b"b", b"", [], NOW)], base_offset=9))
    assert b"kafka-9" == sticky_key(metadata_of(entry))


def test_batch_is_cut_before_entries_exceed_message_size() -> None:
    batch = build_batch([(b"key", bytes([i]) * 3000, [("h", b"v" * 100)], NOW) for i in range(10)])
    translated = entries(batch, max_message_size=10_000)
    assert len(translated) > 1
    assert all(len(entry.stored) - 10 <= 10_000 for entry in translated)
    assert [properly_named(record) for record in records(batch)] == back(translated)


def test_too_large_record_is_compressed() -> None:
    batch = build_batch([(None, bytes(50_000), [], NOW), (None, b"small", [], NOW)], compression=4)
    large, small = entries(batch, max_message_size=10_000)
    assert (50_000, 5) == (len(payload_of(large)), len(payload_of(small)))
    assert len(large.stored) < 10_000
    assert metadata_of(large).compression and not metadata_of(small).compression


def test_entry_has_no_more_messages_than_consumer_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MESSAGES", 3)
    translated = entries(build_batch([(None, b"", [], NOW)] * 7, base_offset=10))
    assert [(10, 3), (13, 3), (16, 1)] == [entry[:2] for entry in translated]


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = build_batch([(None, bytes(10 << 20), [], NOW)], compression=4)
    with pytest.raises(ProtocolError, match="more than 1048576 bytes"):
        entries(bomb, max_size=1 << 20)
    many = build_batch([(None, None, [], NOW)] * 11, compression=1)
    monkeypatch.setattr(module, "MOST_RECORDS", 10)
    with pytest.raises(ProtocolError, match="a batch of 11 records"):
        entries(many)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([5, 5], "the offset 5 after 5"),
        ([6, 5], "the offset 5 after 6"),
        ([4, 5], "the offset 4 after 4"),
        ([5, 8], "the offset 8 after 5, in a batch up to 7"),
    ],
)
def test_offsets_outside_batch_or_not_ascending_are_refused(offsets: list[int], message: str) -> None:
    batch = build_batch([(None, b"", [], NOW)] * 2, offsets=offsets, base_offset=5, last_offset_delta=2)
    with pytest.raises(ProtocolError, match=message):
        entries(batch)


def test_a_batch_without_records_becomes_nothing() -> None:
    assert [] == entries(build_batch([], last_offset_delta=5))


@given(st.lists(kept, min_size=1, max_size=3), st.integers(0, 4), st.data())
def test_changed_bytes_are_translated_or_refused(batch_records: list[Kept], codec: int, data: st.DataObject) -> None:
    batch = build_batch(batch_records, compression=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(12, len(batch) - 1))] = data.draw(st.integers(0, 255))
    refused_or_read(lambda changed: entries(bytearray(changed), max_size=1 << 20), bytes(batch))


@given(
    st.lists(
        st.tuples(
            st.none() | st.text(max_size=8),
            st.none() | st.binary(max_size=40),
            st.lists(st.tuples(plain, plain), max_size=3),
            st.integers(0, 2**62),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_pulsar_messages_survive_both_translations(
    messages: list[tuple[str | None, bytes | None, list[tuple[str, str]], int]],
) -> None:
    payload = build_payload(
        (single_metadata(len(value or b""), pairs, key, False, event_time, value is None), value or b"")
        for key, value, pairs, event_time in messages
    )
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=NOW, num_messages_in_batch=len(messages)
    ).SerializeToString()
    there = to_kafka(write_stored_part(metadata, payload), 70, len(messages))
    (entry,) = entries(there)
    back_again = to_kafka(entry.stored, entry.offset, entry.messages)
    assert list(records(there)) == list(records(back_again))
