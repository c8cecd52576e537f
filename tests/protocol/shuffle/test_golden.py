"""Every vector of Flink 2.3.0 is parsed to its meaning and encoded to the same bytes."""

from typing import Any

import pytest

from protocol.shuffle import errors, events, messages, records
from protocol.shuffle.buffer_response import BufferHeader, BufferResponse, ClientDecoder
from protocol.shuffle.compression import Codec, compress, decompress
from protocol.shuffle.data_type import DATA_TYPES, DataType
from protocol.shuffle.frame import frame_size
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from protocol.shuffle.java_stream import encode_throwable, read_throwable
from tests.loops import loop_over
from tests.protocol.shuffle.golden import GOLDEN, named, vectors
from tests.protocol.shuffle.strategies import packed

V2_0 = Generation.V2_0
PARTITION = ResultPartitionID.from_hex(GOLDEN["partition_hex"])
RECEIVER = bytes.fromhex(GOLDEN["input_channel_id_hex"])

CLIENT = [vector for vector in vectors("messages") if vector["direction"] == "client->server"]
BUFFERS = [vector for vector in vectors("messages") if vector["name"] == "BufferResponse"]
ERRORS = [vector for vector in vectors("messages") if vector["name"] == "ErrorResponse"]


def expected(vector: dict[str, Any]) -> messages.Message:
    match vector["name"]:
        case "PartitionRequest":
            subpartitions = IndexSet(vector["subpartition_start"], vector["subpartition_end"])
            return messages.PartitionRequest(PARTITION, subpartitions, RECEIVER, vector["credit"])
        case "TaskEventRequest":
            return messages.TaskEventRequest(bytes.fromhex(vector["event_hex"]), PARTITION, RECEIVER)
        case "CancelPartitionRequest":
            return messages.CancelPartitionRequest(RECEIVER)
        case "CloseRequest":
            return messages.CloseRequest()
        case "AddCredit":
            return messages.AddCredit(RECEIVER, vector["credit"])
        case "ResumeConsumption":
            return messages.ResumeConsumption(RECEIVER)
        case "AckAllUserRecordsProcessed":
            return messages.AckAllUserRecordsProcessed(RECEIVER)
        case "NewBufferSize":
            return messages.NewBufferSize(RECEIVER, vector["buffer_size"])
        case "SegmentId":
            return messages.SegmentId(RECEIVER, vector["subpartition"], vector["segment_id"])
        case "BacklogAnnouncement":
            return messages.BacklogAnnouncement(RECEIVER, vector["backlog"])
    raise AssertionError(vector["name"])


def test_no_kind_of_message_is_missing() -> None:
    assert set(messages.MessageId) == {vector["id"] for vector in vectors("messages")}


@pytest.mark.parametrize("vector", CLIENT, ids=named)
def test_what_flinks_client_sends(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["hex"])
    assert vector["length"] == frame_size(frame) == len(frame)
    assert vector["id"] == frame[8]
    message = messages.parse(memoryview(frame), V2_0)
    assert expected(vector) == message
    assert type(expected(vector)) is type(message)
    assert frame == messages.encode(message, V2_0)


def test_a_backlog_announcement() -> None:
    (vector,) = (vector for vector in vectors("messages") if vector["name"] == "BacklogAnnouncement")
    frame = bytes.fromhex(vector["hex"])
    assert [expected(vector)] == ClientDecoder(V2_0).feed(frame)
    assert frame == messages.encode(expected(vector), V2_0)


@pytest.mark.parametrize("vector", BUFFERS, ids=named)
def test_a_buffer_response(vector: dict[str, Any]) -> None:
    frame, payload = bytes.fromhex(vector["hex"]), bytes.fromhex(vector["payload_hex"])
    partial_sizes = tuple(vector["partial_sizes"])
    (response,) = ClientDecoder(V2_0).feed(frame)
    assert isinstance(response, BufferResponse)
    assert (
        RECEIVER,
        vector["subpartition"],
        partial_sizes,
        vector["sequence"],
        vector["backlog"],
        vector["data_type"],
        vector["compressed"],
        vector["size"],
        payload,
    ) == response
    assert vector.get("next_sequence", vector["sequence"] + 1) == response.next_sequence
    assert frame == packed(BufferHeader(*response[:-1]), V2_0) + payload


