from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.pulsar import frames
from protocol.pulsar.frames import (
    DEFAULT_MAX_MESSAGE_SIZE,
    FIELDS,
    FRAME_PADDING,
    MAX_COMMAND_SIZE,
    MOST_PARTS,
    MOST_TEXTS,
    command_type,
    frame_size,
    read_command,
    whole_frames,
    write_command,
)
from protocol.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandError,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic,
    CommandPing,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    CommandSuccess,
    IntRange,
    KeySharedMeta,
    KeyValue,
    Message,
    MessageIdData,
    Schema,
)
from tests.protocol.pulsar.strategies import mutated, properties, refused_or_read, texts, uint64s

Type = BaseCommand.Type
ONE_OF_EACH = st.one_of(
    st.tuples(st.just(Type.PING), st.builds(CommandPing)),
    st.tuples(st.just(Type.CONNECT), st.builds(CommandConnect, client_version=texts, auth_data=st.binary(max_size=9))),
    st.tuples(st.just(Type.LOOKUP), st.builds(CommandLookupTopic, topic=texts, request_id=uint64s)),
    st.tuples(
        st.just(Type.PRODUCER),
        st.builds(
            CommandProducer,
            topic=texts,
            producer_id=uint64s,
            request_id=uint64s,
            metadata=properties,
            schema=st.none()
            | st.builds(Schema, name=texts, schema_data=st.binary(max_size=9), type=st.integers(0, 21)),
        ),
    ),
    st.tuples(
        st.just(Type.SUBSCRIBE),
        st.builds(
            CommandSubscribe,
            topic=texts,
            subscription=texts,
            subType=st.integers(0, 3),
            consumer_id=uint64s,
            request_id=uint64s,
            start_message_id=st.none() | st.builds(MessageIdData, ledgerId=uint64s, entryId=uint64s),
            metadata=properties,
        ),
    ),
    st.tuples(
        st.just(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE),
        st.builds(CommandGetTopicsOfNamespaceResponse, request_id=uint64s, topics=st.lists(texts, max_size=3)),
    ),
)
COMMAND_FRAMES = ONE_OF_EACH.map(lambda command: write_command(*command))
SUCCESS = write_command(Type.SUCCESS, CommandSuccess(request_id=0))


def frame_of(command: bytes, rest: bytes = b"") -> bytes:
    return (4 + len(command) + len(rest)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + rest


@given(ONE_OF_EACH)
def test_a_command_reads_as_it_was_written(command: tuple[int, Message]) -> None:
    frame = write_command(*command)
    assert len(frame) == frame_size(frame)
    assert command[0] == command_type(frame)
    assert command == read_command(memoryview(frame))


def test_frame_has_total_size_command_size_and_command() -> None:
    assert bytes.fromhex("00000008 00000004 080d 6a02 0800".replace(" ", ""))[:8] != SUCCESS[:8]
    assert bytes.fromhex("0000000a 00000006 080d 6a02 0800".replace(" ", "")) == SUCCESS


@given(st.lists(COMMAND_FRAMES, max_size=4), st.data())
def test_frames_are_found_however_the_stream_is_split(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    received, buffer, pos = [], b"", 0
    while pos < len(stream):
        size = data.draw(st.integers(1, len(stream)))
        buffer += stream[pos : pos + size]
        pos += size
        whole, used = whole_frames(buffer)
        received += [bytes(frame) for frame in whole]
        buffer = buffer[used:]
        if buffer:
            assert frame_size(buffer) in (0, len(frames[len(received)]))
    assert frames == received and not buffer


@given(COMMAND_FRAMES, st.data())
def test_a_frame_that_is_cut_off_is_refused(frame: bytes, data: st.DataObject) -> None:
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    with pytest.raises(ProtocolError):
        read_command(cut)
    with pytest.raises(ProtocolError):
        command_type(cut)


@given(mutated(COMMAND_FRAMES))
def test_changed_bytes_are_read_or_refused(frame: bytes) -> None:
    refused_or_read(frame_size, frame)
    refused_or_read(command_type, frame)
    refused_or_read(read_command, frame)


@given(st.binary(max_size=40))
def test_random_bytes_as_command_are_read_or_refused(command: bytes) -> None:
    refused_or_read(read_command, frame_of(command))
    refused_or_read(command_type, frame_of(command))


@pytest.mark.parametrize("size", [0, 5, DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING + 1, 2**31, 2**32 - 1])
def test_impossible_size_is_refused_before_the_frame_arrives(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):
        frame_size(size.to_bytes(4, "big"))


def test_the_largest_frame_follows_from_the_largest_message() -> None:
    assert 1000 + FRAME_PADDING + 4 == frame_size((1000 + FRAME_PADDING).to_bytes(4, "big"), max_message_size=1000)
    with pytest.raises(ProtocolError):
        frame_size((1001 + FRAME_PADDING).to_bytes(4, "big"), max_message_size=1000)


def test_frame_size_is_unknown_before_four_bytes() -> None:
    assert [0, 0, 0, 0, 14] == [frame_size(SUCCESS[:size]) for size in range(5)]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (SUCCESS[:4] + (7).to_bytes(4, "big") + SUCCESS[8:], "a command of 7 bytes"),
        (SUCCESS[:4] + (5).to_bytes(4, "big") + SUCCESS[8:], "1 bytes after it"),
        (SUCCESS[:4] + (2**32 - 1).to_bytes(4, "big") + SUCCESS[8:], "a command of 4294967295 bytes"),
        ((11).to_bytes(4, "big") + SUCCESS[4:], "claims to be 15"),
        (frame_of(b"\x08\x44"), "type 68 without its command"),  # TOPIC_MIGRATED has no command
        (frame_of(b"\x08\x63"), "without a required field"),  # 99
        (frame_of(b"\x08\x0d"), "without its command"),
        (frame_of(b"\x08\x0e\x6a\x02\x08\x00"), "type 14 without its command"),  # says ERROR, holds a SUCCESS
        (frame_of(b"\x6a\x02\x08\x00"), "without a required field"),
        (frame_of(b"\x08\x0d\x6a\x00"), "without a required field"),
        (frame_of(b"\x08\x0d\x6a\x7f"), "not a BaseCommand"),
        (frame_of(bytes(MAX_COMMAND_SIZE + 1)), "at most"),
    ],
)
def test_lies_are_refused(frame: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_command(frame)


@pytest.mark.parametrize(
    "command",
    [
        CommandError(request_id=1, error=0, message="topic"),
        CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["a", "topic"]),
        CommandProducer(topic="t", producer_id=1, request_id=1, metadata=[KeyValue(key="topic", value="")]),
        CommandProducer(topic="t", producer_id=1, request_id=1, schema=Schema(name="topic", schema_data=b"", type=1)),
    ],
)
def test_text_that_is_not_utf_8_is_refused(command: Message) -> None:
    number = {CommandError: 14, CommandGetTopicsOfNamespaceResponse: 33, CommandProducer: 5}[type(command)]
    frame = write_command(number, command)
    assert (number, command) == read_command(frame)
    with pytest.raises(ProtocolError, match="UTF-8"):
        read_command(frame.replace(b"topic", b"top\xffc"))


