"""Memory for requests that have not wholly arrived or are being handled: bounded, and reused.

Shared by all processors, under one lock. Only frames that do not fit in one read of a processor's own receive buffer come
here, so the small requests of thousands of connections cost nothing. A connection that gets None is muted by its processor
until somebody releases (``on_release``).

Buffers are kept for reuse, because the kernel must zero every page of a fresh one: at 1 MB a request that costs as much as
the copy out of the socket. ``trim`` gives them back when it is quiet.
"""

from collections.abc import Callable

from broker.runtime.threads import Lock

# Sizes are rounded up to this, so that requests of nearly the same size reuse each other's buffers.
_GRAIN = 64 * 1024


class MemoryPool:
    """``capacity`` bytes for requests. A single request may exceed what is left (as in Kafka's pool): never more than one at a time does."""

    def __init__(self, capacity: int, keep: int = 32 * 1024 * 1024) -> None:
        self._capacity = capacity
        self._keep = min(keep, capacity)  # bytes of idle buffers at most
        self._lock = Lock()
        self._in_use = 0
        self._kept = 0
        self._idle: dict[int, list[bytearray]] = {}
        self._waiting: list[Callable[[], None]] = []

    @property
    def in_use(self) -> int:
        """Bytes handed out now."""
        return self._in_use

    @property
    def exhausted(self) -> bool:
        return self._in_use >= self._capacity

    def allocate(self, size: int, on_release: Callable[[], None], *, force: bool = False) -> bytearray | None:
        """A buffer of at least ``size`` bytes, its content undefined; or None, and ``on_release`` is called once when memory comes back.

        ``force``: never None, for bytes that have already been read.
        """
        size = (size + _GRAIN - 1) // _GRAIN * _GRAIN
        with self._lock:
            if self._in_use >= self._capacity and not force:
                self._wait(on_release)
                return None
            self._in_use += size
            idle = self._idle.get(size)
            if idle:
                self._kept -= size
                return idle.pop()
        return bytearray(size)

    def wait(self, on_release: Callable[[], None]) -> None:
        """Have ``on_release`` called once when memory comes back."""
        with self._lock:
            self._wait(on_release)

    def _wait(self, on_release: Callable[[], None]) -> None:
        if on_release not in self._waiting:
            self._waiting.append(on_release)

    def release(self, buffer: bytearray) -> None:
        """Give back a buffer that ``allocate`` returned; nobody may look at it any more."""
        self._return(len(buffer), buffer)

    def forget(self, buffer: bytearray) -> None:
        """Give back the allowance of a buffer that somebody may still be reading: it is not used again."""
        self._return(len(buffer), None)

    def _return(self, size: int, reusable: bytearray | None) -> None:
        with self._lock:
            self._in_use -= size
            assert self._in_use >= 0
            if reusable is not None and self._kept + size <= self._keep:
                self._kept += size
                self._idle.setdefault(size, []).append(reusable)
            waiting, self._waiting = self._waiting, []
        for on_release in waiting:
            on_release()

    def trim(self) -> None:
        """Return idle buffers to the system."""
        with self._lock:
            self._idle.clear()
            self._kept = 0
