"""What the Kafka client is asked for and what it answers with. Values only."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import attrs

# In place of a time in ``Cluster.offsets``: Kafka's own numbers.
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
ISOLATION_LEVELS = {READ_UNCOMMITTED: 0, READ_COMMITTED: 1}

TopicPartition = tuple[str, int]


@attrs.frozen
class TopicMetadata:
    """``topic_id`` is None where the broker gives topics none (Metadata before version 10)."""

    name: str
    topic_id: UUID | None
    partitions: tuple[int, ...]


@attrs.frozen
class OffsetAndMetadata:
    """What a group has committed, or commits. ``leader_epoch`` -1: unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class Fetched(NamedTuple):
    """One answer of a ``Fetcher``.

    ``data`` holds whole record batches, perhaps none; it is valid until the next one is asked for. ``aborted`` are
    (producer id, first offset) of aborted transactions in it, None under read_uncommitted. ``next_offset`` is where the
    fetcher goes on: the end of the last batch.
    """

    data: memoryview
    aborted: Sequence[tuple[int, int]] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    next_offset: int


@attrs.frozen
class Identity:
    """Who writes a transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
