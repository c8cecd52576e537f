"""Blocks come back whole and in order, also if the broker restarts in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client import Broker, ResultPartitionID, ShuffleAdmin, ShuffleWriter
from broker.client.shuffle.blocks import BlockReader, new_data_set, push_block
from broker.client.shuffle.errors import (
    AnotherAttemptWonError,
    ConnectionFailedError,
    LocalTransportError,
    PartitionNotFoundError,
    ShuffleError,
    ShuffleTimeoutError,
)
from protocol.shuffle.data_type import DataType
from tests.client.shuffle.reference_server import ReferenceServer


class Pushed:
    """A writer that notes its pushes."""

    def __init__(self) -> None:
        self.pushes: list[tuple[bytes, DataType]] = []

    def push(self, subpartition: int, payload: bytes, data_type: DataType, **_: object) -> None:
        assert subpartition == 5
        self.pushes.append((bytes(payload), data_type))


@given(block=st.binary(min_size=1, max_size=100), buffer_size=st.integers(1, 40))
def test_block_is_cut_into_full_buffers(block: bytes, buffer_size: int) -> None:
    writer = Pushed()
    push_block(writer, 5, block, buffer_size=buffer_size)  # type: ignore[arg-type]
    assert block == b"".join(payload for payload, _ in writer.pushes)
    assert -(-len(block) // buffer_size) == len(writer.pushes)
    *before, (_, last) = writer.pushes
    assert all(len(payload) == buffer_size and kind is DataType.DATA_BUFFER for payload, kind in before)
    assert DataType.DATA_BUFFER_WITH_CLEAR_END is last


def test_empty_block_is_refused() -> None:
    with pytest.raises(ValueError):
        push_block(Pushed(), 5, b"")  # type: ignore[arg-type]


def block(writer: int, number: int) -> bytes:
    return b"%d/%d " % (writer, number) * (number % 7 * 1000 + 1)


def write(address: str, partition: ResultPartitionID, writer: int, blocks: int = 20) -> None:
    with ShuffleWriter(address, partition, 2, "blocking") as out:
        for number in range(blocks):
            push_block(out, number % 2, block(writer, number), buffer_size=1500)


@pytest.mark.parametrize("writers", [1, 3, 12])
def test_blocks_come_whole_in_channel_order(broker: Broker, writers: int) -> None:
    """Twelve channels, which share their buffers."""
    address, data_set = broker.shuffle_address, new_data_set()
    partitions = [ResultPartitionID.of(data_set, number) for number in range(writers)]
    for number, partition in enumerate(partitions):
        write(address, partition, number)
    received: list[list[bytes]] = [[] for _ in range(writers)]
    for channel, payload in BlockReader([(address, partition, 1) for partition in partitions]):
        received[channel].append(bytes(payload))
    assert [[block(writer, number) for number in range(1, 20, 2)] for writer in range(writers)] == received


def test_broker_may_restart_in_the_middle(tmp_path: object) -> None:
    partitions = [ResultPartitionID.of(new_data_set(), number) for number in range(2)]
    with Broker(str(tmp_path)) as first:
        port = first.shuffle_address.rpartition(":")[2]
        for number, partition in enumerate(partitions):
            write(first.shuffle_address, partition, number, blocks=2000)
        reader = iter(BlockReader([(first.shuffle_address, partition, 0) for partition in partitions]))
        received: list[list[bytes]] = [[], []]
        for _ in range(3):
            channel, payload = next(reader)
            received[channel].append(bytes(payload))
    with Broker(str(tmp_path), listeners=("kafka://127.0.0.1:0", f"shuffle://127.0.0.1:{port}")):
        for channel, payload in reader:
            received[channel].append(bytes(payload))
    assert [[block(writer, number) for number in range(0, 2000, 2)] for writer in range(2)] == received


@pytest.mark.parametrize("cuts", [{3}, {3, 4, 30}])
def test_blocks_read_before_a_loss_are_skipped(
    server: ReferenceServer, partition: ResultPartitionID, cuts: set[int]
) -> None:
    write(server.address, partition, 0, blocks=100)
    received = []
    for _, payload in BlockReader([(server.address, partition, 0)]):
        received.append(bytes(payload))
        if len(received) in cuts:
            server.cut_connections()
    assert [block(0, number) for number in range(0, 100, 2)] == received


def test_released_partition_is_not_awaited_for_long() -> None:
    with (
        Broker(shuffle_partition_request_timeout_ms=50) as broker,
        pytest.raises(PartitionNotFoundError),
    ):
        list(BlockReader([(broker.shuffle_address, ResultPartitionID.of(new_data_set()), 0)]))


def test_patience_ends_without_a_broker() -> None:
    with Broker() as broker:
        address = broker.shuffle_address
    with pytest.raises(ConnectionFailedError, match=address):
        list(BlockReader([(address, ResultPartitionID.of(new_data_set()), 0)], patience=0.2))


def test_end_within_a_block_is_an_error(broker: Broker, partition: ResultPartitionID) -> None:
    with ShuffleWriter(broker.shuffle_address, partition, 1, "blocking") as writer:
        writer.push(0, b"and then", DataType.DATA_BUFFER)
    with pytest.raises(LocalTransportError, match="middle of a block"):
        list(BlockReader([(broker.shuffle_address, partition, 0)]))


def test_block_waits_for_room_within_its_timeout(server: ReferenceServer, partition: ResultPartitionID) -> None:
    server.credit, server.give_credit = 3, False
    writer = ShuffleWriter(server.address, partition, 1, "blocking")
    writer.open()
    with pytest.raises(ShuffleTimeoutError):
        push_block(writer, 0, bytes(100), buffer_size=25, timeout=0.05)
    writer.fail("no room")
    with pytest.raises(ShuffleError):
        push_block(writer, 0, b"any")
    writer.close()


def test_finished_attempt_is_found(broker: Broker, partition: ResultPartitionID) -> None:
    write(broker.shuffle_address, partition.with_attempt(4), 0)
    with pytest.raises(AnotherAttemptWonError):
        write(broker.shuffle_address, partition.with_attempt(5), 0)
    with ShuffleAdmin(broker.shuffle_address) as admin:
        assert partition.with_attempt(4) == admin.finished_attempt(partition.with_attempt(5))
        assert admin.finished_attempt(ResultPartitionID.of(new_data_set()), patience=0.0) is None
