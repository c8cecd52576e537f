"""What we write is read by Flink's own decoders, and what Flink writes by ours; one release of each generation."""

import functools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.shuffle import errors, events, messages
from protocol.shuffle.buffer_response import ClientDecoder
from protocol.shuffle.compression import Codec, compress, decompress
from protocol.shuffle.data_type import AS_KNOWN_BY, DATA_TYPES
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from tests.compat.flink.frame_tool import FlinkError, FrameTool, Received, text_of
from tests.compat.flink.jars import RELEASES, missing
from tests.protocol.shuffle.strategies import (
    CLIENT_MESSAGES,
    ERROR_CLASSES,
    EVENTS,
    ID,
    TEXT,
    buffers,
    for_generation,
    packed,
)

RECEIVER = bytes(range(0xA0, 0xB0))
PARTITION = ResultPartitionID.of(bytes(range(16)), 7, bytes(range(32, 48)), bytes(range(48, 64)), 3, 1)
# One JVM serves all examples of a test.
examples = settings(suppress_health_check=list(HealthCheck), max_examples=60)


@pytest.fixture(scope="module", params=RELEASES)
def flink(request: pytest.FixtureRequest) -> Iterator[FrameTool]:
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    with FrameTool(request.param) as tool:
        yield tool


@pytest.fixture
def generation(flink: FrameTool) -> Generation:
    return Generation(flink.release)


@functools.singledispatch
def understood(message: object, generation: Generation) -> Received:
    raise AssertionError(message)


@understood.register
def _(message: messages.PartitionRequest, generation: Generation) -> Received:
    single = generation is Generation.V1_16
    start, end = message.subpartitions
    fields = {
        "partitionId": str(message.partition),
        "queueIndex" if single else "queueIndexSet": str(start) if single else f"[{start},{end}]",
        "receiverId": message.receiver.hex(),
        "credit": str(message.credit),
    }
    return Received("PartitionRequest", fields)


@understood.register
def _(message: messages.TaskEventRequest, generation: Generation) -> Received:
    event = events.parse(message.event)
    assert isinstance(event, events.OtherEvent)
    fields = {
        "event": event.class_name,
        "partitionId": str(message.partition),
        "receiverId": message.receiver.hex(),
    }
    return Received("TaskEventRequest", fields)


@understood.register(messages.CancelPartitionRequest)
@understood.register(messages.ResumeConsumption)
@understood.register(messages.AckAllUserRecordsProcessed)
def _(message: messages.ResumeConsumption, generation: Generation) -> Received:
    return Received(type(message).__name__, {"receiverId": message.receiver.hex()})


@understood.register
def _(message: messages.CloseRequest, generation: Generation) -> Received:
    return Received("CloseRequest", {})


@understood.register
def _(message: messages.AddCredit, generation: Generation) -> Received:
    return Received("AddCredit", {"credit": str(message.credit), "receiverId": message.receiver.hex()})


@understood.register
def _(message: messages.NewBufferSize, generation: Generation) -> Received:
    return Received("NewBufferSize", {"bufferSize": str(message.buffer_size), "receiverId": message.receiver.hex()})


@understood.register
def _(message: messages.SegmentId, generation: Generation) -> Received:
    fields = {
        "subpartitionId": str(message.subpartition),
        "segmentId": str(message.segment_id),
        "receiverId": message.receiver.hex(),
    }
    return Received("SegmentId", fields)


# A task event has to be of a class that Flink has, and one that is served over the network.
TASK_EVENT = events.encode(events.OtherEvent("org.apache.flink.runtime.iterative.event.TerminationEvent"))


@examples
@given(st.lists(CLIENT_MESSAGES, max_size=8), st.integers(1, 60))
def test_flinks_server_reads_what_our_client_sends(
    flink: FrameTool, generation: Generation, sent: list[messages.Message], piece: int
) -> None:
    known = []
    for message in sent:
        if isinstance(message, messages.TaskEventRequest):
            message = message._replace(event=TASK_EVENT)
        if flink.release.startswith("1.16") and isinstance(message, messages.SegmentId):
            continue  # came with 1.18
        known.append(for_generation(message, generation))
    stream = b"".join(messages.encode(message, generation) for message in known)
    assert [understood(message, generation) for message in known] == flink.received_by_server(stream, piece)


@examples
@given(st.data(), st.integers(1, 60))
def test_flinks_client_reads_the_buffers_that_we_send(
    flink: FrameTool, generation: Generation, data: st.DataObject, piece: int
) -> None:
    stream = b""
    expected: list[Received] = []
    for _ in range(data.draw(st.integers(0, 6))):
        head, payload = data.draw(buffers(generation))
        if head.data_type == 0 or (flink.release.startswith("1.16") and head.data_type == 7):
            continue
        # No credit is given for data here, so Flink passes over its payload; that of events it reads.
        content = payload.hex() if head.data_type.is_event else "null"
        fields = {
            "buffer": content,
            "receiverId": head.receiver.hex(),
            "sequenceNumber": str(head.sequence),
            "backlog": str(head.backlog),
            "dataType": DATA_TYPES[head.data_type].name,
            "isCompressed": str(head.compressed).lower(),
            "bufferSize": str(head.size),
        }
        if generation is not Generation.V1_16:
            fields["subpartitionId"] = str(head.subpartition)
        if generation is Generation.V2_0:
            fields["numOfPartialBuffers"] = str(len(head.partial_sizes))
            fields["partialBufferSizes"] = f"[{','.join(map(str, head.partial_sizes))}]"
        expected.append(Received("BufferResponse", fields))
        stream += packed(head, generation) + payload
    assert expected == flink.received_by_client(stream, piece)


