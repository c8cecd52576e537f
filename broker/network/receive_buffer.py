"""A connection's own receive buffer, for the frames that do not fit in one read of the processor's shared one.

Owned by the connection's processor. The memory comes from the pool. Its size never follows from a length field alone: the buffer
is as large as what has arrived, and doubles as more arrives. While frames are large the connection keeps the buffer, and reads
stop at the end of the current frame, so that each frame is received where it is handled and is never moved.
"""

from collections.abc import Callable

from broker.network.memory_pool import MemoryPool

# A frame of at most this size (bytes) gets its memory even if the pool is exhausted, so that a request of a few hundred bytes
# that arrives in two packets does not wait for uploads. A connection may hold so much beyond the pool's capacity.
SMALL_BYTES = 16 * 1024
# For frames smaller than this (bytes) the shared buffer is faster.
_KEEP_FOR_BYTES = 64 * 1024


class ReceiveBuffer:
    """``[start, end)`` has arrived and is not consumed; empty and without memory most of the time."""

    __slots__ = ("_buffer", "_pool", "end", "last_frame", "start", "view")

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._buffer: bytearray | None = None
        self.last_frame = 0  # bytes of the frame that was taken last; the next one is often as large
        self.view = memoryview(b"")
        self.start = 0
        self.end = 0

    @property
    def held(self) -> bool:
        """Whether it has memory of the pool."""
        return self._buffer is not None

    @property
    def pending(self) -> int:
        """Bytes that wait to be consumed."""
        return self.end - self.start

    @property
    def size(self) -> int:
        """Bytes of memory that it holds."""
        return len(self.view)

    def keep(self, data: memoryview, on_memory: Callable[[], None]) -> None:
        """Copy unconsumed bytes of the shared buffer here. They have been read, so it takes memory even from an exhausted pool.

        Raises MemoryError; then it holds no memory.
        """
        assert self._buffer is None
        size = len(data)
        self._take(self._pool.allocate(size, on_memory, force=True))
        self.view[:size] = data
        self.start, self.end = 0, size

    def make_room(self, frame_size: int, on_memory: Callable[[], None]) -> bool:
        """Make sure that more of a frame of ``frame_size`` bytes (0: not known yet) can be read.

        False if the pool has no memory now; then ``on_memory`` is called when it has some again. Raises MemoryError; then nothing
        has changed.
        """
        pending = self.end - self.start
        capacity = len(self.view)
        needed = max(frame_size, pending + 1)
        if self.start + needed <= capacity:
            return True
        if needed <= capacity:
            self.view[:pending] = bytes(self.view[self.start : self.end])  # bytes: the ranges may overlap
            self.start, self.end = 0, pending
            return True
        if self.end < capacity:
            return True  # it does not grow before it is full, because the length may be false
        old, view, start, end = self._buffer, self.view, self.start, self.end
        assert old is not None
        larger = self._pool.allocate(
            min(needed, 2 * capacity),
            on_memory,
            force=frame_size <= SMALL_BYTES,
            grows=old,
            completes=self.completes(frame_size),
        )
        if larger is None:
            return False
        self._take(larger)
        self.view[:pending] = view[start:end]
        self.start, self.end = 0, pending
        view.release()
        self._pool.release(old)
        return True

    def completes(self, frame_size: int) -> bool:
        """Whether a frame of that size needs at most one more doubling."""
        return frame_size <= 2 * len(self.view)

    def space(self, frame_size: int) -> memoryview:
        """Where to read to: up to the end of the current frame, so that the next frame begins at the start of a buffer."""
        limit = self.start + (frame_size or self.last_frame)
        if limit <= self.end:
            limit = len(self.view)
        return self.view[self.end : limit]

    def consumed(self, start: int) -> None:
        """The frames before ``start`` are done. Nothing may refer to them any more."""
        self.start = start
        if start == self.end:
            self.settle()

    def settle(self) -> None:
        """Nothing is pending: start over, and keep the memory only if frames are large and the pool is not exhausted."""
        assert self.start == self.end
        self.start = self.end = 0
        if self.last_frame < _KEEP_FOR_BYTES or self._pool.exhausted:
            self.release()

    def release(self) -> None:
        """Return the memory to the pool for reuse. Nothing may refer to it any more."""
        if self._buffer is not None:
            self.view.release()
            self._pool.release(self._buffer)
            self._clear()

    def abandon(self) -> bytearray | None:
        """Give up the memory without returning it, because a handler may still be reading it. The caller returns it later."""
        buffer = self._buffer
        self._clear()
        return buffer

    def _take(self, buffer: bytearray | None) -> None:
        assert buffer is not None
        self._buffer = buffer
        self.view = memoryview(buffer)

    def _clear(self) -> None:
        self._buffer = None
        self.view = memoryview(b"")
        self.start = self.end = 0
