"""The values that the two stages of an exchange and the driver exchange.

An exchange is a data set with an id of 16 random bytes. The attempt ``a`` of map task ``m`` writes the result partition
``<data set>#m`` of attempt ``a``, with a subpartition for each bucket, so attempts do not interfere. The driver decides which
attempts count. An attempt cannot know that itself: if the stage before it fails, its rows simply end, and it finishes as usual.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen

from broker.client import ResultPartitionID
from broker.client.security_settings import SecuritySettings
from broker.errors import BrokerError

# Attempt numbers on the wire have 31 bits. Spark's task attempt ids are unique in an application and longer.
_ATTEMPT_BITS = 31

# The row that a map task returns, in Spark's DDL.
COMMIT_SCHEMA = "map int, attempt int, broker int, rows bigint, bytes bigint, buckets binary"


class ExchangeError(BrokerError):
    """An exchange cannot continue. One sentence says why, and what to do."""


@frozen
class ExchangeSpec:
    """The values that are the same for all tasks."""

    data_set: bytes  # 16, random
    brokers: tuple[str, ...]  # shuffle addresses, host:port
    buckets: int
    ttl_ms: int
    owner: str
    compression: str | None  # of Arrow: lz4 or zstd
    patience: float  # a task gives up after so many s without a connection
    security: SecuritySettings | None = None

    def partition(self, map_number: int, attempt: int) -> ResultPartitionID:
        # To the broker each attempt is another producer; otherwise it would let the first one that finishes win.
        attempt %= 2**_ATTEMPT_BITS
        vertex = attempt.to_bytes(16, "big")
        return ResultPartitionID.of(self.data_set, map_number, self.data_set, vertex, map_number, attempt)

    @property
    def prefix(self) -> str:
        """The hex digits with which the ids of all its partitions begin."""
        return self.data_set.hex()


# The bucket of a row without its values, see ``batches.py``.
WIDE_ROW = -1

# Values in place of a broker's index.
NO_ROWS = -1
TOO_WIDE = -2  # a row was too wide for its batches, and nothing was written


@frozen
class Winner:
    """The attempt of a map task that counts. ``broker``: the index of its address, or NO_ROWS, or TOO_WIDE."""

    map_number: int
    attempt: int
    broker: int
    rows: int
    size: int  # bytes
    buckets: bytes  # a bit for each bucket that has rows, the first one highest

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Winner":
        """The winner in a commit row."""
        map_number, attempt, broker, rows, size, buckets = row
        return cls(map_number, attempt, broker, rows, size, bytes(buckets))

    @property
    def too_wide(self) -> bool:
        return self.broker == TOO_WIDE

    def has(self, bucket: int) -> bool:
        return self.broker >= 0 and bool(self.buckets[bucket >> 3] >> (7 - (bucket & 7)) & 1)


def bits(counts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> bytes:
    """``Winner.buckets`` for the numbers of rows in the buckets."""
    return np.packbits(counts > 0).tobytes()


@frozen
class ExchangePlan:
    """The values that a reduce task needs."""

    spec: ExchangeSpec
    winners: tuple[Winner, ...]

    def channels(self, bucket: int) -> list[tuple[str, ResultPartitionID, int]]:
        """(address, partition, subpartition) of all data of a bucket."""
        spec = self.spec
        return [
            (spec.brokers[winner.broker], spec.partition(winner.map_number, winner.attempt), bucket)
            for winner in self.winners
            if winner.has(bucket)
        ]

    @property
    def rows(self) -> int:
        """The number of rows of all map tasks."""
        return sum(winner.rows for winner in self.winners)

    @property
    def size(self) -> int:
        """The size of all map tasks' blocks in bytes."""
        return sum(winner.size for winner in self.winners)
