import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.pulsar.frames import read_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandSend, MessageMetadata
from protocol.pulsar.sends import (
    Send,
    _read_any_send,
    crc_matches,
    read_send,
    read_stored_part,
    write_send,
    write_stored_part,
)
from tests.protocol.pulsar.strategies import metadata, mutated, refused_or_read, send_frames, sends, stored_parts

METADATA = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1).SerializeToString()
STORED = write_stored_part(METADATA, b"payload")


@given(sends, metadata, st.binary(max_size=60), st.booleans())
def test_a_send_reads_as_it_was_written(command: CommandSend, meta: MessageMetadata, payload: bytes, crc: bool) -> None:
    stored = write_stored_part(meta.SerializeToString(), payload, checksum=crc)
    frame = write_send(command, stored)
    send = read_send(memoryview(frame))
    assert (command.producer_id, command.sequence_id, command.num_messages) == send[:3]
    assert (command.highest_sequence_id, command.is_chunk) == send[3:5]
    assert meta == MessageMetadata.FromString(frame[send.metadata : send.payload])
    assert payload == frame[send.payload : send.end]
    assert stored == frame[send.start : send.end]
    assert crc == (send.crc >= 0)
    assert crc_matches(frame, send)


@given(st.one_of(send_frames, mutated(send_frames)))
@example(write_send(CommandSend(producer_id=0, sequence_id=0), STORED))
@example(write_send(CommandSend(producer_id=0, sequence_id=2**49, num_messages=2**31 - 1), STORED))
@example(write_send(CommandSend(producer_id=0, sequence_id=2**64 - 1, num_messages=-1), STORED))
def test_the_short_way_reads_what_protobuf_reads(frame: bytes) -> None:
    def outcome(read: object) -> object:
        try:
            return read(frame)  # type: ignore[operator]
        except ProtocolError as error:
            return str(error)

    assert outcome(_read_any_send) == outcome(read_send)


@given(st.binary(max_size=14), st.integers(0, 3))
def test_short_path_reads_any_command_like_protobuf(body: bytes, more: int) -> None:
    command = b"\x08\x06\x32" + bytes((len(body) + more,)) + body
    frame = (4 + len(command) + len(STORED)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + STORED
    test_the_short_way_reads_what_protobuf_reads.hypothesis.inner_test(frame)


@given(send_frames, st.data())
def test_a_send_that_is_cut_off_is_refused(frame: bytes, data: st.DataObject) -> None:
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    with pytest.raises(ProtocolError):
        read_send(cut)


@given(stored_parts, st.data())
def test_any_changed_byte_is_found_by_the_checksum(stored: bytes, data: st.DataObject) -> None:
    part = read_stored_part(stored)
    assume(part.crc >= 0)
    at = data.draw(st.integers(10, len(stored) - 1))
    changed = bytearray(stored)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert crc_matches(stored, part)
    assert not crc_matches(changed, part)


@given(st.binary(max_size=40))
def test_random_bytes_are_a_stored_part_or_refused(stored: bytes) -> None:
    refused_or_read(read_stored_part, stored)


def test_checksum_covers_metadata_size_metadata_and_payload() -> None:
    assert b"\x0e\x01" == STORED[:2]
    assert crc32c(STORED[6:]).to_bytes(4, "big") == STORED[2:6]
    assert len(METADATA).to_bytes(4, "big") == STORED[6:10]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"", "without metadata"),
        (b"\x00\x00\x00", "without metadata"),
        (b"\x00\x00\x00\x02\x00", "metadata of 2 bytes where 1 are left"),
        (STORED[:6] + b"\xff\xff\xff\xff" + STORED[10:], "metadata of 4294967295 bytes"),
    ],
)
def test_lies_about_the_metadata_are_refused(stored: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_send(write_send(CommandSend(producer_id=1, sequence_id=1), stored))


@pytest.mark.parametrize("command", [b"\x08\x06", b"\x08\x06\x32\x00", b"\x08\x06\x32\x02\x08\x01", b"\x08\x0b"])
def test_a_send_that_lacks_a_field_is_refused(command: bytes) -> None:
    frame = (4 + len(command) + len(STORED)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + STORED
    with pytest.raises(ProtocolError):
        read_send(frame)


def test_a_send_is_no_simple_command() -> None:
    with pytest.raises(ProtocolError, match="bytes after it"):
        read_command(write_send(CommandSend(producer_id=1, sequence_id=1), STORED))


def test_cpp_client_frame_takes_the_short_path(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = write_send(CommandSend(producer_id=3, sequence_id=1 << 40, num_messages=1000, is_chunk=False), STORED)
    monkeypatch.setattr("protocol.pulsar.sends._read_any_send", None)
    assert isinstance(read_send(frame), Send)
    assert BaseCommand.Type.SEND == frame[9]
