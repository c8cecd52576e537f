"""What is stored of a share partition, as bytes: its start offset, what is done with above it, and failed deliveries. Pure.

The head is fixed; then come two lists of numbers, each relative to the one before: the ranges that are done with (hole, length),
and the ranges in flight with failed deliveries (hole, length, count). Each number takes as many bytes as the largest needs. A
share partition with the usual bound of 2,000 records takes 30 bytes as a rule, and 10 KB if every other record is done with.
"""

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct, error, pack, unpack_from
from typing import NamedTuple

from broker.errors import StorageError
from broker.kafka.share.share_partition import SharePartition
from broker.kafka.share.share_settings import DEFAULTS, ShareSettings

_VERSION = 1
# Version, bytes of a number, state epoch, start offset, how many ranges of each kind.
_HEAD = Struct(">BBiqII")
_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}


class ShareState(NamedTuple):
    """A copy, so that who encodes it needs no lock."""

    state_epoch: int
    start: int
    done: Sequence[tuple[int, int]]  # first offset, the one after the last
    failed: Sequence[tuple[int, int, int]]  # the same, and how often

    def encode(self) -> bytes:
        numbers: list[int] = []
        at = self.start
        for first, end in self.done:
            numbers += (first - at, end - first)
            at = end
        at = self.start
        for first, end, count in self.failed:
            numbers += (first - at, end - first, count)
            at = end
        most = max(numbers, default=0)
        width = next(width for width in _WIDTHS if most < 1 << 8 * width)
        head = _HEAD.pack(_VERSION, width, self.state_epoch, self.start, len(self.done), len(self.failed))
        return head + pack(f">{len(numbers)}{_WIDTHS[width]}", *numbers)


def state_of(partition: SharePartition) -> ShareState:
    failed = [(first, last + 1, failures) for first, last, _, failures in partition.in_flight() if failures]
    return ShareState(partition.state_epoch, partition.start, list(partition.done()), failed)


def decode(state: bytes) -> ShareState:
    """Raises StorageError for what ``encode`` has not written."""
    try:
        version, width, epoch, start, done_count, failed_count = _HEAD.unpack_from(state)
        if version != _VERSION or width not in _WIDTHS:
            raise ValueError(f"version {version}")
        count = 2 * done_count + 3 * failed_count
        if len(state) != _HEAD.size + count * width:
            raise ValueError("its length is not what its head says")
        numbers = unpack_from(f">{count}{_WIDTHS[width]}", state, _HEAD.size)
        edges = list(accumulate(numbers[: 2 * done_count], initial=start))
        done = list(zip(edges[1::2], edges[2::2], strict=True))
        failed = []
        at = start
        for place in range(2 * done_count, count, 3):
            first = at + numbers[place]
            at = first + numbers[place + 1]
            failed.append((first, at, numbers[place + 2]))
    except (error, ValueError) as fault:
        raise StorageError(f"The catalogue has a share partition that cannot be read: {fault}.") from None
    return ShareState(epoch, start, done, failed)


def within(state: ShareState, log_end: int) -> ShareState | None:
    """What is left of it if the machine has lost the log's records from ``log_end`` on. None: all. Raises StorageError."""
    end = max([state.start, *(end for _, end in state.done), *(end for _, end, _ in state.failed)])
    return state_of(restored(state, DEFAULTS, log_end)) if end > log_end else None


def restored(state: ShareState, settings: ShareSettings, log_end: int) -> SharePartition:
    """The share partition, with nothing acquired. Raises StorageError."""
    partition = SharePartition(state.start, settings, state.state_epoch)
    try:
        partition.restore(state.done, state.failed, log_end)
    except ValueError as fault:
        raise StorageError(f"The catalogue has a share partition that cannot be read: {fault}.") from None
    return partition
