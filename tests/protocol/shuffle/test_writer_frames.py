import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle import writer_frames as w
from protocol.shuffle.data_type import DataType
from protocol.shuffle.frame import frame_size
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.messages import MessageId
from tests.protocol.shuffle.strategies import SERVER_FRAMES, WRITER_FRAMES, mutated, pushes

PARTITION = ResultPartitionID(bytes(range(60)))
WRITER = bytes(range(16))
ROOT = Path(__file__).parents[3]


@given(WRITER_FRAMES)
def test_what_a_writer_sends_is_read_back(message: w.WriterFrame) -> None:
    frame = w.encode(message)
    assert len(frame) == frame_size(frame)
    parsed = w.parse(memoryview(frame))
    assert message == parsed
    assert type(message) is type(parsed)


@given(SERVER_FRAMES)
def test_what_a_broker_sends_is_read_back(message: w.ServerFrame) -> None:
    frame = w.encode(message)
    assert len(frame) == frame_size(frame)
    parsed = w.parse_server(memoryview(frame))
    assert message == parsed
    assert type(message) is type(parsed)


def test_opening_without_incarnation_is_the_older_frame() -> None:
    old = w.encode_open_partition(WRITER, PARTITION, 2, w.PartitionType.BLOCKING, 10_000, "alice")
    assert old.hex().endswith("0005616c696365")
    opened = w.parse(memoryview(old))
    assert isinstance(opened, w.OpenPartition)
    assert (opened.incarnation, opened.resumes) == (w.NO_INCARNATION, False)
    new = w.encode_open_partition(WRITER, PARTITION, 2, w.PartitionType.BLOCKING, 10_000, "alice", 7, True, 3)
    assert new[9:] == old[9:] + bytes.fromhex("00000000000000070100000003")


@given(WRITER_FRAMES | SERVER_FRAMES, st.data())
def test_each_truncation_is_a_protocol_error(message: Any, data: st.DataObject) -> None:
    frame = w.encode(message)
    length = data.draw(st.integers(0, len(frame) - 1))
    if isinstance(message, w.OpenPartition) and (message.incarnation or message.resumes or message.attempt):
        assume(length != len(frame) - 13)  # without an incarnation, as older writers sent it
    cut = memoryview(frame)[:length]
    for parse in (w.parse, w.parse_server):
        with pytest.raises(ProtocolError):
            parse(cut)


@given(WRITER_FRAMES | SERVER_FRAMES, st.data())
def test_mutations_are_messages_or_protocol_errors(message: Any, data: st.DataObject) -> None:
    frame = data.draw(mutated(w.encode(message), start=8))
    for parse in (w.parse, w.parse_server):
        try:
            w.encode(parse(memoryview(frame)))
        except ProtocolError:
            pass


@given(pushes(), st.binary(min_size=1, max_size=3))
def test_push_has_exactly_its_stated_length(push: w.PushBuffer, more: bytes) -> None:
    with pytest.raises(ProtocolError, match="bytes"):
        w.parse_push(memoryview(w.encode(push) + more))


def test_payload_of_a_push_is_not_copied() -> None:
    frame = bytearray(w.encode_push_buffer(1, 2, 3, DataType.DATA_BUFFER, False, b"payload"))
    push = w.parse(memoryview(frame))
    assert isinstance(push, w.PushBuffer)
    frame[-7:] = b"changed"
    assert push.payload == b"changed"
    assert len(frame) - 7 == w.PUSH_HEADER_BYTES


@pytest.mark.parametrize(
    "push",
    [
        w.PushBuffer(1, -1, 0, DataType.DATA_BUFFER, False, memoryview(b"x")),
        w.PushBuffer(1, 0, -1, DataType.DATA_BUFFER, False, memoryview(b"x")),
        w.PushBuffer(1, 0, 0, DataType.NONE, False, memoryview(b"x")),
        w.PushBuffer(1, 0, 0, DataType.END_OF_DATA, False, memoryview(b"")),
        w.PushBuffer(1, 0, 0, 14, False, memoryview(b"x")),  # type: ignore[arg-type]
    ],
)
def test_pushes_that_no_reader_could_take_are_refused(push: w.PushBuffer) -> None:
    with pytest.raises(ProtocolError):
        w.parse(memoryview(w.encode(push)))


