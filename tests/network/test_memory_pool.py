"""The pool hands out what it has, makes the rest wait, and wakes who waits: once, and never not."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.network.memory_pool import MemoryPool

KIB = 1024


def never() -> None:
    raise AssertionError("called")


def test_buffer_has_at_least_requested_size_counted_fully() -> None:
    pool = MemoryPool(1 << 20)
    buffer = pool.allocate(100_000, never)
    assert buffer is not None
    assert len(buffer) >= 100_000
    assert pool.in_use == len(buffer)
    pool.release(buffer)
    assert pool.in_use == 0


def test_single_request_may_exceed_rest_of_the_pool() -> None:
    pool = MemoryPool(128 * KIB)
    small = pool.allocate(64 * KIB, never)
    huge = pool.allocate(10 << 20, never)
    assert small is not None
    assert huge is not None
    assert pool.exhausted
    assert pool.allocate(1, lambda: None) is None


def test_waiter_is_called_once_when_memory_returns() -> None:
    pool = MemoryPool(64 * KIB)
    buffer = pool.allocate(64 * KIB, never)
    assert buffer is not None
    calls: list[str] = []

    def first() -> None:
        calls.append("first")

    def second() -> None:
        calls.append("second")

    assert pool.allocate(1, first) is None
    assert pool.allocate(1, first) is None
    assert pool.allocate(1, second) is None
    assert calls == []
    pool.release(buffer)
    assert calls == ["first", "second"]
    again = pool.allocate(1, never)
    assert again is not None
    pool.release(again)
    assert calls == ["first", "second"]


def test_last_quarter_is_for_buffers_completing_their_frame() -> None:
    pool = MemoryPool(256 * KIB)
    halves = [pool.allocate(64 * KIB, never) for _ in range(3)]
    grows = halves[0]
    assert grows is not None
    assert pool.exhausted
    assert pool.allocate(64 * KIB, lambda: None) is None
    whole = pool.allocate(64 * KIB, never, grows=grows, completes=True)
    assert whole is not None
    # Beyond the end there is the right of one, and no more.
    one = pool.allocate(64 * KIB, never, grows=halves[1], completes=True)
    assert one is not None
    assert pool.allocate(64 * KIB, lambda: None, grows=halves[2], completes=True) is None


def test_pool_at_twice_its_capacity_gives_no_memory() -> None:
    pool = MemoryPool(64 * KIB)
    held = [pool.allocate(64 * KIB, never, force=True) for _ in range(2)]
    with pytest.raises(MemoryError):
        pool.allocate(1, never, force=True)
    assert pool.in_use == 128 * KIB
    for buffer in held:
        assert buffer is not None
        pool.release(buffer)


def test_unavailable_system_memory_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(size: int = 0) -> bytearray:
        raise MemoryError

    pool = MemoryPool(64 * KIB)
    first = pool.allocate(64 * KIB, never)
    assert first is not None
    monkeypatch.setattr("broker.network.memory_pool.bytearray", none_left, raising=False)
    with pytest.raises(MemoryError):
        pool.allocate(100 * KIB, never, grows=first)
    assert pool.in_use == 64 * KIB
    monkeypatch.undo()
    assert pool.allocate(100 * KIB, never, grows=first) is not None  # the right to grow was not lost


def test_a_few_bytes_take_a_page_at_most() -> None:
    pool = MemoryPool(1 << 20)
    assert pool.allocate(12, never) is not None
    assert pool.in_use == 4 * KIB


def test_forced_memory_is_given_beyond_the_end() -> None:
    pool = MemoryPool(64 * KIB)
    first = pool.allocate(64 * KIB, never)
    second = pool.allocate(64 * KIB, never, force=True)
    assert first is not None
    assert second is not None
    assert pool.in_use == 128 * KIB
    pool.release(first)
    assert pool.exhausted
    pool.release(second)
    assert not pool.exhausted


def test_returned_buffer_is_reused_unless_forgotten() -> None:
    pool = MemoryPool(1 << 20)
    one = pool.allocate(64 * KIB, never)
    assert one is not None
    pool.release(one)
    assert pool.allocate(64 * KIB, never) is one
    pool.forget(one)
    assert pool.in_use == 0
    assert pool.allocate(64 * KIB, never) is not one


def test_sizes_of_similar_length_share_buffers() -> None:
    pool = MemoryPool(1 << 24)
    one = pool.allocate(1_000_000, never)
    assert one is not None
    pool.release(one)
    assert pool.allocate(1_000_100, never) is one


def test_idle_memory_is_bounded_and_trim_frees_all() -> None:
    pool = MemoryPool(1 << 20, keep=128 * KIB)
    buffers = [pool.allocate(64 * KIB, never) for _ in range(4)]
    for buffer in buffers:
        assert buffer is not None
        pool.release(buffer)
    again = [pool.allocate(64 * KIB, never) for _ in range(4)]
    assert sum(any(a is b for b in buffers) for a in again) == 2
    for buffer in again:
        assert buffer is not None
        pool.release(buffer)
    pool.trim()
    fresh = [pool.allocate(64 * KIB, never) for _ in range(2)]
    assert not any(a is b for a in fresh for b in [*buffers, *again])


def test_returning_more_than_taken_is_a_bug() -> None:
    pool = MemoryPool(1 << 20)
    with pytest.raises(AssertionError):
        pool.release(bytearray(64 * KIB))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400 * KIB), st.booleans())))
@settings(max_examples=60)
def test_in_use_sums_taken_memory_without_needless_waits(
    steps: list[tuple[bool, int, bool]],
) -> None:
    pool = MemoryPool(512 * KIB)
    out: list[bytearray] = []
    waiting: set[int] = set()
    for number, (take, size, reuse) in enumerate(steps):
        if take:
            buffer = pool.allocate(size, lambda number=number: waiting.discard(number))  # type: ignore[misc]
            if buffer is None:
                waiting.add(number)
                assert pool.exhausted
            else:
                assert all(buffer is not other for other in out)
                out.append(buffer)
        elif out:
            buffer = out.pop(size % len(out))
            if reuse:
                pool.release(buffer)
            else:
                pool.forget(buffer)
            assert not waiting
        assert pool.in_use == sum(map(len, out))


def test_many_threads_take_and_return_without_loss() -> None:
    pool = MemoryPool(128 * KIB)
    turns = 300

    def work() -> None:
        bell = threading.Event()
        for _ in range(turns):
            while (buffer := pool.allocate(64 * KIB, bell.set)) is None:
                assert bell.wait(10), "nobody called although memory came back"
                bell.clear()
            buffer[0] = 1
            pool.release(buffer)

    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert pool.in_use == 0