def test_number_of_properties_is_bounded() -> None:
    pairs = [KeyValue(key="k", value="v")] * (MOST_TEXTS // 2 - 1)
    frame = write_command(5, CommandProducer(topic="t", producer_id=1, request_id=1, metadata=pairs))
    assert len(pairs) == len(read_command(frame)[1].metadata)
    frame = write_command(5, CommandProducer(topic="t", producer_id=1, request_id=1, metadata=[*pairs, *pairs[:1]]))
    with pytest.raises(ProtocolError, match="too many properties"):
        read_command(frame)


def test_command_without_text_may_have_unlimited_ids() -> None:
    ids = [MessageIdData(ledgerId=1, entryId=1)] * (2 * MOST_TEXTS)
    frame = write_command(20, CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids))
    assert len(ids) == len(read_command(frame)[1].message_ids)


def test_type_is_read_when_not_the_first_field() -> None:
    assert Type.SUCCESS == command_type(frame_of(b"\x6a\x02\x08\x00\x08\x0d"))
    assert (Type.SUCCESS, CommandSuccess(request_id=0)) == read_command(frame_of(b"\x6a\x02\x08\x00\x08\x0d"))


def test_a_type_that_nobody_knows_is_still_told() -> None:
    assert 99 == command_type(frame_of(b"\x08\x63"))


def test_every_type_but_one_has_its_command() -> None:
    assert set(Type.values()) - set(FIELDS) == {Type.TOPIC_MIGRATED}


# -- many parts ------------------------------------------------------------------------------------------------------------


def subscribe(**fields: Any) -> CommandSubscribe:
    given = {"topic": "t", "subscription": "s", "subType": 0, "consumer_id": 1, "request_id": 1}
    return CommandSubscribe(**(given | fields))


NO_SCHEMA: Any = {"name": "", "schema_data": b"", "type": 0}


def ranges(count: int) -> KeySharedMeta:
    return KeySharedMeta(keySharedMode=1, hashRanges=[IntRange(start=1, end=1)] * count)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(subscribe(keySharedMeta=ranges(170_000)), id="ranges"),
        pytest.param(subscribe(metadata=[KeyValue(key="", value="")] * 170_000), id="metadata"),
        pytest.param(
            subscribe(schema=Schema(properties=[KeyValue(key="", value="")] * 170_000, **NO_SCHEMA)), id="schema"
        ),
    ],
)
def test_command_of_smallest_parts_is_refused_unparsed(command: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = write_command(Type.SUBSCRIBE, command)
    assert len(frame) > MAX_COMMAND_SIZE * 0.9
    monkeypatch.setattr(frames, "parse", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(ProtocolError, match="too many parts"):
        read_command(frame)


def test_long_command_may_have_schema_and_many_properties() -> None:
    metadata = [KeyValue(key=f"key {number}", value="v" * 200) for number in range(600)]
    schema = Schema(name="s", schema_data=b"x" * 500_000, type=2)
    command = subscribe(metadata=metadata, schema=schema)
    assert read_command(write_command(Type.SUBSCRIBE, command)) == (Type.SUBSCRIBE, command)
    assert 3 * len(metadata) < MOST_PARTS


@given(st.integers(0, 400), st.data())
def test_changed_long_command_is_read_or_refused(count: int, data: st.DataObject) -> None:
    metadata = [KeyValue(key="k", value="v" * 200)] * count
    frame = bytearray(write_command(Type.SUBSCRIBE, subscribe(metadata=metadata, topic="t" * 70_000)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(10, len(frame) - 1))] = data.draw(st.integers(0, 255))
    refused_or_read(read_command, bytes(frame))
