import struct
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.connection import PulsarRequest, PulsarSession
from protocol.errors import ProtocolError
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConnect,
    CommandFlow,
    CommandPing,
    CommandRedeliverUnacknowledgedMessages,
    MessageIdData,
)
from tests.pulsar.wire import send_frame

Type = BaseCommand.Type
PING = write_command(Type.PING, CommandPing())
SEND = send_frame()
COMMANDS = {
    Type.ACK: CommandAck(consumer_id=1, ack_type=CommandAck.AckType.Individual),
    Type.FLOW: CommandFlow(consumer_id=1, messagePermits=1),
}


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


def test_partial_send_waits_alone() -> None:
    data = 2 * SEND + SEND[:-1]
    assert [2 * len(SEND)] == sizes(session(), data)
    assert len(SEND) == session().frame_size(memoryview(SEND[:-1]))


def test_run_bytes_are_bounded_by_turn() -> None:
    large = send_frame(0, bytes(100_000))
    taken = sizes(session(), 5 * large)
    assert 5 * len(large) == sum(taken)
    assert max(taken) == 2 * len(large)


def test_run_sends_are_bounded_by_turn() -> None:
    assert [128 * len(SEND), 72 * len(SEND)] == sizes(session(), 200 * SEND)


def test_too_large_send_is_refused_behind_another() -> None:
    small = session(max_message_bytes=1024)
    large = send_frame(payload=bytes(20_000))
    with pytest.raises(ProtocolError):
        sizes(small, SEND + large)


def test_sends_are_read_later_and_commands_at_once() -> None:
    request = session().receive(memoryview(SEND))
    assert isinstance(request, PulsarRequest)
    assert (Type.SEND, None) == (request.type, request.body)
    request = session().receive(memoryview(PING))
    assert isinstance(request, PulsarRequest)
    assert (Type.PING, CommandPing()) == (request.type, request.body)


def test_large_commands_are_left_to_the_handlers() -> None:
    """Parsing the largest takes 80 ms, in which all other connections of the processor would wait."""
    ids = [MessageIdData(ledgerId=1, entryId=number) for number in range(10_000)]
    command = CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids)
    frame = memoryview(write_command(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, command))
    request = session().receive(frame)
    assert isinstance(request, PulsarRequest)
    assert (Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, None, True) == (request.type, request.body, request.unparsed)
    request.frame = frame
    request.parse()
    assert (command, False) == (request.body, request.unparsed)


def test_large_command_without_leading_type_is_not_parsed() -> None:
    inner = BaseCommand(ping=CommandPing()).SerializePartialToString()
    unknown = bytes([0xFA, 0x3E, 0xA0, 0x9C, 0x01]) + bytes(20_000)  # field 1007, which is unknown
    data = inner + unknown + bytes([0x08, Type.PING])
    frame = memoryview(struct.pack(">II", len(data) + 4, len(data)) + data)
    request = session().receive(frame)
    assert isinstance(request, PulsarRequest)
    assert request.unparsed
    request.frame = frame
    request.parse()
    assert Type.PING == request.type


@pytest.mark.parametrize("kind", [Type.ACK, Type.FLOW])
def test_acks_and_flows_are_parsed_only_by_handlers(kind: int) -> None:
    request = session().receive(memoryview(write_command(kind, COMMANDS[kind])))
    assert isinstance(request, PulsarRequest)
    assert (kind, None, False) == (request.type, request.body, request.unparsed)


def test_unconnected_client_has_frame_limit_and_deadline() -> None:
    new = PulsarSession(1 << 20, 10.0)
    large = write_command(Type.CONNECT, CommandConnect(client_version="x", auth_data=bytes(70_000)))
    with pytest.raises(ProtocolError):
        new.frame_size(memoryview(large))
    assert 10.0 == new.deadline
    new.connected()
    assert len(large) == new.frame_size(memoryview(large))
    assert inf == new.deadline


@given(st.lists(st.sampled_from([PING, SEND, send_frame(payload=bytes(300))]), min_size=1), st.data())
def test_every_frame_comes_once_however_split(frames: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    first = sizes(session(), whole[:cut])
    rest = whole[sum(first) :]
    assert len(rest) == sum(sizes(session(), rest))


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda tail: SEND[:30] + tail)))
def test_arbitrary_bytes_are_frame_or_protocol_error(data: bytes) -> None:
    try:
        size = session().frame_size(memoryview(data))
        assert size >= 0
        if 0 < size <= len(data):
            session().receive(memoryview(data)[:size])
    except ProtocolError:
        pass
