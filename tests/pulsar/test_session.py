from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.session import PulsarRequest, PulsarSession
from protocol.errors import ProtocolError
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandAck, CommandConnect, CommandFlow, CommandPing
from tests.pulsar.wire import send_frame

Type = BaseCommand.Type
PING = write_command(Type.PING, CommandPing())
SEND = send_frame()


def session(max_message_bytes: int = 1 << 20) -> PulsarSession:
    session = PulsarSession(max_message_bytes, 10.0)
    session.connected()
    return session


def sizes(session: PulsarSession, data: bytes) -> list[int]:
    """The sizes of the frames that the reactor would take out of the data, and what it would do with the rest."""
    found, position = [], 0
    while position < len(data):
        size = session.frame_size(memoryview(data)[position:])
        if not size or position + size > len(data):
            break
        session.receive(memoryview(data)[position : position + size])
        found.append(size)
        position += size
    return found


def test_sends_that_came_together_are_one_frame() -> None:
    assert [len(PING), 3 * len(SEND), len(PING)] == sizes(session(), PING + 3 * SEND + PING)


def test_a_send_that_is_not_whole_waits_by_itself() -> None:
    data = 2 * SEND + SEND[:-1]
    assert [2 * len(SEND)] == sizes(session(), data)
    assert len(SEND) == session().frame_size(memoryview(SEND[:-1]))


def test_no_more_sends_are_taken_together_than_a_turn_takes() -> None:
    assert [128 * len(SEND), 72 * len(SEND)] == sizes(session(), 200 * SEND)


def test_a_send_that_is_too_large_is_refused_also_behind_another_one() -> None:
    small = session(max_message_bytes=1024)
    large = send_frame(payload=bytes(20_000))
    with pytest.raises(ProtocolError):
        sizes(small, SEND + large)


def test_what_comes_all_the_time_is_read_later_and_the_rest_at_once() -> None:
    ack = write_command(Type.ACK, CommandAck(consumer_id=0, ack_type=CommandAck.AckType.Individual))
    flow = write_command(Type.FLOW, CommandFlow(consumer_id=0, messagePermits=1))
    for type, frame in ((Type.SEND, SEND), (Type.ACK, ack), (Type.FLOW, flow)):
        request = session().receive(memoryview(frame))
        assert isinstance(request, PulsarRequest)
        assert (type, None) == (request.type, request.body)
    request = session().receive(memoryview(PING))
    assert isinstance(request, PulsarRequest)
    assert (Type.PING, CommandPing()) == (request.type, request.body)


def test_a_client_that_has_not_connected_sends_small_frames_only_and_has_a_deadline() -> None:
    new = PulsarSession(1 << 20, 10.0)
    large = write_command(Type.CONNECT, CommandConnect(client_version="x", auth_data=bytes(70_000)))
    with pytest.raises(ProtocolError):
        new.frame_size(memoryview(large))
    assert 10.0 == new.deadline
    new.connected()
    assert len(large) == new.frame_size(memoryview(large))
    assert inf == new.deadline


@given(st.lists(st.sampled_from([PING, SEND, send_frame(payload=bytes(300))]), min_size=1), st.data())
def test_whatever_is_split_how_ever_every_frame_comes_once(frames: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    first = sizes(session(), whole[:cut])
    rest = whole[sum(first) :]
    assert len(rest) == sum(sizes(session(), rest))


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda tail: SEND[:30] + tail)))
def test_any_bytes_are_a_frame_or_a_protocol_error(data: bytes) -> None:
    try:
        size = session().frame_size(memoryview(data))
        assert size >= 0
        if 0 < size <= len(data):
            session().receive(memoryview(data)[:size])
    except ProtocolError:
        pass
