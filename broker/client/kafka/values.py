"""The values that the Kafka client takes and returns.

Tests: tests/client/kafka/test_cluster.py, tests/client/kafka/test_fetcher.py.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import attrs

# Kafka's numbers for these offsets, in place of a time in ``Cluster.offsets``.
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
ISOLATION_LEVELS = {READ_UNCOMMITTED: 0, READ_COMMITTED: 1}

TopicPartition = tuple[str, int]


@attrs.frozen
class TopicMetadata:
    """``topic_id`` is None if the broker does not send topic ids (Metadata before version 10)."""

    name: str
    topic_id: UUID | None
    partitions: tuple[int, ...]


@attrs.frozen
class OffsetAndMetadata:
    """An offset that a group has committed or will commit. ``leader_epoch`` is -1 if unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class Fetched(NamedTuple):
    """One answer of a ``Fetcher``.

    ``data`` holds whole record batches, or nothing; it is valid until the caller asks for the next answer. ``aborted`` are the
    (producer id, first offset) of aborted transactions in it, None under read_uncommitted. ``next_offset`` is the end of the
    last batch, where the fetcher continues.
    """

    data: memoryview
    aborted: Sequence[tuple[int, int]] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    next_offset: int


@attrs.frozen
class Identity:
    """The producer of a transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
