import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.pulsar.deliveries import Deliveries, broker_entry_block, read_delivery
from protocol.pulsar.frames import frame_size, write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, BrokerEntryMetadata, CommandMessage, MessageIdData
from tests.protocol.pulsar.strategies import int64s, mutated, refused_or_read, stored_parts, uint64s

partitions = st.just(-1) | st.integers(0, 2**31 - 1)
redelivery_counts = st.just(0) | st.integers(0, 2**32 - 1)
frames = st.builds(
    lambda head, stored: head + stored,
    st.builds(
        lambda block: Deliveries(1, 5).head(7, 0, broker_entry=block), st.sampled_from([b"", broker_entry_block(1, 2)])
    ),
    stored_parts,
).map(lambda frame: (len(frame) - 4).to_bytes(4, "big") + frame[4:])


@given(
    uint64s,
    uint64s,
    partitions,
    uint64s,
    st.integers(0, 2**20),
    redelivery_counts,
    st.lists(int64s, max_size=20),
    st.none() | uint64s,
)
def test_a_head_is_the_bytes_that_protobuf_writes(
    consumer_id: int,
    ledger_id: int,
    partition: int,
    entry_id: int,
    size: int,
    redeliveries: int,
    ack_set: list[int],
    epoch: int | None,
) -> None:
    message_id = MessageIdData(ledgerId=ledger_id, entryId=entry_id, partition=None if partition < 0 else partition)
    message = CommandMessage(
        consumer_id=consumer_id,
        message_id=message_id,
        redelivery_count=redeliveries or None,
        ack_set=ack_set,
        consumer_epoch=epoch,
    )
    expected = bytearray(write_command(BaseCommand.Type.MESSAGE, message))
    expected[:4] = (len(expected) - 4 + size).to_bytes(4, "big")
    assert expected == Deliveries(consumer_id, ledger_id, partition).head(entry_id, size, redeliveries, ack_set, epoch)


@given(uint64s, uint64s, partitions, uint64s, st.integers(0, 127), st.integers(0, 2**20))
def test_plain_head_is_shared_by_nearby_entries(
    consumer_id: int, ledger_id: int, partition: int, entry_id: int, lowest: int, size: int
) -> None:
    heads = Deliveries(consumer_id, ledger_id, partition)
    before, first, after = heads.plain(entry_id, size)
    other = entry_id >> 7 << 7 | lowest
    assert heads.head(entry_id, size) == before + first[entry_id & 0x7F] + after
    assert heads.head(other, size) == before + first[lowest] + after


@given(stored_parts, st.none() | st.tuples(uint64s, uint64s))
def test_a_delivery_reads_as_it_was_written(stored: bytes, broker_entry: tuple[int, int] | None) -> None:
    block = broker_entry_block(*broker_entry) if broker_entry else b""
    frame = Deliveries(3, 5, 2).head(9, len(stored), 1, [-1], 4, block) + stored
    delivery = read_delivery(memoryview(frame))
    message_id = MessageIdData(ledgerId=5, entryId=9, partition=2)
    assert delivery.command == CommandMessage(
        consumer_id=3, message_id=message_id, redelivery_count=1, ack_set=[-1], consumer_epoch=4
    )
    assert stored == frame[delivery.stored.start : delivery.stored.end]
    if broker_entry is None:
        assert delivery.broker_entry is None
    else:
        expected = BrokerEntryMetadata(broker_timestamp=broker_entry[0], index=broker_entry[1])
        assert expected == delivery.broker_entry
    assert len(frame) == frame_size(frame)


@given(mutated(frames))
def test_changed_bytes_are_read_or_refused(frame: bytes) -> None:
    refused_or_read(read_delivery, frame)


@given(frames, st.data())
def test_a_delivery_that_is_cut_off_is_refused(frame: bytes, data: st.DataObject) -> None:
    with pytest.raises(ProtocolError):
        read_delivery(frame[: data.draw(st.integers(0, len(frame) - 1))])


def test_broker_metadata_longer_than_frame_is_refused() -> None:
    frame = bytearray(Deliveries(1, 5).head(9, 20, broker_entry=broker_entry_block(1, 1)) + bytes(20))
    at = frame.index(b"\x0e\x02")
    frame[at + 2 : at + 6] = (1000).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="1000 bytes"):
        read_delivery(frame)
