import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.shuffle.ids import IndexSet, ResultPartitionID
from tests.protocol.shuffle.strategies import ID, PARTITIONS, ints


@given(ID, ints(), ID, ID, ints(0), ints(0))
def test_parts_of_an_id_are_returned(
    data_set: bytes, number: int, graph: bytes, vertex: bytes, subtask: int, attempt: int
) -> None:
    partition = ResultPartitionID.of(data_set, number, graph, vertex, subtask, attempt)
    assert (data_set, number, graph) == (partition.data_set, partition.number, partition.graph)
    assert (vertex, subtask, attempt) == (partition.vertex, partition.subtask, partition.attempt)


@given(PARTITIONS)
def test_an_id_survives_each_of_its_forms(partition: ResultPartitionID) -> None:
    for copy in (
        ResultPartitionID.from_hex(partition.hex()),
        ResultPartitionID.from_hex(f" {partition.hex().upper()}\n"),
        ResultPartitionID.from_text(partition.hex()),
        ResultPartitionID.from_text(str(partition)),
        ResultPartitionID(memoryview(partition)),
        pickle.loads(pickle.dumps(partition)),
    ):
        assert partition == copy
        assert type(copy) is ResultPartitionID
    assert repr(str(partition)) in repr(partition)


@given(PARTITIONS)
def test_id_is_the_same_key_as_its_bytes(partition: ResultPartitionID) -> None:
    assert {partition: 1}[bytes(partition)] == 1


@given(PARTITIONS, ints(0))
def test_attempts_of_one_producer_share_their_producer_key(partition: ResultPartitionID, attempt: int) -> None:
    other = partition.with_attempt(attempt)
    assert attempt == other.attempt
    assert partition.producer_key == other.producer_key
    assert (partition == other) == (partition.attempt == attempt)
    sibling = ResultPartitionID.of(
        partition.data_set,
        partition.number,
        partition.graph,
        partition.vertex,
        partition.subtask ^ 1,
        partition.attempt,
    )
    assert partition.producer_key != sibling.producer_key


@pytest.mark.parametrize(
    "text",
    ["", "00" * 59, "00" * 61, "0g" * 60, "00" * 59 + " 0", "#7@__0_0", "ff" * 60]
    + [f"{'00' * 16}#{n}@{'00' * 16}_{'00' * 16}_{s}_{a}" for n, s, a in [(2**31, 0, 0), (0, -1, 0), (0, 0, 2**31)]],
)
def test_invalid_text_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        ResultPartitionID.from_text(text)


@given(st.binary(max_size=130))
def test_only_60_bytes_are_an_id(data: bytes) -> None:
    try:
        assert len(ResultPartitionID(data)) == 60
    except ValueError:
        assert len(data) != 60 or data[52] > 127 or data[56] > 127


@pytest.mark.parametrize("bad", [{"data_set": b""}, {"graph": bytes(17)}, {"subtask": -1}, {"number": 2**31}])
def test_parts_that_have_no_room_are_value_errors(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ResultPartitionID.of(**{"data_set": bytes(16), **bad})  # type: ignore[arg-type]


def test_index_set_includes_both_ends() -> None:
    assert (3, [4, 5, 6], "[4, 6]") == (
        IndexSet(4, 6).size,
        list(IndexSet(4, 6).indices),
        str(IndexSet(4, 6)),
    )