@examples
@given(st.sampled_from(ERROR_CLASSES), st.none() | TEXT, st.none() | ID, st.integers(1, 500))
def test_flinks_client_reads_the_errors_that_we_send(
    flink: FrameTool, class_name: str, message: str | None, receiver: bytes | None, piece: int
) -> None:
    frame = errors.encode_error(class_name, message, receiver)
    ((name, fields),) = flink.received_by_client(frame, piece)
    assert name == "ErrorResponse"
    found_class, _, found_message = fields["cause"].partition(":")
    assert (class_name, message) == (found_class, text_of(found_message))
    assert ("null" if receiver is None else receiver.hex()) == fields["receiverId"]


def test_flinks_client_reads_a_backlog_announcement(flink: FrameTool) -> None:
    frame = messages.encode_backlog_announcement(RECEIVER, 7)
    (received,) = flink.received_by_client(frame)
    assert Received("BacklogAnnouncement", {"backlog": "7", "receiverId": RECEIVER.hex()}) == received


@pytest.mark.parametrize("receiver", [None, RECEIVER])
@pytest.mark.parametrize(
    ("kind", "class_name", "message"),
    [
        ("IOException", errors.IO_EXCEPTION, "boom"),
        ("IOException", errors.IO_EXCEPTION, "\0ä€😀"),
        ("IOException", errors.IO_EXCEPTION, "x" * 100_000),
        ("caused", errors.IO_EXCEPTION, "outer"),
        ("ProducerFailedException", errors.PRODUCER_FAILED_EXCEPTION, "producer"),
        ("PartitionNotFoundException", errors.PARTITION_NOT_FOUND_EXCEPTION, None),
        ("CancelTaskException", errors.CANCEL_TASK_EXCEPTION, "cancelled"),
        ("rich", "org.apache.flink.runtime.io.network.netty.FrameTool$Rich", "rich"),
    ],
)
def test_our_client_reads_the_errors_that_flink_sends(
    flink: FrameTool,
    generation: Generation,
    kind: str,
    class_name: str,
    message: str | None,
    receiver: bytes | None,
) -> None:
    frame = flink.error(kind, message, receiver, PARTITION)
    (error,) = ClientDecoder(generation).feed(frame)
    assert isinstance(error, errors.ErrorResponse)
    assert (class_name, receiver) == (error.class_name, error.receiver)
    if kind == "PartitionNotFoundException":
        assert f"Partition {PARTITION} not found." == error.message
    elif kind == "ProducerFailedException":
        assert error.message is not None and "java.lang.RuntimeException: producer" in error.message
    else:
        assert message == error.message


@examples
@given(EVENTS)
def test_flink_reads_and_writes_events_like_us(flink: FrameTool, generation: Generation, event: events.Event) -> None:
    inner = event.event if isinstance(event, events.EventAnnouncement) else event
    if isinstance(inner, events.OtherEvent):
        return  # of a class that nobody has
    known = events.exists_in(event, generation)
    if flink.release.startswith("1.16") and isinstance(inner, events.EndOfSegment):
        known = False  # came with 1.18
    if isinstance(inner, events.CheckpointBarrier) and not possible(inner):
        return
    serialized = events.encode(event)
    if not known:
        with pytest.raises(FlinkError):
            flink.event(serialized)
        return
    read = flink.event(serialized + bytes(5))
    assert serialized == read.serialized
    ours = type(event).__name__
    assert read.name.removesuffix("Event") == FLINKS_NAMES.get((ours, generation), ours)
    assert AS_KNOWN_BY[generation][events.data_type_of(event)].name == read.data_type


# Where ours is not Flink's but for "Event" at its end.
FLINKS_NAMES = {
    ("EndOfOutputChannelState", Generation.V1_16): "EndOfChannelState",
    ("EndOfOutputChannelState", Generation.V1_19): "EndOfChannelState",
}


def possible(barrier: events.CheckpointBarrier) -> bool:
    """What Flink's CheckpointOptions may be."""
    unaligned = barrier.alignment is events.Alignment.UNALIGNED
    if barrier.type.is_savepoint and unaligned:
        return False
    return barrier.aligned_timeout_ms == events.NO_TIMEOUT or not unaligned


COMPRESSIBLE = st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=50), st.integers(50, 600))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@examples
@given(COMPRESSIBLE)
def test_compressed_buffers_go_both_ways(flink: FrameTool, codec: Codec, data: bytes) -> None:
    assert data == decompress(codec, flink.compress(codec.value, data))
    ours = compress(codec, data)
    if ours is not None:
        assert data == flink.decompress(codec.value, ours)


def test_request_of_another_generation_is_misread(flink: FrameTool, generation: Generation) -> None:
    """Nothing on the wire tells them apart: this is why a port has a generation."""
    other = Generation.V1_16 if generation is not Generation.V1_16 else Generation.V2_0
    frame = messages.encode_partition_request(other, PARTITION, IndexSet(3, 3), RECEIVER, 2)
    request = messages.PartitionRequest(PARTITION, IndexSet(3, 3), RECEIVER, 2)
    try:
        (received,) = flink.received_by_server(frame)
    except FlinkError:
        return
    assert understood(request, generation) != received
