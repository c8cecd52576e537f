"""Any value of the shuffle protocol, for the properties of its codecs."""

from hypothesis import strategies as st

from protocol.shuffle import events as ev
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import BufferHeader, header
from protocol.shuffle.data_type import DataType
from protocol.shuffle.errors import (
    CANCEL_TASK_EXCEPTION,
    ILLEGAL_ARGUMENT_EXCEPTION,
    ILLEGAL_STATE_EXCEPTION,
    IO_EXCEPTION,
    PARTITION_NOT_FOUND_EXCEPTION,
    PRODUCER_FAILED_EXCEPTION,
    RUNTIME_EXCEPTION,
)
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID

INT_MAX = 2**31 - 1


def ints(low: int = -INT_MAX - 1, high: int = INT_MAX) -> st.SearchStrategy[int]:
    return st.integers(low, high)


LONGS = st.integers(-(2**63), 2**63 - 1)
ID = st.binary(min_size=16, max_size=16)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
GENERATIONS = st.sampled_from(Generation)
PARTITIONS = st.builds(ResultPartitionID.of, ID, ints(), ID, ID, ints(0), ints(0))
INDEX_SETS = st.tuples(ints(0), ints(0)).map(lambda pair: IndexSet(min(pair), max(pair)))

ERROR_CLASSES = (
    IO_EXCEPTION,
    ILLEGAL_ARGUMENT_EXCEPTION,
    ILLEGAL_STATE_EXCEPTION,
    RUNTIME_EXCEPTION,
    PARTITION_NOT_FOUND_EXCEPTION,
    PRODUCER_FAILED_EXCEPTION,
    CANCEL_TASK_EXCEPTION,
)

CLIENT_MESSAGES = st.one_of(
    st.builds(m.PartitionRequest, PARTITIONS, INDEX_SETS, ID, ints(0)),
    st.builds(m.TaskEventRequest, st.binary(max_size=50), PARTITIONS, ID),
    st.builds(m.CancelPartitionRequest, ID),
    st.just(m.CloseRequest()),
    st.builds(m.AddCredit, ID, ints(1)),
    st.builds(m.ResumeConsumption, ID),
    st.builds(m.AckAllUserRecordsProcessed, ID),
    st.builds(m.NewBufferSize, ID, ints(1)),
    st.builds(m.SegmentId, ID, ints(), ints(1)),
)
SERVER_MESSAGES = st.one_of(
    st.builds(m.BacklogAnnouncement, ID, ints(1)),
    st.builds(m.ErrorResponse, st.sampled_from(ERROR_CLASSES), st.none() | TEXT, st.none() | ID),
)


def for_generation(message: m.Message, generation: Generation) -> m.Message:
    """1.16 has no requests for several subpartitions."""
    if generation is Generation.V1_16 and isinstance(message, m.PartitionRequest):
        start = message.subpartitions.start
        return message._replace(subpartitions=IndexSet(start, start))
    return message


@st.composite
def buffers(draw: st.DrawFn, generation: Generation, max_size: int = 60) -> tuple[BufferHeader, bytes]:
    """A header and its payload."""
    data_type = DataType(draw(st.integers(0, generation.last_data_type)))
    payload = draw(st.binary(min_size=1 if data_type.is_event else 0, max_size=max_size))
    sizes: tuple[int, ...] = ()
    if generation is Generation.V2_0 and payload and draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, len(payload)), max_size=4)))
        sizes = tuple(after - before for before, after in zip([0, *cuts], [*cuts, len(payload)], strict=True))
    subpartition = -1 if generation is Generation.V1_16 else draw(ints(-1))
    head = BufferHeader(
        draw(ID), subpartition, sizes, draw(ints(0)), draw(ints(0)), data_type, draw(st.booleans()), len(payload)
    )
    return head, payload


def packed(head: BufferHeader, generation: Generation) -> bytes:
    return header(
        generation,
        head.receiver,
        head.subpartition,
        head.sequence,
        head.backlog,
        head.data_type,
        head.compressed,
        head.size,
        head.partial_sizes,
    )


@st.composite
def pushes(draw: st.DrawFn) -> w.PushBuffer:
    data_type = DataType(draw(st.integers(1, 13)))
    payload = draw(st.binary(min_size=1 if data_type.is_event else 0, max_size=60))
    return w.PushBuffer(draw(ints()), draw(ints(0)), draw(ints(0)), data_type, draw(st.booleans()), memoryview(payload))