def test_data_of_no_bytes_may_be_pushed() -> None:
    push = w.parse(memoryview(w.encode_push_buffer(1, 0, 0, DataType.DATA_BUFFER, False, b"")))
    assert w.PushBuffer(1, 0, 0, DataType.DATA_BUFFER, False, memoryview(b"")) == push


@pytest.mark.parametrize(
    ("subpartitions", "kind", "ttl_ms"),
    [(0, 0, -1), (-1, 0, -1), (w.MAX_SUBPARTITIONS + 1, 0, -1), (1, 2, -1), (1, 1, -2)],
)
def test_partitions_of_an_impossible_shape_are_refused(subpartitions: int, kind: int, ttl_ms: int) -> None:
    with pytest.raises(ProtocolError):
        w.parse(memoryview(w.encode_open_partition(WRITER, PARTITION, subpartitions, kind, ttl_ms)))


@pytest.mark.parametrize("direction", [w.parse, w.parse_server])
def test_a_frame_of_the_other_direction_is_refused(direction: Any) -> None:
    other = w.encode_writer_credit(1, 2) if direction is w.parse else w.encode_finish_partition(1)
    with pytest.raises(ProtocolError):
        direction(memoryview(other))


def test_long_text_is_cut_after_whole_character() -> None:
    message = w.parse(memoryview(w.encode_fail_partition(1, "ä" * 40_000)))
    assert w.FailPartition(1, "ä" * 32_767) == message


def test_counts_that_lie_allocate_nothing() -> None:
    for frame in (
        w.encode_partition_opened(WRITER, 1, 2, [0]),
        w.encode_push_acknowledged(1, [(0, 1)]),
        w.encode_partition_list(1, []),
    ):
        lying = bytearray(frame)
        at = 33 if frame[8] == 80 else 13
        lying[at : at + 4] = struct.pack(">i", 2**31 - 1)
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="array"):
            w.parse_server(memoryview(lying))
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()


CONVERSATION = [
    w.encode_open_partition(WRITER, PARTITION, 2, w.PartitionType.BLOCKING, 10_000, "alice"),
    w.encode_partition_opened(WRITER, 7, 16, [0, 0]),
    w.encode_push_buffer(7, 1, 0, DataType.DATA_BUFFER, False, b"data"),
    w.encode_push_acknowledged(7, [(1, 1)]),
    w.encode_writer_credit(7, 4),
    w.encode_finish_partition(7),
    w.encode_partition_finished(7),
]


def test_documented_conversation_is_the_one_on_the_wire() -> None:
    listing = (ROOT / "docs" / "PROTOCOLS.md").read_text().split("An example of a conversation")[1].split("```")[1]
    told = re.split("[<>]", re.sub(r"#.*|\s", "", listing))[1:]
    assert [frame.hex() for frame in CONVERSATION] == told


def test_documented_tables_have_every_type_and_code() -> None:
    chapter = (ROOT / "docs" / "PROTOCOLS.md").read_text().split("\n## Shuffle")[1]
    rows = set(re.findall(r"^\| (\d+) \| ([^|]*?) \|", chapter, re.MULTILINE))
    names = {(number, name.replace("_", "").lower()) for number, name in rows}
    for kind in (w.WriterId, MessageId, DataType):
        for member in kind:
            if member is not DataType.NONE:
                assert (str(member.value), member.name.replace("_", "").lower()) in names
    assert {str(code.value) for code in w.WriterErrorCode} <= {number for number, _ in rows}
