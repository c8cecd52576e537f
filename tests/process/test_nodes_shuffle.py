"""The shuffle at several nodes: each keeps what is written to it, at the address that its readers are told."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import InputGate, ResultPartitionID, ShuffleWriter
from broker.client.shuffle.errors import PartitionNotFoundError
from tests.process.nodes import Nodes

SUBPARTITIONS = 2


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    running = Nodes(tmp_path_factory.mktemp("nodes"), schemes=["http", "shuffle"])
    running.start()
    yield running
    assert 0 == running.stop()


def new_partition() -> ResultPartitionID:
    data_set = secrets.token_bytes(16)
    return ResultPartitionID.of(data_set, 0, data_set, secrets.token_bytes(16), 0, 0)


def payloads(seed: int, subpartition: int) -> list[bytes]:
    return [b"%d/%d/%d" % (seed, subpartition, number) * 50 for number in range(40)]


def push(writer: ShuffleWriter, seed: int, numbers: range = range(40)) -> None:
    for number in numbers:
        for subpartition in range(SUBPARTITIONS):
            writer.push(subpartition, payloads(seed, subpartition)[number])


def write(address: str, seed: int, kind: str = "blocking") -> ResultPartitionID:
    partition = new_partition()
    with ShuffleWriter(address, partition, SUBPARTITIONS, kind) as writer:
        push(writer, seed)
        writer.finish()
    return partition


def read(channels: list[tuple[str, ResultPartitionID, int]], partition_wait: float = 30.0) -> list[list[bytes]]:
    """The payloads of each channel."""
    found: list[list[bytes]] = [[] for _ in channels]
    with InputGate(channels, partition_wait=partition_wait) as gate:
        for item in gate:
            if item.data is not None:
                found[item.channel].append(bytes(item.data))
    return found


def test_a_reader_gathers_what_was_written_at_all_nodes(nodes: Nodes) -> None:
    written = [(address, write(address, seed)) for seed, address in enumerate(nodes.endpoints("shuffle").values())]
    for subpartition in range(SUBPARTITIONS):
        found = read([(address, partition, subpartition) for address, partition in written])
        assert [payloads(seed, subpartition) for seed in range(3)] == found


def test_another_node_does_not_have_it(nodes: Nodes) -> None:
    first, second, _ = nodes.endpoints("shuffle").values()
    partition = write(first, 1)
    with pytest.raises(PartitionNotFoundError):
        read([(second, partition, 0)], partition_wait=0.1)
    assert [payloads(1, 0)] == read([(first, partition, 0)])


def test_a_finished_partition_outlives_its_node_at_the_same_address(nodes: Nodes) -> None:
    address = nodes.endpoints("shuffle")[2]
    partition = write(address, 5)
    nodes.kill_node(2)
    assert address == nodes.endpoints("shuffle")[2]
    assert [payloads(5, 1)] == read([(address, partition, 1)])


def test_the_first_address_leads_to_what_was_written_before_there_were_nodes(tmp_path: Path) -> None:
    running = Nodes(tmp_path, schemes=["http", "shuffle"])
    partition = None
    for count in (1, 3, 1):
        running.resize(count)
        running.start()
        address = running.endpoints("shuffle")[1]
        partition = partition or write(address, 9)
        assert [payloads(9, 0), payloads(9, 1)] == read([(address, partition, 0), (address, partition, 1)])
        assert 0 == running.stop()
    assert not os.listdir(tmp_path / "data" / "nodes" / "0" / "shuffle")
