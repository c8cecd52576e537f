"""The row of a share partition: a document of the kind ``share-partition``, written by ``broker/metadata/state_store.py``.

It has the start offset, the finished offsets above it, and failed deliveries. The head is fixed; then come two lists of numbers,
each relative to the previous: the finished ranges (hole, length), and the ranges in flight with failed deliveries (hole, length,
count). Each number takes as many bytes as the largest needs. A share partition with the usual bound of 2,000 records usually
takes 30 bytes, and 10 KB if every other record is finished.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from struct import Struct, error, pack, unpack_from
from typing import NamedTuple

from broker.errors import StorageError
from broker.kafka.share.share_partition import SharePartition, ShareSettings
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.state_store import StateStore
from broker.metadata.writer import CatalogueWriter
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer

_VERSION = 1
# Version, bytes of a number, state epoch, start offset, number of ranges of each kind.
_HEAD = Struct(">BBiqII")
_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}


class ShareState(NamedTuple):
    """A copy, so that encoding needs no lock."""

    state_epoch: int
    start: int
    done: Sequence[tuple[int, int]]  # first offset, the offset after the last
    failed: Sequence[tuple[int, int, int]]  # the same, and the number of failures

    @property
    def end(self) -> int:
        """The offset after the last in the state."""
        return max(self.start, *(rows[-1][1] for rows in (self.done, self.failed) if rows), 0)

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
    """Raises StorageError for invalid bytes."""
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


def restored(state: ShareState, settings: ShareSettings, log_end: int) -> SharePartition:
    """The share partition, with nothing acquired. Raises StorageError."""
    partition = SharePartition(state.start, settings, state.state_epoch)
    try:
        partition.restore(state.done, state.failed, log_end)
    except ValueError as fault:
        raise StorageError(f"The catalogue has a share partition that cannot be read: {fault}.") from None
    return partition


log = get_logger("kafka")

KIND = "share-partition"


class Key(NamedTuple):
    group_id: str
    topic_id: bytes
    partition: int

    @property
    def text(self) -> str:
        return f"{self.group_id}\0{self.topic_id.hex()}\0{self.partition}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Raises ValueError."""
        group_id, topic_id, partition = text.rsplit("\0", 2)
        return cls(group_id, bytes.fromhex(topic_id), int(partition))


ShareStore = StateStore[Key]


def share_store(
    writer: CatalogueWriter,
    clock: Clock,
    timer: Timer,
    remove: Callable[[Catalogue, Iterable[Key]], None] | None = None,
) -> ShareStore:
    """``remove``: removes rows; None: ``delete_now``."""
    return StateStore(writer, clock, timer, _write, remove or delete_now, _report)


def _write(catalogue: Catalogue, key: Key, state: bytes) -> None:
    catalogue.alter_documents([(KIND, key.text, state)])


def delete_now(catalogue: Catalogue, keys: Iterable[Key]) -> None:
    """Raises StorageError."""
    catalogue.alter_documents([(KIND, key.text, None) for key in keys])


def _report(_: Key, error: StorageError, unlogged_before: int) -> None:
    log.error("share_state_not_saved", error=str(error), unlogged_before=unlogged_before)


def load(catalogue: Catalogue) -> dict[Key, bytes]:
    """All rows. Raises StorageError."""
    rows = {}
    for text, body in catalogue.load_documents(KIND):
        try:
            rows[Key.parse(text)] = body
        except ValueError:
            log.error("share_state_unreadable", key=text)
    return rows