@pytest.mark.parametrize("vector", ERRORS, ids=named)
def test_an_error_response(vector: dict[str, Any]) -> None:
    class_name, _, message = vector["cause"].partition(": ")
    receiver = None if vector["receiver"] is None else RECEIVER
    (error,) = ClientDecoder(V2_0).feed(bytes.fromhex(vector["hex"]))
    assert errors.ErrorResponse(class_name, message, receiver) == error
    assert isinstance(error, errors.ErrorResponse)
    assert vector["fatal"] == error.is_fatal
    # Our encoding has fewer bytes.
    ours = errors.encode_error(class_name, message, receiver)
    assert len(ours) < vector["length"]
    assert [error] == ClientDecoder(V2_0).feed(ours)


@pytest.mark.parametrize("vector", vectors("minimal_java_serialization"), ids=named)
def test_the_smallest_throwable_that_java_reads(vector: dict[str, Any]) -> None:
    named_in = vector["name"].split(",")[0].split()[0]
    class_name = next(name for name in (errors.IO_EXCEPTION, errors.PARTITION_NOT_FOUND_EXCEPTION) if named_in in name)
    assert vector["hex"] == encode_throwable(class_name, vector["message"]).hex()
    throwable, end = read_throwable(bytes.fromhex(vector["hex"]))
    assert (class_name, vector["message"], vector["length"]) == (*throwable, end)


def test_the_ids_in_their_text_forms() -> None:
    assert GOLDEN["partition_hex"] == PARTITION.hex()
    assert GOLDEN["partition_toString"] == str(PARTITION)
    assert GOLDEN["producer_toString"] == PARTITION.producer_text


def test_the_data_types_and_their_flags() -> None:
    assert list(GOLDEN["data_types"]) == [data_type.name for data_type in DataType]
    for name, flags in GOLDEN["data_types"].items():
        data_type = DATA_TYPES[flags["ordinal"]]
        assert name == data_type.name
        assert flags == {
            "ordinal": data_type.value,
            "isBuffer": data_type.is_buffer,
            "isEvent": data_type.is_event,
            "hasPriority": data_type.has_priority,
            "isBlockingUpstream": data_type.is_blocking_upstream,
            "requiresAnnouncement": data_type.requires_announcement,
            "isPartialRecord": data_type.is_partial_record,
        }


@loop_over("vector", vectors("events"))
def test_an_event(vector: dict[str, Any]) -> None:
    serialized = bytes.fromhex(vector["hex"])
    event = events.parse(serialized)
    assert vector["data_type"] == events.data_type_of(event).name
    assert serialized == events.encode(event)
    # "CheckpointBarrier", "EndOfPartitionEvent", ...; an event without a class here names its own.
    flinks_name = vector["event"] if isinstance(event, events.OtherEvent) else vector["event"].rsplit(".", 1)[-1]
    ours = event.class_name if isinstance(event, events.OtherEvent) else type(event).__name__
    assert ours in (flinks_name, flinks_name.removesuffix("Event"))


@loop_over("vector", vectors("events"))
def test_event_with_padding_of_pipelined_producer(vector: dict[str, Any]) -> None:
    serialized = bytes.fromhex(vector["hex"])
    event = events.parse(serialized.ljust(vector["pipelined_wire_size"], b"\0"))
    if isinstance(event, events.OtherEvent):  # only its class could tell where it ends
        assert vector["event"] == event.class_name
        assert not any(event.data)
    else:
        assert events.parse(serialized) == event


PLAIN = "".join(f"{number:010d}\n" for number in range(100)).encode()[:1024]


@pytest.mark.parametrize("vector", [v for v in vectors("compression") if v["codec"] != "LZO"], ids=named)
def test_a_compressed_buffer(vector: dict[str, Any]) -> None:
    codec, block = Codec(vector["codec"]), bytes.fromhex(vector["hex"])
    assert decompress(codec, block) == PLAIN
    # Compressors may differ in their output, which must be readable.
    ours = compress(codec, PLAIN)
    assert ours is not None
    assert decompress(codec, ours) == PLAIN


def test_lzo_is_not_served() -> None:
    assert {vector["codec"] for vector in vectors("compression")} - {codec.value for codec in Codec} == {"LZO"}


@pytest.mark.parametrize("vector", vectors("records"), ids=named)
def test_a_record(vector: dict[str, Any]) -> None:
    body = vector["n"].to_bytes(4, "big") + bytes(range(vector["n"]))
    stream = bytes.fromhex(vector["hex"])
    assert stream == records.encode_record(body)
    assert [body] == records.RecordDecoder().feed(stream)
    encoder = records.RecordEncoder()
    assert [] == encoder.add(body)
    assert stream == encoder.flush()
