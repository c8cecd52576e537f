import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle import messages as m
from protocol.shuffle.frame import frame_size
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from tests.protocol.shuffle.strategies import CLIENT_MESSAGES, GENERATIONS, SERVER_MESSAGES, for_generation, mutated

ANY = CLIENT_MESSAGES | SERVER_MESSAGES
PARTITION = ResultPartitionID(bytes(range(60)))
RECEIVER = bytes(range(16))


@given(ANY, GENERATIONS)
def test_what_is_written_is_read_back(message: m.Message, generation: Generation) -> None:
    message = for_generation(message, generation)
    frame = m.encode(message, generation)
    assert len(frame) == frame_size(frame)
    parsed = m.parse(memoryview(frame), generation)
    assert message == parsed
    assert type(message) is type(parsed)


@given(ANY, GENERATIONS, st.binary(min_size=1, max_size=20))
def test_bytes_after_a_messages_end_are_passed_over(message: m.Message, generation: Generation, more: bytes) -> None:
    message = for_generation(message, generation)
    assert message == m.parse(memoryview(m.encode(message, generation) + more), generation)


@given(ANY, GENERATIONS, st.data())
def test_each_truncation_is_a_protocol_error(message: m.Message, generation: Generation, data: st.DataObject) -> None:
    frame = m.encode(for_generation(message, generation), generation)
    cut = data.draw(st.integers(0, len(frame) - 1))
    if isinstance(message, m.CloseRequest) and cut == 9:
        return
    with pytest.raises(ProtocolError):
        m.parse(memoryview(frame)[:cut], generation)


@given(ANY, GENERATIONS, GENERATIONS, st.data())
def test_mutations_are_messages_or_protocol_errors(
    message: m.Message, written: Generation, read: Generation, data: st.DataObject
) -> None:
    frame = data.draw(mutated(m.encode(for_generation(message, written), written), start=8))
    try:
        parsed = m.parse(memoryview(frame), read)
    except ProtocolError:
        return
    m.parse(memoryview(m.encode(parsed, read) if not isinstance(parsed, m.ErrorResponse) else frame), read)


@given(st.binary(max_size=120), st.integers(0, 255), GENERATIONS)
def test_any_bytes_raise_nothing_but_protocol_errors(body: bytes, message_id: int, generation: Generation) -> None:
    try:
        m.parse(memoryview(bytes(8) + bytes((message_id,)) + body), generation)
    except ProtocolError:
        pass


@pytest.mark.parametrize("message_id", [0, 12, 63, 64, 255])
def test_ids_that_are_no_messages_are_refused(message_id: int) -> None:
    with pytest.raises(ProtocolError):
        m.parse(memoryview(bytes(8) + bytes((message_id,)) + bytes(200)), Generation.V2_0)


@pytest.mark.parametrize(
    "message",
    [
        m.PartitionRequest(PARTITION, IndexSet(-1, 0), RECEIVER, 1),
        m.PartitionRequest(PARTITION, IndexSet(2, 1), RECEIVER, 1),
        m.PartitionRequest(PARTITION, IndexSet(0, -1), RECEIVER, 1),
        m.PartitionRequest(PARTITION, IndexSet(0, 0), RECEIVER, -1),
        m.AddCredit(RECEIVER, 0),
        m.AddCredit(RECEIVER, -1),
        m.BacklogAnnouncement(RECEIVER, 0),
        m.NewBufferSize(RECEIVER, 0),
        m.SegmentId(RECEIVER, 0, 0),
    ],
)
def test_numbers_that_flink_refuses_are_refused(message: m.Message) -> None:
    with pytest.raises(ProtocolError):
        m.parse(memoryview(m.encode(message, Generation.V2_0)), Generation.V2_0)


@pytest.mark.parametrize("at", [52, 56])
def test_producer_with_negative_number_is_refused(at: int) -> None:
    partition = bytearray(PARTITION)
    partition[at] = 0x80
    request = m.encode_partition_request(Generation.V2_0, bytes(partition), IndexSet(0, 0), RECEIVER, 0)
    event = m.encode_task_event_request(b"event", bytes(partition), RECEIVER)
    for frame in (request, event):
        with pytest.raises(ProtocolError, match="below 0"):
            m.parse(memoryview(frame), Generation.V2_0)


def test_1_16_requests_one_subpartition() -> None:
    frame = m.encode_partition_request(Generation.V1_16, PARTITION, IndexSet(7, 7), RECEIVER, 2)
    assert len(frame) == 93
    with pytest.raises(ValueError, match="range"):
        m.encode_partition_request(Generation.V1_16, PARTITION, IndexSet(0, 7), RECEIVER, 2)


def test_task_event_with_false_size_allocates_nothing() -> None:
    frame = bytearray(m.encode_task_event_request(b"event", PARTITION, RECEIVER))
    frame[9:13] = (2**31 - 1).to_bytes(4, "big")
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        m.parse(memoryview(frame), Generation.V2_0)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_parsed_message_keeps_no_reference_to_frame() -> None:
    frame = bytearray(m.encode_task_event_request(b"event", PARTITION, RECEIVER))
    message = m.parse(memoryview(frame), Generation.V2_0)
    frame[9:] = bytes(len(frame) - 9)
    assert m.TaskEventRequest(b"event", PARTITION, RECEIVER) == message


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(min_size=16, max_size=16)), max_size=6),
    st.binary(max_size=40) | CLIENT_MESSAGES.map(lambda message: m.encode(message, Generation.V2_0)),
    st.integers(1, 4),
)
def test_row_of_credits_ends_at_another_message(credits: list[tuple[int, bytes]], behind: bytes, most: int) -> None:
    row = b"".join(m.encode_add_credit(receiver, credit) for credit, receiver in credits)
    size = m.add_credits_size(memoryview(row + behind), most)
    if len(credits) >= most or m.add_credits_size(memoryview(behind), 1) == 0:
        assert m.ADD_CREDIT_BYTES * min(most, len(credits)) == size
    assert credits[:most] == list(m.parse_add_credits(memoryview(row + behind)[:size]))[: len(credits)]


def test_add_credit_inside_another_is_not_counted() -> None:
    head = m.encode_add_credit(RECEIVER, 1)[:9]
    of_heads = m.encode_add_credit(head + RECEIVER[:7], 1)
    plain = m.encode_add_credit(RECEIVER, 1)
    assert m.add_credits_size(memoryview(of_heads * 3 + plain), 64) == 4 * 29
    # As many heads as frames would have, and others between them.
    cancelled = m.encode_cancel_partition_request(RECEIVER)
    assert m.add_credits_size(memoryview(of_heads + cancelled + b"\0\0\0\0"), 64) == 29
    assert m.add_credits_size(memoryview(plain + plain[1:] + b"\0"), 64) == 29
    assert m.add_credits_size(memoryview(b"\0" + plain + plain), 64) == 0
