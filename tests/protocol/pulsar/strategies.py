"""Hypothesis strategies for Pulsar's messages and frames, and the rule for all codecs of hostile bytes."""

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from protocol.errors import ProtocolError
from protocol.pulsar.pulsar_pb2 import CommandSend, KeyValue, MessageIdData, MessageMetadata
from protocol.pulsar.sends import write_send, write_stored_part

uint64s = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([2**63 - 1, 2**64 - 1, 127, 128]))
int32s = st.one_of(st.integers(-5, 300), st.integers(-(2**31), 2**31 - 1))
int64s = st.one_of(st.integers(-5, 300), st.integers(-(2**63), 2**63 - 1))
texts = st.text(max_size=20)
properties = st.lists(st.builds(KeyValue, key=texts, value=texts), max_size=3)


message_ids = st.builds(
    MessageIdData,
    ledgerId=uint64s,
    entryId=uint64s,
    partition=st.none() | int32s,
    batch_index=st.none() | int32s,
    ack_set=st.none() | st.lists(int64s, max_size=4),
)
sends = st.builds(
    CommandSend,
    producer_id=uint64s,
    sequence_id=uint64s,
    num_messages=st.none() | int32s,
    highest_sequence_id=st.none() | uint64s,
    is_chunk=st.none() | st.booleans(),
    txnid_least_bits=st.none() | uint64s,
    message_id=st.none() | message_ids,
)
metadata = st.builds(
    MessageMetadata,
    producer_name=texts,
    sequence_id=uint64s,
    publish_time=uint64s,
    properties=properties,
    partition_key=st.none() | texts,
    partition_key_b64_encoded=st.none() | st.booleans(),
    ordering_key=st.none() | st.binary(max_size=10),
    num_messages_in_batch=st.none() | int32s,
    event_time=st.none() | uint64s,
    deliver_at_time=st.none() | int64s,
    marker_type=st.none() | int32s,
    null_value=st.none() | st.booleans(),
    uuid=st.none() | texts,
    num_chunks_from_msg=st.none() | int32s,
    chunk_id=st.none() | int32s,
)
stored_parts = st.builds(
    lambda metadata, payload, checksum: write_stored_part(metadata.SerializeToString(), payload, checksum=checksum),
    metadata,
    st.binary(max_size=60),
    st.booleans(),
)
send_frames = st.builds(write_send, sends, stored_parts)


@st.composite
def mutated(draw: st.DrawFn, frames: SearchStrategy[bytes]) -> bytes:
    """A frame with some bytes changed, removed or inserted, and often with sizes that still fit, so that the rest is read."""
    frame = bytearray(draw(frames))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(frame) - 1)))
        match draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change":
                frame[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del frame[at : at + draw(st.integers(1, 8))]
            case "insert":
                frame[at:at] = draw(st.binary(max_size=6))
            case _:
                frame[at:at] = frame[at : at + draw(st.integers(1, 8))]
    if draw(st.booleans()) and len(frame) >= 8:
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


def refused_or_read(read: Callable[[bytes], object], data: bytes) -> None:
    """``read`` returns or raises ProtocolError; any other exception fails the test."""
    try:
        read(data)
    except ProtocolError:
        pass
