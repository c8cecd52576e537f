"""Where `consume` begins in a partition: an offset, a number of records before the end, or a time. Pure.

Tests: tests/cli/test_produce_consume.py.
"""

import attrs
import click


@attrs.frozen
class Place:
    """Exactly one field is set."""

    offset: int | None = None
    last: int | None = None
    timestamp_ms: int | None = None

    @classmethod
    def parse(cls, offset: str | None, timestamp_ms: int | None) -> "Place":
        """Raises click.UsageError."""
        if timestamp_ms is not None:
            return cls(timestamp_ms=timestamp_ms)
        if offset in (None, "beginning", "earliest"):
            return cls(offset=0)
        if offset in ("end", "latest"):
            return cls(last=0)
        try:
            number = int(offset)
        except ValueError:
            raise click.UsageError("Write --offset as beginning, end, a number, or -N for the last N.") from None
        return cls(last=-number) if offset.startswith("-") else cls(offset=number)

    def start(self, begin: int, end: int, at_time: int | None) -> int:
        """The offset in a partition from ``begin`` to ``end``. ``at_time``: the first record at or after the time, if
        any."""
        if self.timestamp_ms is not None:
            start = end if at_time is None else at_time
        elif self.last is not None:
            start = end - self.last
        else:
            start = self.offset or 0
        return min(max(start, begin), end)
