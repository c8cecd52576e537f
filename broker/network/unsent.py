"""How many bytes of answers wait in memory for peers that do not read them, over all processors of a plane.

Each processor reports its share about once a second, and asks whether the sum is too much. The bound of a single connection
(``outgoing_high_water_bytes``) is exact and checked before each request. This one bounds many such connections together, and is
up to a second old.
"""


class Unsent:
    """For any thread. Each processor writes its own entry only."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes, for all processors together."""
        self.limit = limit
        self._sizes: dict[int, int] = {}

    def report(self, processor: int, size: int) -> None:
        """Set how many bytes wait in the connections of this processor."""
        self._sizes[processor] = size

    @property
    def total(self) -> int:
        return sum(self._sizes.copy().values())

    @property
    def too_much(self) -> bool:
        return self.total > self.limit
