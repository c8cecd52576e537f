from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.pulsar.acks import Ack, Acked, _read_any_ack, _read_plain_ack, read_ack, read_flow
from protocol.pulsar.frames import read_command, write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandAck, CommandFlow, CommandPing, MessageIdData
from tests.protocol.pulsar.strategies import int64s, message_ids, mutated, refused_or_read, uint64s

acks = st.builds(
    CommandAck,
    consumer_id=uint64s,
    ack_type=st.integers(0, 1),
    message_id=st.lists(message_ids, max_size=5),
    request_id=st.none() | uint64s,
    validation_error=st.none() | st.integers(0, 4),
)
flows = st.builds(CommandFlow, consumer_id=uint64s, messagePermits=st.integers(0, 2**32 - 1))


def spelled_out(ack: Ack) -> Ack:
    """With each id separately."""
    assert not (ack.ids and ack.whole)
    ids = ack.ids or [Acked(ack.ledger_id, entry, ()) for entry in ack.whole]
    return ack._replace(ids=ids, ledger_id=0, whole=())


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
    assert expected == spelled_out(read_ack(memoryview(frame)))
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
def test_changed_bytes_are_read_or_refused(frame: bytes) -> None:
    refused_or_read(read_ack, frame)
    refused_or_read(read_flow, frame)


ledgers = st.sampled_from([0, 5, 300, 2**56 - 1, 2**63 - 1])
plain_ids = st.builds(
    MessageIdData, ledgerId=ledgers, entryId=uint64s, ack_set=st.none() | st.lists(int64s, max_size=14)
)
plain_acks = st.builds(
    CommandAck,
    consumer_id=uint64s,
    ack_type=st.integers(0, 1),
    message_id=st.lists(plain_ids, max_size=6),
    request_id=st.none() | uint64s,
)
ack_frames = st.one_of(plain_acks, acks).map(lambda ack: write_command(BaseCommand.Type.ACK, ack))


@given(st.one_of(ack_frames, mutated(ack_frames)))
def test_by_hand_an_ack_is_what_protobuf_reads(frame: bytes) -> None:
    def outcome(read: Callable[[bytes], Ack]) -> Ack | str:
        try:
            return spelled_out(read(frame))
        except ProtocolError as error:
            return str(error)

    assert outcome(_read_any_ack) == outcome(read_ack)


@given(st.binary(max_size=24))
def test_by_hand_any_ids_are_what_protobuf_reads(ids: bytes) -> None:
    ack = b"\x08\x01\x10\x00" + ids
    command = b"\x08\x0a\x52" + bytes((len(ack),)) + ack
    frame = (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command
    test_by_hand_an_ack_is_what_protobuf_reads.hypothesis.inner_test(frame)


@pytest.mark.parametrize(
    ("frame", "ids"),
    [
        # As sent by pulsar-client 3.13.0: whole entries, and the last of three messages of an entry.
        (
            "0000002400000020080a521c080010001a04080510051a04080510061a04080510071a0408051032",
            [(5, 5, ()), (5, 6, ()), (5, 7, ()), (5, 50, ())],
        ),
        ("000000160000001208 0a520e080010001a0608051032 2804 4009".replace(" ", ""), [(5, 50, (4,))]),
    ],
)
def test_an_ack_of_a_client_needs_no_protobuf(frame: str, ids: list[tuple[int, int, tuple[int, ...]]]) -> None:
    ack = _read_plain_ack(bytes.fromhex(frame))
    assert ack is not None
    assert [Acked(*acked) for acked in ids] == spelled_out(ack).ids
    assert spelled_out(ack) == _read_any_ack(bytes.fromhex(frame))


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
