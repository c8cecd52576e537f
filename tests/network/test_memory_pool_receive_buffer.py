"""Frames of any size, split anywhere, through a receive buffer and through a processor: the same requests come out."""

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.network.memory_pool import SMALL_BYTES, MemoryPool, ReceiveBuffer
from tests.network.echo import EchoService, frame
from tests.network.harness import Bench, tiny_buffers

KIB = 1024


def never() -> None:
    raise AssertionError("called")


def fill(buffer: ReceiveBuffer, data: bytes, frame_size: int) -> int:
    """As a read of the socket would; returns how much was taken."""
    space = buffer.space(frame_size)
    took = min(len(space), len(data))
    space[:took] = data[:took]
    buffer.end += took
    return took


@pytest.fixture
def pool() -> Iterator[MemoryPool]:
    made = MemoryPool(1 << 28)
    yield made
    assert made.in_use == 0


def test_length_field_alone_takes_a_page(pool: MemoryPool) -> None:
    buffer = ReceiveBuffer(pool)
    buffer.keep(memoryview(b"\x06\x00\x00\x00"), never)
    assert buffer.make_room(100 << 20, never)
    assert pool.in_use == 4 * KIB
    buffer.release()


def test_memory_doubles_as_bytes_really_arrive(pool: MemoryPool) -> None:
    whole = 20 << 20
    buffer = ReceiveBuffer(pool)
    data = bytes(range(256)) * (whole // 256)
    buffer.keep(memoryview(data)[: 100 * KIB], never)
    got = 100 * KIB
    while got < whole:
        assert buffer.make_room(whole, never)
        assert pool.in_use <= 2 * got + 64 * KIB
        got += fill(buffer, data[got : got + 700 * KIB], whole)
    assert bytes(buffer.view[buffer.start : buffer.end]) == data
    buffer.consumed(whole)
    buffer.release()


def test_read_stops_at_end_of_current_frame(pool: MemoryPool) -> None:
    buffer = ReceiveBuffer(pool)
    buffer.keep(memoryview(b"a" * 100), never)
    while buffer.end < 300 * KIB:
        assert buffer.make_room(300 * KIB, never)
        fill(buffer, b"a" * 400 * KIB, 300 * KIB)
    assert buffer.end == 300 * KIB
    assert buffer.size > 300 * KIB
    buffer.release()


def test_small_frame_gets_memory_even_if_none_remains() -> None:
    pool = MemoryPool(64 * KIB)
    other = pool.allocate(64 * KIB, never)
    buffer = ReceiveBuffer(pool)
    buffer.keep(memoryview(b"a" * 5 * KIB), never)
    while buffer.end < SMALL_BYTES:
        assert buffer.make_room(SMALL_BYTES, never)
        fill(buffer, b"a" * SMALL_BYTES, SMALL_BYTES)
    assert pool.in_use == 64 * KIB + SMALL_BYTES
    buffer.release()
    assert other is not None
    pool.release(other)


def test_large_frames_reuse_memory_from_its_very_start(
    pool: MemoryPool,
) -> None:
    size = 300 * KIB
    buffer = ReceiveBuffer(pool)
    buffer.keep(memoryview(b"a" * size), never)
    memory = buffer.view
    buffer.last_frame = size
    buffer.consumed(size)
    assert buffer.held
    assert len(buffer.space(0)) == size
    assert fill(buffer, b"b" * size, 0) == size
    assert buffer.view is memory
    assert (buffer.start, buffer.end) == (0, size)
    buffer.release()


def test_after_a_small_frame_the_memory_goes_back(pool: MemoryPool) -> None:
    buffer = ReceiveBuffer(pool)
    buffer.keep(memoryview(b"a" * 100), never)
    buffer.last_frame = 100
    buffer.consumed(100)
    assert not buffer.held
    assert pool.in_use == 0


def test_large_memory_leaves_connection_while_others_wait() -> None:
    pool = MemoryPool(256 * KIB)
    buffer = ReceiveBuffer(pool)
    buffer.keep(memoryview(b"a" * 300 * KIB), never)
    assert pool.exhausted
    buffer.last_frame = 300 * KIB
    buffer.consumed(300 * KIB)
    assert not buffer.held
    assert pool.in_use == 0


def test_without_memory_it_says_so_and_loses_nothing() -> None:
    pool = MemoryPool(128 * KIB)
    other = pool.allocate(64 * KIB, never)
    hog = ReceiveBuffer(pool)
    hog.keep(memoryview(b"h" * 100), never)
    buffer = ReceiveBuffer(pool)
    data = bytes(range(256)) * 256
    buffer.keep(memoryview(data), never)
    while buffer.end < len(buffer.view):
        fill(buffer, data, 200 * KIB)
    before = bytes(buffer.view[buffer.start : buffer.end])
    # The first that must grow may go beyond the end, so that somebody always gets on; the others wait.
    while hog.end < len(hog.view):
        fill(hog, data, 10 << 20)
    assert hog.make_room(10 << 20, never)
    assert pool.in_use > 128 * KIB
    calls: list[int] = []
    assert not buffer.make_room(200 * KIB + len(before), lambda: calls.append(1))
    assert bytes(buffer.view[buffer.start : buffer.end]) == before
    hog.release()
    assert calls == [1]
    assert buffer.make_room(200 * KIB + len(before), never)
    assert bytes(buffer.view[buffer.start : buffer.end]) == before
    buffer.release()
    assert other is not None
    pool.release(other)
    assert pool.in_use == 0


def test_abandoned_memory_is_not_handed_to_anybody_else(pool: MemoryPool) -> None:
    buffer = ReceiveBuffer(pool)
    buffer.keep(memoryview(b"a" * 100), never)
    reading = buffer.view
    memory = buffer.abandon()
    assert memory is not None
    assert pool.in_use == len(memory)
    pool.forget(memory)
    assert pool.in_use == 0
    other = ReceiveBuffer(pool)
    other.keep(memoryview(b"b" * 100), never)
    assert bytes(reading[:100]) == b"a" * 100
    other.release()


SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([251, 252, 256, 1018, 1019, 1020, 1024, 4340, 4352]),
    st.integers(0, 9000),
)


