"""What the two stages of an exchange and the driver tell each other. Values only.

An exchange is a data set of 16 random bytes. The attempt ``a`` of map task ``m`` writes the result partition ``<data set>#m``
of attempt ``a``, a subpartition for each bucket, so attempts never meet; which of them count is the driver's word. An attempt
cannot know it itself: where what comes before it fails, its rows just end, and it finishes like any other.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen

from broker.client import ResultPartitionID
from broker.errors import BrokerError

# Attempt numbers on the wire are 31 bits; task attempt ids of Spark are unique in an application, and longer.
_ATTEMPT_BITS = 31

# What a map task answers; Spark's DDL.
COMMIT_SCHEMA = "map int, attempt int, broker int, rows bigint, bytes bigint, buckets binary"


class ExchangeError(BrokerError):
    """An exchange cannot go on; one sentence that says why, and what to do."""


@frozen
class ExchangeSpec:
    """What is the same for all tasks."""

    data_set: bytes  # 16, random
    brokers: tuple[str, ...]  # shuffle addresses, host:port
    buckets: int
    ttl_ms: int
    owner: str
    compression: str | None  # of Arrow: lz4 or zstd
    patience: float  # s without a connection, after which a task gives up

    def partition(self, map_number: int, attempt: int) -> ResultPartitionID:
        # Each attempt is a producer of its own for the broker, which would otherwise have the first that finishes win.
        attempt %= 2**_ATTEMPT_BITS
        vertex = attempt.to_bytes(16, "big")
        return ResultPartitionID.of(self.data_set, map_number, self.data_set, vertex, map_number, attempt)

    @property
    def prefix(self) -> str:
        """With which the hex digits of all its partitions begin."""
        return self.data_set.hex()


# The bucket of a row whose values were left behind, see ``exchange_batches``.
WIDE_ROW = -1

# In place of a broker.
NO_ROWS = -1
TOO_WIDE = -2  # it came to a row that was too wide for its batches, and has written nothing


@frozen
class Winner:
    """The attempt of a map task that counts. ``broker``: which of the addresses has it, or NO_ROWS, or TOO_WIDE."""

    map_number: int
    attempt: int
    broker: int
    rows: int
    size: int  # bytes
    buckets: bytes  # a bit for each bucket that has rows, the first in the highest

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Winner":
        """From a commit row."""
        map_number, attempt, broker, rows, size, buckets = row
        return cls(map_number, attempt, broker, rows, size, bytes(buckets))

    @property
    def too_wide(self) -> bool:
        return self.broker == TOO_WIDE

    def has(self, bucket: int) -> bool:
        return self.broker >= 0 and bool(self.buckets[bucket >> 3] >> (7 - (bucket & 7)) & 1)


def bits(counts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> bytes:
    """``Winner.buckets`` of how many rows each bucket has."""
    return np.packbits(counts > 0).tobytes()


@frozen
class ExchangePlan:
    """What a reduce task needs to know."""

    spec: ExchangeSpec
    winners: tuple[Winner, ...]

    def channels(self, bucket: int) -> list[tuple[str, ResultPartitionID, int]]:
        """Address, partition and subpartition of all that a bucket has."""
        spec = self.spec
        return [
            (spec.brokers[winner.broker], spec.partition(winner.map_number, winner.attempt), bucket)
            for winner in self.winners
            if winner.has(bucket)
        ]

    @property
    def rows(self) -> int:
        """Of all map tasks."""
        return sum(winner.rows for winner in self.winners)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(winner.size for winner in self.winners)
