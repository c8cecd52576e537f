import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.pulsar.acks import Ack, read_ack, read_flow
from protocol.pulsar.frames import read_command, write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandAck, CommandFlow, CommandPing
from tests.protocol.pulsar.strategies import message_ids, mutated, refused_or_read, uint64s

acks = st.builds(
    CommandAck,
    consumer_id=uint64s,
    ack_type=st.integers(0, 1),
    message_id=st.lists(message_ids, max_size=5),
    request_id=st.none() | uint64s,
    validation_error=st.none() | st.integers(0, 4),
)
flows = st.builds(CommandFlow, consumer_id=uint64s, messagePermits=st.integers(0, 2**32 - 1))


@given(acks)
def test_an_ack_reads_as_it_was_written(command: CommandAck) -> None:
    frame = write_command(BaseCommand.Type.ACK, command)
    expected = Ack(
        command.consumer_id,
        command.ack_type == 1,
        [(i.ledgerId, i.entryId, tuple(i.ack_set)) for i in command.message_id],  # type: ignore[misc]
        command.request_id if command.HasField("request_id") else -1,
        command.validation_error if command.HasField("validation_error") else -1,
    )
    assert expected == read_ack(memoryview(frame))
    assert (BaseCommand.Type.ACK, command) == read_command(frame)


@given(flows)
def test_a_flow_reads_as_it_was_written(command: CommandFlow) -> None:
    frame = write_command(BaseCommand.Type.FLOW, command)
    assert (command.consumer_id, command.messagePermits) == read_flow(memoryview(frame))


@given(
    mutated(
        st.one_of(
            acks.map(lambda ack: write_command(BaseCommand.Type.ACK, ack)),
            flows.map(lambda flow: write_command(BaseCommand.Type.FLOW, flow)),
        )
    )
)
def test_any_change_of_the_bytes_is_read_or_refused(frame: bytes) -> None:
    refused_or_read(read_ack, frame)
    refused_or_read(read_flow, frame)


def test_another_command_is_refused() -> None:
    ping = write_command(BaseCommand.Type.PING, CommandPing())
    with pytest.raises(ProtocolError, match="without a whole FLOW"):
        read_flow(ping)
    with pytest.raises(ProtocolError, match="type 18 in place of an ACK"):
        read_ack(ping)


def test_bytes_after_the_command_are_refused() -> None:
    frame = bytearray(write_command(BaseCommand.Type.FLOW, CommandFlow(consumer_id=1, messagePermits=2)) + b"x")
    frame[3] += 1
    with pytest.raises(ProtocolError, match="1 bytes after it"):
        read_flow(frame)
