"""To which offsets a group is set back: a pure decision for each partition.

Tests: tests/client/kafka/admin/test_reset.py, tests/cli/test_groups.py.
"""

from enum import Enum

import attrs


class To(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    TIME = "time"
    SHIFT = "shift"


@attrs.frozen
class Facts:
    """Of one partition. ``at_time``: the first offset at the time that is asked for, None if there is none that late."""

    start: int
    end: int
    committed: int | None = None
    at_time: int | None = None


def new_offset(to: To, number: int, facts: Facts) -> int:
    """``number`` is the offset or the shift. The result is one that the partition has, or its end.

    Without a committed offset there is nothing to keep or to shift: as in Kafka's own tool, the group then begins at the end.
    """
    if to is To.EARLIEST:
        return facts.start
    if to is To.LATEST:
        return facts.end
    if to is To.TIME:
        wanted = facts.end if facts.at_time is None else facts.at_time
    elif to is To.OFFSET:
        wanted = number
    else:
        base = facts.end if facts.committed is None else facts.committed
        wanted = base + number if to is To.SHIFT else base
    return min(max(wanted, facts.start), facts.end)
