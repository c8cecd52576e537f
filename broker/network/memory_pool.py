"""Memory for requests that have not wholly arrived or are being handled: bounded, and reused.

Shared by all processors, under one lock. Only frames that do not fit in one read of a processor's own receive buffer come
here, so the small requests of thousands of connections cost nothing. A connection that gets None is muted by its processor
until somebody releases (``on_release``).

Buffers grow as bytes arrive, so requests that hold some memory and need more could wait for each other for ever. Therefore one
buffer at a time may grow although nothing is left: whoever has that right gets to its end, and then the next one has it.

Buffers are kept for reuse, because the kernel must zero every page of a fresh one: at 1 MB a request that costs as much as
the copy out of the socket. ``trim`` gives them back when it is quiet.
"""

from collections.abc import Callable

from broker.runtime.threads import Lock

# Stands for a buffer that is being made.
_RESERVED = bytearray()
# Sizes are rounded up to this, so that requests of nearly the same size reuse each other's buffers.
_GRAIN = 64 * 1024


class MemoryPool:
    """``capacity`` bytes for requests. One request may exceed what is left (as in Kafka's pool), and one may grow beyond it."""

    def __init__(self, capacity: int, keep: int = 32 * 1024 * 1024) -> None:
        self._capacity = capacity
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
        return self._in_use >= self._capacity

    @property
    def wanted(self) -> bool:
        """Somebody waits for memory."""
        return bool(self._waiting)

    def allocate(
        self, size: int, on_release: Callable[[], None], *, force: bool = False, grows: bytearray | None = None
    ) -> bytearray | None:
        """A buffer of ``size`` bytes or more, content undefined; or None: ``on_release`` is called once when memory comes back.

        ``force``: never None, for bytes that have already been read. ``grows``: the buffer that this one will replace; its
        owner releases it next.
        """
        size = (size + _GRAIN - 1) // _GRAIN * _GRAIN
        overdraws = False
        buffer = None
        with self._lock:
            if self._in_use >= self._capacity and not force:
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
            buffer = bytearray(size)  # not under the lock: zeroing a large one takes a while
        if overdraws:
            self._overdrawn = buffer  # nobody else touches a reserved place
        return buffer

    def wait(self, on_release: Callable[[], None]) -> bool:
        """Have ``on_release`` called once when memory comes back; False if there is some now."""
        with self._lock:
            if self._in_use < self._capacity:
                return False
            self._wait(on_release)
            return True

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
            self._in_use -= size
            assert self._in_use >= 0
            if reuse and self._kept + size <= self._keep:
                self._kept += size
                self._idle.setdefault(size, []).append(buffer)
            waiting, self._waiting = self._waiting, []
        for on_release in waiting:
            on_release()

    def trim(self) -> None:
        """Return idle buffers to the system."""
        with self._lock:
            self._idle.clear()
            self._kept = 0
