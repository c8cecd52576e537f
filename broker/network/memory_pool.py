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
    """``capacity`` bytes for requests. One request may exceed what is left (as in Kafka's pool), and one buffer may grow beyond
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

        ``force``: never return None, for bytes that have already been read. ``grows``: the buffer that this one will replace;
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
