"""When a writer is told that it need not keep its pushes any longer. Pure; on the processor of the writer's connection.

A writer stops when what it keeps fills its window, and the broker does not know how large that is. So an acknowledgement must
not depend on what the writer sends next. It is due when one of these is reached, whichever comes first:

    reached                              owned by
    ``AFTER_BYTES`` of payloads          this module
    a quarter of the pushes granted      ``writers.py``, with the next credit
    ``WITHIN_S`` after a push            ``writers.py``, by a timer of the connection

The first two keep a stream going without a pause. The last one is for a connection that has fallen idle: whatever window and
buffer size a writer has, it is told about everything that has arrived.
"""

from collections.abc import Iterable

# As many bytes as 32 of Flink's buffers: a frame of some 30 bytes for each MiB costs nothing, and no writer has a smaller
# window without good reason.
AFTER_BYTES = 1024 * 1024
# A writer whose window holds a single buffer waits this long for each. At most 200 acknowledgements a second for each
# connection: they take less than 1 % of a processor.
WITHIN_S = 0.005


class Unacknowledged:
    """What has been taken from one writer since the last acknowledgement."""

    __slots__ = ("_next", "size")

    def __init__(self) -> None:
        self.size = 0  # bytes of payloads
        self._next: dict[int, int] = {}  # subpartition -> the number expected next

    def __bool__(self) -> bool:
        return bool(self._next)

    def add(self, subpartition: int, next_sequence: int, size: int) -> bool:
        """A push of ``size`` bytes has been taken. True: acknowledge now."""
        self._next[subpartition] = next_sequence
        self.size += size
        return self.size >= AFTER_BYTES

    def take(self) -> Iterable[tuple[int, int]]:
        """(subpartition, next sequence) of each subpartition that had a push; they count as acknowledged."""
        taken, self._next = self._next, {}
        self.size = 0
        return taken.items()