WRITER_FRAMES = st.one_of(
    st.builds(
        w.OpenPartition,
        ID,
        PARTITIONS,
        st.integers(1, w.MAX_SUBPARTITIONS),
        st.sampled_from(w.PartitionType),
        st.integers(-1, 2**63 - 1),
        TEXT,
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        ints(),
    ),
    pushes(),
    st.builds(w.FinishPartition, ints()),
    st.builds(w.FailPartition, ints(), TEXT),
    st.builds(w.ReleasePartition, ints(), PARTITIONS),
    st.builds(w.ListPartitions, ints(), TEXT),
    st.builds(w.CloseWriter, ints()),
    st.builds(w.ReleaseDataSet, ints(), ID),
)
_INFO = st.builds(
    w.PartitionInfo,
    PARTITIONS,
    st.sampled_from(w.PartitionType),
    st.sampled_from(w.PartitionState),
    ints(),
    LONGS,
    LONGS,
    ints(),
)
SERVER_FRAMES = st.one_of(
    st.builds(w.PartitionOpened, ID, ints(), ints(), st.lists(ints(), max_size=5).map(tuple)),
    st.builds(w.WriterCredit, ints(), ints()),
    st.builds(w.PushAcknowledged, ints(), st.lists(st.tuples(ints(), ints()), max_size=3).map(tuple)),
    st.builds(w.PartitionFinished, ints()),
    st.builds(w.WriterError, ID, ints(), st.sampled_from(w.WriterErrorCode), TEXT),
    st.builds(w.WriterTaskEvent, ints(), ints(), st.binary(max_size=30)),
    st.builds(w.PartitionReleased, ints(), st.booleans()),
    st.builds(w.PartitionList, ints(), st.lists(_INFO, max_size=3).map(tuple)),
    st.builds(w.BufferSizeHint, ints(), ints(), ints()),
    st.builds(w.AllRecordsProcessed, ints(), ints()),
    st.builds(w.DataSetReleased, ints(), ints()),
)

PLAIN_EVENTS = st.one_of(
    st.just(ev.EndOfPartition()),
    st.just(ev.EndOfSuperstep()),
    st.just(ev.EndOfOutputChannelState()),
    st.just(ev.EndOfInputChannelState()),
    st.just(ev.EndOfSegment()),
    st.builds(ev.EndOfData, st.sampled_from(ev.StopMode)),
    st.builds(ev.CancelCheckpointMarker, LONGS),
    st.builds(ev.SubtaskConnectionDescriptor, ints(), ints()),
    st.builds(ev.RecoveryMetadata, ints()),
    st.builds(ev.Watermark, TEXT, LONGS | st.booleans(), st.booleans()),
)


@st.composite
def barriers(draw: st.DrawFn) -> ev.CheckpointBarrier:
    kind = draw(st.sampled_from(ev.SnapshotType))
    formats = ev.SavepointFormat if kind.is_savepoint else [ev.SavepointFormat.CANONICAL]
    return ev.CheckpointBarrier(
        draw(LONGS),
        draw(LONGS),
        kind,
        draw(st.sampled_from(formats)),
        draw(st.none() | st.binary(min_size=1, max_size=10)),
        draw(st.sampled_from(ev.Alignment)),
        draw(LONGS | st.just(ev.NO_TIMEOUT)),
    )


EVENTS = (
    PLAIN_EVENTS
    | barriers()
    | st.builds(ev.OtherEvent, TEXT, st.binary(max_size=10))
    | st.builds(ev.EventAnnouncement, ints(), PLAIN_EVENTS | barriers())
)


@st.composite
def mutated(draw: st.DrawFn, data: bytes, start: int = 0) -> bytearray:
    """``data`` with one to four bytes changed, none of them before ``start``."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(start, max(start, len(changed) - 1)))
        if at < len(changed):
            changed[at] = draw(st.integers(0, 255))
    return changed


@st.composite
def in_pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """``data`` as a network may deliver it: cut anywhere, also into empty pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[before:after] for before, after in zip([0, *cuts], [*cuts, len(data)], strict=True)]