@given(
    frames=st.lists(st.tuples(st.sampled_from([b"e", b"p"]), SIZES), min_size=1, max_size=25),
    cuts=st.lists(st.one_of(st.integers(1, 8), st.integers(1, 12_000)), min_size=1, max_size=40),
)
@settings(max_examples=60)
@example(frames=[(b"e", 9000), (b"e", 9000), (b"e", 3)], cuts=[1])
@example(frames=[(b"p", 5000)] * 4, cuts=[1 << 20])
@example(frames=[(b"e", 300), (b"p", 700), (b"e", 10)], cuts=[1 << 20])
def test_any_split_of_frames_gives_the_same_requests(frames: list[tuple[bytes, int]], cuts: list[int]) -> None:
    stream = b"".join(frame(command, bytes([n + 1]) * size) for n, (command, size) in enumerate(frames))
    with tiny_buffers():
        bench = Bench()
        try:
            client = bench.connect()
            position = turn = 0
            while position < len(stream):
                step = cuts[turn % len(cuts)] if turn < 400 else 4096
                client.send(stream[position : position + step])
                bench.step()
                if turn % 3 == 0:
                    bench.handle()
                position += step
                turn += 1
            bench.until(lambda: len(client.received) >= len(stream))
            assert bytes(client.received) == stream
            assert bench.service.handled == [command for command, _ in frames]
            bench.clock.now += 2
            bench.step(2)
            assert bench.memory.in_use == 0
        finally:
            bench.close()


class Where(EchoService):
    """Notes where in memory each request lay."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[tuple[int, int]] = []

    def handle(self, request: object, outbox: object, prepared: object = None) -> None:
        view: memoryview = request.frame  # type: ignore[attr-defined]
        whole = view.obj
        first = len(view) and bytes(view[:4])
        self.buffers.append((id(whole), bytes(whole).find(first)))  # type: ignore[arg-type]
        super().handle(request, outbox)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [b"e", b"p"])
def test_equal_large_frames_are_read_to_their_place(command: bytes) -> None:
    # One read takes what the shared buffer holds; from then on each frame begins at the start of the connection's own
    # memory, which is always the same: nothing is ever moved.
    bench = Bench(Where())
    try:
        with mock.patch.object(ReceiveBuffer, "keep", autospec=True, side_effect=ReceiveBuffer.keep) as moved:
            client = bench.connect()
            data = frame(command, b"x" * (700 * KIB))
            for sent in range(1, 6):
                client.send(data)
                bench.until(lambda sent=sent: len(client.received) == sent * len(data))  # type: ignore[misc]
        places = bench.service.buffers
        assert [offset for _, offset in places] == [0] * 5
        assert len({buffer for buffer, _ in places}) == 1
        assert moved.call_count == 1
    finally:
        bench.close()


def test_small_frames_after_large_ones_use_shared_buffer() -> None:
    bench = Bench()
    try:
        client = bench.connect()
        client.send(frame(b"e", b"x" * (700 * KIB)))
        bench.until(lambda: len(client.frames) == 1)
        assert bench.memory.in_use > 0
        client.send(frame(b"e", b"x"))
        bench.until(lambda: len(client.frames) == 2)
        assert bench.memory.in_use == 0
    finally:
        bench.close()


def test_many_small_frames_do_not_count_as_large() -> None:
    bench = Bench(receive_buffer=1 << 20)  # all of it arrives before the first read
    try:
        client = bench.connect()
        small = frame(b"e", b"x" * 95)
        client.send(frame(b"h") + small * 2000)
        bench.until(lambda: bench.service.parked and client.unsent == b"")
        request, outbox = bench.service.parked.pop()
        outbox.send(request, [frame(b"h")])
        bench.until(lambda: len(client.frames) == 2001)
        assert bench.memory.in_use == 0
    finally:
        bench.close()
