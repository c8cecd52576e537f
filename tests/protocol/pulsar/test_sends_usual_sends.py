import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.pulsar.metadata import check_batch, is_batch, publish_time_ms, read_metadata
from protocol.pulsar.pulsar_pb2 import CommandSend, MessageMetadata
from protocol.pulsar.sends import UsualSend, UsualSends, crc_matches, read_send, write_send, write_stored_part
from tests.protocol.pulsar.strategies import metadata, mutated, sends, texts, uint64s

NOW = 1_763_800_000_000
usual_sends = st.builds(
    CommandSend,
    producer_id=st.sampled_from([1, 1, 1, 300]),
    sequence_id=uint64s,
    num_messages=st.none() | st.integers(1, 3),
    highest_sequence_id=st.none() | uint64s,
)
usual_metadata = st.builds(
    MessageMetadata,
    producer_name=st.sampled_from(["p", "p", "q"]),
    sequence_id=uint64s,
    publish_time=st.integers(NOW, NOW + 3) | uint64s,
    partition_key=st.none() | texts | st.just("k" * 200),
    schema_version=st.none() | st.sampled_from([b"\xc0\x01\x05", b"\x01"]),
    num_messages_in_batch=st.none() | st.integers(-1, 3),
    uncompressed_size=st.none() | st.integers(0, 40),
    event_time=st.none() | st.just(5),
    deliver_at_time=st.none() | st.just(7),
    highest_sequence_id=st.none() | uint64s,
)


def frame_of(command: CommandSend, meta: MessageMetadata, payload: bytes, same_sequence: bool) -> bytes:
    if same_sequence:
        meta.sequence_id = command.sequence_id
    return write_send(command, write_stored_part(meta.SerializeToString(), payload))


frames = st.one_of(
    st.builds(frame_of, usual_sends, usual_metadata, st.binary(max_size=20), st.sampled_from([True, True, False])),
    st.builds(frame_of, sends, metadata, st.binary(max_size=20), st.booleans()),
)


def read_in_the_other_way(usual: UsualSends, frame: memoryview) -> UsualSend | None:
    """None: it is refused, or unusual."""
    try:
        send = read_send(frame)
        if not crc_matches(frame, send):
            return None
        meta = read_metadata(frame[send.metadata : send.payload])
        messages = check_batch(meta, send.end - send.payload, 5 << 20)
    except ProtocolError:
        return None
    usual.learn(send, frame, meta)
    return UsualSend(
        send.sequence_id,
        send.highest_sequence_id,
        messages,
        is_batch(meta),
        publish_time_ms(meta),
        send.start,
        send.end,
    )


@given(st.lists(st.one_of(frames, mutated(frames)), max_size=12))
def test_it_reads_what_the_others_read(many: list[bytes]) -> None:
    usual = UsualSends(1)
    for data in many:
        frame = memoryview(data)
        send = usual.read(frame, 0, len(frame))
        expected = read_in_the_other_way(usual, frame)
        assert send is None or expected == send
        if send is not None:
            meta = read_metadata(frame[read_send(frame).metadata : read_send(frame).payload])
            assert not (
                meta.encryption_keys or meta.deliver_at_time or meta.marker_type or meta.num_chunks_from_msg > 1
            )


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A valid frame with some bytes of its command or metadata changed, and the right checksum."""
    meta = draw(usual_metadata)
    command = draw(usual_sends)
    if draw(st.booleans()):
        meta.sequence_id = command.sequence_id
    data = bytes(draw(mutated(st.just(meta.SerializeToString()))))
    return write_send(command, write_stored_part(data, draw(st.binary(max_size=20))))


@given(st.lists(st.one_of(frames, hostile()), max_size=12))
def test_random_metadata_is_read_as_by_read_send(many: list[bytes]) -> None:
    usual = UsualSends(1)
    for data in many:
        frame = memoryview(data)
        send = usual.read(frame, 0, len(frame))
        expected = read_in_the_other_way(usual, frame)
        assert send is None or expected == send


def plain(sequence_id: int, payload: bytes = b"x" * 100, **fields: object) -> memoryview:
    fields = {"producer_name": "p", "publish_time": NOW + sequence_id, **fields}
    meta = MessageMetadata(sequence_id=sequence_id, **fields)  # type: ignore[arg-type]
    command = CommandSend(producer_id=300, sequence_id=sequence_id)
    return memoryview(write_send(command, write_stored_part(meta.SerializeToString(), payload)))


def learned(*others: memoryview) -> UsualSends:
    usual = UsualSends(300)
    for frame in others:
        assert read_in_the_other_way(usual, frame) is not None
    return usual


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"partition_key": "key"},
        {"num_messages_in_batch": 3, "highest_sequence_id": 2**40},
        {"num_messages_in_batch": 1, "partition_key": "k" * 200, "event_time": 7},
    ],
)
def test_messages_like_one_before_are_read_here(fields: dict[str, object]) -> None:
    usual = learned(plain(1, **fields))
    for sequence_id in (2, 127, 128, 2**40):
        frame = plain(sequence_id, **fields)
        send = usual.read(frame, 0, len(frame))
        assert send is not None
        assert read_in_the_other_way(usual, frame) == send


def test_a_frame_may_stand_between_others() -> None:
    usual = learned(plain(1))
    data = b"other" + bytes(plain(2)) + b"other"
    send = usual.read(memoryview(data), 5, len(data) - 5)
    assert send is not None
    assert data[send.start : send.end] == plain(2)[-(send.end - send.start) :]


@pytest.mark.parametrize(
    "wrong",
    [
        plain(2, payload=b""),  # of a batch
        plain(2, producer_name="q"),
        plain(2, deliver_at_time=5),
        plain(2, num_messages_in_batch=3, publish_time=5),
        memoryview(bytes(plain(2))[:-1] + b"y"),  # its checksum
    ],
)
def test_unusual_sends_are_left_to_read_send(wrong: memoryview) -> None:
    usual = learned(plain(1, num_messages_in_batch=3))
    assert usual.read(wrong, 0, len(wrong)) is None


def test_it_gives_up_where_nothing_is_usual() -> None:
    usual = learned(plain(1))
    for number in range(2, 70):
        frame = plain(number, event_time=number)
        assert usual.read(frame, 0, len(frame)) is None
        assert read_in_the_other_way(usual, frame) is not None
    frame = plain(70)
    assert usual.read(frame, 0, len(frame)) is None


def test_metadata_without_time_is_left_to_read_send() -> None:
    usual = learned(plain(1))
    metadata = MessageMetadata(producer_name="p", sequence_id=2, publish_time=NOW).SerializeToString()
    command = CommandSend(producer_id=300, sequence_id=2)
    for size in range(len(metadata)):
        frame = memoryview(write_send(command, write_stored_part(metadata[:size], b"x")))
        assert usual.read(frame, 0, len(frame)) is None
