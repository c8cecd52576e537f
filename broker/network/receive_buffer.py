"""A connection's own receive buffer, for the frames that do not fit in one read of the processor's shared one.

Owned by the connection's processor. Memory comes from the pool and never because a length field says so: at first it is what
has arrived, and it doubles as more really does. While frames are large the buffer stays with the connection, and reads stop
at the end of the frame at hand, so that each frame lands where it is handled and is never moved.
"""

from collections.abc import Callable

from broker.network.memory_pool import MemoryPool

# A frame of at most this size is small: it gets its memory even if the pool is exhausted, so that a request of a few hundred
# bytes that comes in two packets is not made to wait for uploads. So much is what a connection may hold beyond the pool's end.
SMALL_BYTES = 16 * 1024
# With frames smaller than this the shared buffer serves better.
_KEEP_FOR_BYTES = 64 * 1024


class ReceiveBuffer:
    """``[start, end)`` has arrived and is not consumed; empty and without memory most of the time."""

    __slots__ = ("_buffer", "_pool", "end", "last_frame", "start", "view")

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._buffer: bytearray | None = None
        self.last_frame = 0  # size in bytes of the frame that was taken last; the next one may well be as large
        self.view = memoryview(b"")
        self.start = 0
        self.end = 0

    @property
    def held(self) -> bool:
        """Has memory of the pool."""
        return self._buffer is not None

    @property
    def pending(self) -> int:
        """Bytes that wait to be consumed."""
        return self.end - self.start

    @property
    def size(self) -> int:
        """Bytes of memory that it has."""
        return len(self.view)

    def keep(self, data: memoryview, on_memory: Callable[[], None]) -> None:
        """Move unconsumed bytes of the shared buffer here. Takes memory even if the pool is exhausted: they have been read.

        Raises MemoryError; then nothing is held.
        """
        assert self._buffer is None
        size = len(data)
        self._take(self._pool.allocate(size, on_memory, force=True))
        self.view[:size] = data
        self.start, self.end = 0, size

    def make_room(self, frame_size: int, on_memory: Callable[[], None]) -> bool:
        """See to it that there is room to read more of a frame of ``frame_size`` bytes (0: not known yet).

        False if the pool has none now; ``on_memory`` is called when it has again. Raises MemoryError; then nothing has changed.
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
            return True  # what there is is not full yet: do not believe the length before it is
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
        """If it grows for a frame of that size, it will not have to grow again."""
        return frame_size <= 2 * len(self.view)

    def space(self, frame_size: int) -> memoryview:
        """Where to read to: up to the end of the frame at hand, so that the next one starts afresh."""
        limit = self.start + (frame_size or self.last_frame)
        if limit <= self.end:
            limit = len(self.view)
        return self.view[self.end : limit]

    def consumed(self, start: int) -> None:
        """Frames up to ``start`` are done. Nothing may look at them any more."""
        self.start = start
        if start == self.end:
            self.settle()

    def settle(self) -> None:
        """Nothing is pending: start afresh, and without memory unless frames are large and nobody lacks any."""
        assert self.start == self.end
        self.start = self.end = 0
        if self.last_frame < _KEEP_FOR_BYTES or self._pool.exhausted:
            self.release()

    def release(self) -> None:
        """Give the memory back for others to use. Nobody may look at it any more."""
        if self._buffer is not None:
            self.view.release()
            self._pool.release(self._buffer)
            self._clear()

    def abandon(self) -> bytearray | None:
        """Let go of the memory without giving it back, because somebody may still be reading it: the caller's to give back."""
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
