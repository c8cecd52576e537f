"""A writer's credit: its window for buffers of a size, and the budget's reservation for it."""

import pytest

from broker.shuffle.partition.budget import IN_MEMORY_BYTES, Budget
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.serving.writer_handle import WriterHandle
from tests.shuffle.harness import BLOCKING, new_id

KIB = 1024


def opened(memory_max: int = 1 << 30, window: int = 64) -> WriterHandle:
    budget = Budget(memory_max, -1, -1)
    partition = ResultPartition(new_id(), BLOCKING, 1, budget)
    return WriterHandle(1, partition, 1, window, budget)


def push(handle: WriterHandle, size: int, count: int) -> None:
    """As ``Writers.push`` counts them."""
    for _ in range(count):
        handle.used += 1
        handle.used_bytes += size
        handle.largest = max(handle.largest, size)


def test_first_credit_is_window_of_reserved_flink_buffers() -> None:
    handle = opened()
    assert handle.promise() == 64
    assert (handle.window, handle.left) == (64, 64)
    assert handle.reserved == handle.partition.budget.reserved == 64 * (32 * KIB + IN_MEMORY_BYTES)


@pytest.mark.parametrize(
    ("size", "window"), [(1, 512), (KIB, 512), (2 * KIB, 256), (8 * KIB, 64), (16 * KIB, 64), (64 * KIB, 32)]
)
def test_window_fits_the_size_of_last_pushes(size: int, window: int) -> None:
    handle = opened()
    handle.promise()
    for _ in range(5):  # until the first size is forgotten
        push(handle, size, handle.window)
        handle.reserve_left()
        handle.promise()
    assert handle.left == window


def test_a_window_of_very_large_buffers_has_four() -> None:
    handle = opened()
    handle.partition.detach(1, 10 << 20)
    again = WriterHandle(2, handle.partition, 2, 64, handle.partition.budget)
    assert again.buffer_bytes == 10 << 20
    assert again.promise() == 4


def test_few_pushes_do_not_change_the_window() -> None:
    handle = opened()
    handle.promise()
    push(handle, 1, 15)
    handle.reserve_left()
    assert handle.promise() == 15
    assert handle.left == 64


def test_writer_without_room_gets_one_credit_at_most() -> None:
    handle = opened(memory_max=100 * KIB)
    first = handle.promise()
    assert 0 < first < 64
    other = WriterHandle(2, handle.partition, 1, 64, handle.partition.budget)
    others = [other.promise() for _ in range(5)]
    assert others[0] >= 1
    assert sum(others[1:]) <= 1
    assert not handle.partition.writer_waits


def test_a_writer_that_gets_nothing_waits_for_room() -> None:
    handle = opened(memory_max=100 * KIB)
    handle.partition.budget.take("", 100 * KIB)
    assert (handle.promise(), handle.left) == (0, 0)
    assert handle.partition.writer_waits


def test_giving_up_credit_returns_all_reserved_bytes() -> None:
    handle = opened()
    handle.promise()
    push(handle, KIB, 20)
    handle.reserve_left()
    assert handle.reserved == 44 * (32 * KIB + IN_MEMORY_BYTES)
    handle.give_up_credit()
    assert handle.reserved == handle.partition.budget.reserved == 0
