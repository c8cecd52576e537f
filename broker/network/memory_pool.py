"""Memory for requests that have not wholly arrived or are being handled: bounded, and reused.

Shared by all processors, under one lock. Only frames that do not fit in one read of a processor's own receive buffer come
here, so the small requests of thousands of connections cost nothing. A connection that gets None is muted by its processor
until somebody releases (``on_release``). What has been read already must be kept, so it gets memory by ``force``, beyond the
end if need be; the processors read little at a time when nothing is left, and at twice the capacity even this ends.

Buffers grow as bytes arrive, so requests that hold some memory and need more could wait for each other. Two rules keep them
going. The last quarter is for buffers that grow to the whole size of their frame: if everything below it is held by half
received frames, a good number of them can still be completed side by side. And one buffer at a time may grow although nothing
is left at all: whoever has that right gets to its end, and then the next one has it.

Buffers are kept for reuse, because the kernel must zero every page of a fresh one: at 1 MB a request that costs as much as
the copy out of the socket. ``trim`` gives them back when it is quiet.
"""

from collections.abc import Callable

from broker.runtime.threads import Lock

# Stands for a buffer that is being made.
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
    """``capacity`` bytes for requests. One request may exceed what is left (as in Kafka's pool), and one may grow beyond it."""

    def __init__(self, capacity: int, keep: int = 32 * 1024 * 1024) -> None:
        self.capacity = capacity
        self._open_to_all = capacity - capacity // 4  # the rest is for buffers that complete their frame
        self._keep = min(keep, capacity)  # bytes of idle buffers at most
        self._lock = Lock()
        self._in_use = 0
        self._kept = 0
        self._idle: dict[int, list[bytearray]] = {}
        self._waiting: list[Callable[[], None]] = []
        self._overdrawn: bytearray | None = None  # the one buffer that grew although nothing was left

    @property
    def in_use(self) -> int:
        """Bytes handed out now."""
        return self._in_use

    @property
    def idle(self) -> int:
        """Bytes that are kept to be handed out again."""
        return self._kept

    @property
    def exhausted(self) -> bool:
        """Whoever holds nothing yet gets nothing."""
        return self._in_use >= self._open_to_all

    @property
    def short(self) -> bool:
        """Somebody waits for memory, or more is in use than there should be."""
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
        """A buffer of ``size`` bytes or more, content undefined; or None: ``on_release`` is called once when memory comes back.

        ``force``: never None, for bytes that have already been read. ``grows``: the buffer that this one will replace; its
        owner releases it next. ``completes``: and a larger one will not be needed. Raises MemoryError if the system has none,
        or, with ``force``, if twice the capacity is in use beside the one buffer that may exceed it.
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
                buffer = bytearray(size)  # not under the lock: zeroing a large one takes a while
            except MemoryError:
                self._took_nothing(size, overdraws)
                raise
        if overdraws:
            self._overdrawn = buffer  # nobody else touches a reserved place
        return buffer

    def _wait(self, on_release: Callable[[], None]) -> None:
        if on_release not in self._waiting:
            self._waiting.append(on_release)

    def release(self, buffer: bytearray) -> None:
        """Give back a buffer that ``allocate`` returned; nobody may look at it any more."""
        self._return(buffer, reuse=True)

    def forget(self, buffer: bytearray) -> None:
        """Give back the allowance of a buffer that somebody may still be reading: it is not used again."""
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

    def _took_nothing(self, size: int, overdraws: bool) -> None:
        with self._lock:
            if overdraws:
                self._overdrawn = None
            waiting = self._less_in_use(size)
        for on_release in waiting:
            on_release()

    def _less_in_use(self, size: int) -> list[Callable[[], None]]:
        """Whom to call once the lock is free: nobody, if nobody could have anything yet."""
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
