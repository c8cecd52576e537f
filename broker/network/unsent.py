"""Answers that wait in memory for peers that do not read them: how much of it there is in all, over all processors of a plane.

Each processor reports its own about once a second, and asks whether all together is too much. The bound of a single connection
(``outgoing_high_water_bytes``) is exact and looked at before each request; this one keeps a crowd of such connections in check,
and is as exact as a second is long.
"""


class Unsent:
    """Any thread; each processor writes its own number only."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes of all processors together."""
        self.limit = limit
        self._sizes: dict[int, int] = {}

    def report(self, processor: int, size: int) -> None:
        """So many bytes wait in this processor's connections now."""
        self._sizes[processor] = size

    @property
    def total(self) -> int:
        return sum(self._sizes.copy().values())

    @property
    def too_much(self) -> bool:
        return self.total > self.limit
