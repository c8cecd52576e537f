"""Memory for requests that have not completely arrived or are being handled: bounded, and reused.

All processors of a plane share a pool, under one lock. Only frames that do not fit in one read of a processor's own receive
buffer use it, so the small requests of thousands of connections take nothing. If ``allocate`` returns None, the processor mutes
the connection until memory is released and the pool calls ``on_release``. Bytes that have been read already must be kept: they
get memory by ``force``, beyond the capacity if necessary. Processors read little at a time when the pool is exhausted, and at
twice the capacity ``force`` fails as well.

Buffers grow as bytes arrive, so requests that hold memory and need more could wait for each other. Two rules prevent that. The
last quarter of the capacity is reserved for buffers that grow to the full size of their frame: if half-received frames hold all
the rest, several of them can still be completed side by side. And one buffer at a time may grow beyond the capacity, until its
request is done; then the next one may.

Released buffers are kept for reuse, because the kernel must zero every page of a new one: for a request of 1 MB that costs as
much as copying it out of the socket. ``trim`` returns them to the system when no request is using memory.

``ReceiveBuffer`` is a connection's own buffer, for the frames that do not fit in one read of the processor's shared buffer. It
belongs to the connection's processor; the memory comes from the pool. Its size never follows from a length field alone: the
buffer is as large as the received bytes, and doubles as more arrive. While frames are large the connection keeps the buffer,
and reads stop at the end of the current frame, so that each frame is received where it is handled and is never moved.
"""

from collections.abc import Callable

from broker.runtime.threads import Lock

# Stands for a buffer that is being allocated.
_RESERVED = bytearray()
# Sizes are rounded up to this, so that requests of nearly the same size reuse each other's buffers.
_GRAIN = 64 * 1024
# Smaller ones are rounded up to a power of two, at least a page.
_LEAST = 4 * 1024


def rounded(size: int) -> int:
    """The size in bytes of the buffer for a request of ``size`` bytes."""
    if size > _GRAIN:
        return (size + _GRAIN - 1) // _GRAIN * _GRAIN
    return max(_LEAST, 1 << (size - 1).bit_length())


class MemoryPool:
    """``capacity`` bytes for requests. One request may exceed the rest (as in Kafka's pool), and one buffer may grow beyond
    the capacity."""

    def __init__(self, capacity: int, keep: int = 32 * 1024 * 1024) -> None:
        self.capacity = capacity
        self._open_to_all = capacity - capacity // 4  # the rest is reserved for buffers that complete their frame
        self._keep = min(keep, capacity)  # most bytes of idle buffers
        self._lock = Lock()
        self._in_use = 0
        self._kept = 0
        self._idle: dict[int, list[bytearray]] = {}
        self._waiting: list[Callable[[], None]] = []
        self._overdrawn: bytearray | None = None  # the one buffer that grew beyond the capacity

    @property
    def in_use(self) -> int:
        """Bytes that are allocated now."""
        return self._in_use

    @property
    def idle(self) -> int:
        """Bytes of released buffers that are kept for reuse."""
        return self._kept

    @property
    def exhausted(self) -> bool:
        """A connection that holds no memory yet gets none."""
        return self._in_use >= self._open_to_all

    @property
    def short(self) -> bool:
        """A connection waits for memory, or the capacity is used up."""
        return bool(self._waiting) or self._in_use >= self.capacity

    def allocate(
        self,
        size: int,
        on_release: Callable[[], None],
        *,
        force: bool = False,
        grows: bytearray | None = None,
        completes: bool = False,
    ) -> bytearray | None:
        """A buffer of at least ``size`` bytes, content undefined; or None: then ``on_release`` is called once when memory comes
        back, on the thread that released it.

        ``force``: never return None, for bytes that have already been read. ``grows``: the buffer that the new one will replace;
        its owner releases it next. ``completes``: the frame will not need a larger buffer. Raises MemoryError if the system has
        no memory, or, with ``force``, if twice the capacity is in use beside the one buffer that may exceed it.
        """
        size = rounded(size)
        overdraws = False
        buffer = None
        with self._lock:
            if force:
                beyond = 0 if self._overdrawn is None else len(self._overdrawn)
                if self._in_use - beyond >= 2 * self.capacity:
                    raise MemoryError("twice the memory for requests is in use")
            elif self._in_use >= (self.capacity if completes else self._open_to_all):
                if grows is None or (self._overdrawn is not None and self._overdrawn is not grows):
                    self._wait(on_release)
                    return None
                overdraws = True
                self._overdrawn = _RESERVED
            self._in_use += size
            idle = self._idle.get(size)
            if idle:
                self._kept -= size
                buffer = idle.pop()
        if buffer is None:
            try:
                buffer = bytearray(size)  # without the lock: zeroing a large buffer takes long
            except MemoryError:
                self._undo_allocate(size, overdraws)
                raise
        if overdraws:
            self._overdrawn = buffer  # no other thread changes a reserved place
        return buffer

    def _wait(self, on_release: Callable[[], None]) -> None:
        if on_release not in self._waiting:
            self._waiting.append(on_release)

    def release(self, buffer: bytearray) -> None:
        """Return a buffer that ``allocate`` gave. Nothing may refer to its content any more."""
        self._return(buffer, reuse=True)

    def forget(self, buffer: bytearray) -> None:
        """Stop counting a buffer that a thread may still be reading. It is not reused."""
        self._return(buffer, reuse=False)

    def _return(self, buffer: bytearray, reuse: bool) -> None:
        size = len(buffer)
        with self._lock:
            if self._overdrawn is buffer:
                self._overdrawn = None
            if reuse and self._kept + size <= self._keep:
                self._kept += size
                self._idle.setdefault(size, []).append(buffer)
            waiting = self._less_in_use(size)
        for on_release in waiting:
            on_release()

    def _undo_allocate(self, size: int, overdraws: bool) -> None:
        with self._lock:
            if overdraws:
                self._overdrawn = None
            waiting = self._less_in_use(size)
        for on_release in waiting:
            on_release()

    def _less_in_use(self, size: int) -> list[Callable[[], None]]:
        """Returns the callbacks to call after the lock is released; none while no waiting connection could get memory."""
        self._in_use -= size
        assert self._in_use >= 0
        if not self._waiting or (self._in_use >= self.capacity and self._overdrawn is not None):
            return []
        waiting, self._waiting = self._waiting, []
        return waiting

    def trim(self) -> None:
        """Return idle buffers to the system."""
        with self._lock:
            self._idle.clear()
            self._kept = 0


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
        self.last_frame = 0  # bytes of the frame that was taken last; the next frame is often as large
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
