"""The stored state of a share partition: written states are read, and invalid bytes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.kafka.share.share_partition import ShareSettings
from broker.kafka.share.share_store import ShareState, decode, restored

STEPS = st.lists(
    st.tuples(st.integers(1, 2**33) | st.integers(1, 9), st.integers(1, 300), st.integers(0, 300)), max_size=20
)


def state(start: int, steps: list[tuple[int, int, int]], epoch: int = 3) -> ShareState:
    """Finished ranges with these holes and lengths; offsets in a hole have failed so often."""
    done, failed = [], []
    at = start
    for hole, length, failures in steps:
        if failures:
            failed.append((at, at + hole, failures))
        at += hole
        done.append((at, at + length))
        at += length
    return ShareState(epoch, start, done, failed)


@given(start=st.integers(0, 2**62), steps=STEPS, epoch=st.integers(0, 2**31 - 1))
def test_written_state_is_read_unchanged(start: int, steps: list[tuple[int, int, int]], epoch: int) -> None:
    wanted = state(start, steps, epoch)
    assert wanted == decode(wanted.encode())
    partition = restored(wanted, ShareSettings(), 2**63 - 1)
    assert list(wanted.done) == list(partition.done())


@given(st.binary(max_size=80))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        restored(decode(data), ShareSettings(), 2**63 - 1)
    except StorageError:
        pass


@given(steps=STEPS, cut=st.integers(1, 30))
def test_state_that_was_cut_off_is_refused(steps: list[tuple[int, int, int]], cut: int) -> None:
    data = state(0, steps).encode()
    with pytest.raises(StorageError):
        decode(data[:-cut] if cut < len(data) else b"")


def test_ranges_that_overlap_are_refused() -> None:
    wanted = ShareState(0, 0, [(5, 9)], [(7, 12, 1)])
    with pytest.raises(StorageError):
        restored(wanted, ShareSettings(), 100)


def test_idle_share_partition_takes_few_bytes() -> None:
    assert len(state(10**12, []).encode()) < 40
