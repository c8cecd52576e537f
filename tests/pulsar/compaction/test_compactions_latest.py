"""What is left of entries, against a dictionary."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.compaction.compactions import Latest, TooManyKeys, _opened, _stored_part
from protocol.pulsar.payload import build_batch, compress, decompressed, single_metadata, split_batch
from protocol.pulsar.pulsar_pb2 import MessageMetadata

# Key and payload; either may be missing.
Message = tuple[str | None, bytes]


def metadata(**more: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **more)


def single(key: str | None, payload: bytes, **more: Any) -> memoryview:
    if key is not None:
        more["partition_key"] = key
    return memoryview(_stored_part(metadata(**more), payload))


def batch(messages: Sequence[Message], codec: int = 0) -> memoryview:
    body = build_batch([(single_metadata(len(payload), key=key), payload) for key, payload in messages])
    head = metadata(num_messages_in_batch=len(messages), uncompressed_size=len(body), compression=codec)
    return memoryview(_stored_part(head, compress(codec, body)))


def messages_of(data: Any) -> list[tuple[int, str, bytes]]:
    """Index, key and payload of what a client gets."""
    head, payload = _opened(memoryview(data))
    if not head.HasField("num_messages_in_batch"):
        return [(0, head.partition_key, bytes(payload))]
    found = split_batch(decompressed(head, payload), head.num_messages_in_batch)
    return [
        (index, one.metadata.partition_key, bytes(one.payload))
        for index, one in enumerate(found)
        if not one.metadata.compacted_out
    ]


MESSAGES = st.tuples(st.none() | st.sampled_from("abc"), st.sampled_from([b"", b"x", b"yy"]))
ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just("single"), MESSAGES),
        st.tuples(st.just("batch"), st.lists(MESSAGES, min_size=1, max_size=4), st.sampled_from([0, 1, 2, 3, 4])),
    ),
    max_size=12,
)


@given(ENTRIES, st.booleans())
def test_latest_message_of_each_key_keeps_its_place(entries: list[Any], twice: bool) -> None:
    offset = 0
    stored = []
    expected: dict[str, tuple[int, int, bytes]] = {}
    for entry in entries:
        messages = [entry[1]] if entry[0] == "single" else entry[1]
        data = single(*entry[1]) if entry[0] == "single" else batch(entry[1], entry[2])
        stored.append((offset, data))
        for index, (key, payload) in enumerate(messages):
            if key is not None and payload:
                expected[key] = (offset, index, payload)
            elif key is not None:
                expected.pop(key, None)
        offset += len(messages)
    for _ in range(2 if twice else 1):  # the second compaction reads the output of the first
        latest = Latest()
        for place, data in stored:
            latest.note(place, data)
        left = [(place, latest.left(place, data)) for place, data in stored]
        stored = [(place, memoryview(data)) for place, data in left if data is not None]
        found = {key: (place, index, payload) for place, data in stored for index, key, payload in messages_of(data)}
        assert expected == found
        assert len(expected) == sum(len(messages_of(data)) for _, data in stored) == len(latest)


def test_entry_without_superseded_messages_stays_unchanged() -> None:
    latest = Latest()
    data = batch([("a", b"1"), ("b", b"2")], 3)
    latest.note(0, data)
    assert latest.left(0, data) is data


@pytest.mark.parametrize(
    "data",
    [
        single("a", b"x", num_chunks_from_msg=3, chunk_id=1, uuid="u"),
        memoryview(
            _stored_part(metadata(num_messages_in_batch=2, encryption_keys=[{"key": "k", "value": b"v"}]), b"?")
        ),
        memoryview(_stored_part(metadata(num_messages_in_batch=2), b"nonsense")),
        memoryview(b"nonsense"),
    ],
)
def test_what_cannot_be_looked_into_stays(data: memoryview) -> None:
    latest = Latest()
    latest.note(0, data)
    latest.note(5, single("a", b"later"))
    assert latest.left(0, data) is data


def test_an_encrypted_message_is_known_by_its_key() -> None:
    latest = Latest()
    old = single("a", b"?", encryption_keys=[{"key": "k", "value": b"v"}])
    latest.note(0, old)
    latest.note(1, single("a", b"x"))
    assert latest.left(0, old) is None


def test_compressed_empty_message_deletes_its_key() -> None:
    latest = Latest()
    data = single("a", b"x")
    latest.note(0, data)
    latest.note(1, single("a", compress(1, b""), compression=1, uncompressed_size=0))
    assert latest.left(0, data) is None


def test_more_keys_than_are_remembered_are_refused() -> None:
    latest = Latest(keys_max=2)
    latest.note(0, batch([("a", b"1"), ("b", b"2"), ("a", b"3")]))
    with pytest.raises(TooManyKeys):
        latest.note(9, single("c", b"1"))


def test_long_keys_are_told_apart() -> None:
    latest = Latest()
    one, other = single("k" * 1000 + "1", b"1"), single("k" * 1000 + "2", b"2")
    latest.note(0, one)
    latest.note(1, other)
    assert latest.left(0, one) is one and latest.left(1, other) is other
