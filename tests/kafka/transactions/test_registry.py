"""A transaction comes back from the catalogue unchanged."""

from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.groups.offsets import CommittedOffset, rows_of
from broker.kafka.transactions.registry import committed_of, row_of, state_of
from broker.kafka.transactions.transaction import Claim, Phase, State
from broker.metadata.catalogue import PendingOffset

claims = st.builds(Claim, st.integers(0, 1 << 40), st.integers(0, 1 << 14))
partitions = st.frozensets(st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=4)
states = st.builds(
    State,
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 15),
    st.integers(1, 1 << 31),
    st.none() | claims,
    st.sampled_from(Phase),
    partitions,
    st.frozensets(st.text(max_size=3), max_size=4),
    st.integers(-1, 1 << 50),
    st.integers(-1, 1 << 50),
    st.integers(-1, 1 << 40),
)


@given(state=states)
def test_state_is_restored_unchanged(state: State) -> None:
    row = row_of("x", state)
    assert row.transactional_id == "x"
    assert state_of(row) == state


def test_offset_is_restored_unchanged() -> None:
    committed = CommittedOffset(5, 2, "metadata", 1_000)
    ((topic, partition, *rest),) = rows_of({("t", 1): committed})
    assert committed_of(PendingOffset("x", "g", topic, partition, *rest)) == committed  # type: ignore[arg-type]


def test_metadata_that_is_not_there_is_empty() -> None:
    assert committed_of(PendingOffset("x", "g", "t", 0, 5, -1, None, 1_000)).metadata == ""
