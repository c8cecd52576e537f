"""The number of messages of each entry that is delivered and not acknowledged.

An acknowledgement names an entry, not its messages, but the cursor works with ranges of offsets. This table nearly always has
the number of messages. For other entries (delivered before a restart, or dropped from the full table) the acknowledgement waits
until the entry has been read again (``acknowledging.py``). So the table may be bounded.

Pure; the subscription's lock guards it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from broker.pulsar.dispatch.dispatcher import Delivery

# Entries of a subscription in the table, about 100 bytes each.
_MOST: Final = 65_536


class Run(NamedTuple):
    """Adjacent entries: the first offset, the offset after the last entry, and the offsets of all entries."""

    first: int
    end: int
    entries: list[int]


class Delivered:
    __slots__ = ("_messages", "_prune_at", "_removed", "most")

    def __init__(self, most: int = _MOST) -> None:
        self.most = most
        self._messages: dict[int, int] = {}  # by the entry's offset, in the order of delivery
        self._prune_at = 1024
        self._removed = 0  # from the front, since the dictionary was made

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[int]:
        return iter(self._messages)

    def __contains__(self, entry: int) -> bool:
        return entry in self._messages

    def add(self, entry: int, messages: int) -> None:
        table = self._messages
        table[entry] = messages
        if len(table) > self.most:
            self._forget_oldest()

    def add_all(self, deliveries: Iterable[Delivery]) -> None:
        table = self._messages
        for entry, _, _ in deliveries:
            table[entry.offset] = entry.messages
        if len(table) > self.most:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        # Several at once: a dictionary skips the places of keys deleted at its front whenever its first key is looked for.
        table = self._messages
        for oldest in list(islice(table, len(table) - self.most + self.most // 8)):
            del table[oldest]

    def messages(self, entry: int) -> int | None:
        """None: unknown."""
        return self._messages.get(entry)

    def remove(self, entry: int) -> None:
        """The entry is acknowledged as a whole."""
        self._messages.pop(entry, None)

    def take(self, entries: Iterable[int]) -> tuple[list[Run], list[int]]:
        """Remove these entries. Returns runs of adjacent entries, and the unknown entries."""
        pop = self._messages.pop
        runs: list[Run] = []
        unknown: list[int] = []
        first = end = -1
        run: list[int] = []
        for entry in entries:
            messages = pop(entry, 0)
            if not messages:
                unknown.append(entry)
            elif entry == end:
                run.append(entry)
                end += messages
            else:
                if run:
                    runs.append(Run(first, end, run))
                first, end, run = entry, entry + messages, [entry]
        if run:
            runs.append(Run(first, end, run))
        return runs, unknown

    def put_back(self, runs: Sequence[Run]) -> None:
        """Undo ``take`` for runs that could not be acknowledged."""
        for _, end, entries in runs:
            for entry, following in zip(entries, [*entries[1:], end], strict=True):
                self._messages[entry] = following - entry

    def remove_before(self, offset: int) -> None:
        """Everything before the offset is acknowledged."""
        table = self._messages
        # Usually the oldest entries are the first, and few of them are removed.
        gone = list(takewhile(offset.__gt__, table))
        for entry in gone:
            del table[entry]
        self._removed += len(gone)
        # An entry that was delivered again stands behind newer entries, so all are checked when the table has doubled. The
        # dictionary is also rebuilt when as many keys were deleted as remain, because it keeps the places of deleted keys.
        if len(table) > self._prune_at or self._removed > max(1024, len(table)):
            self._removed = 0
            self._messages = {entry: messages for entry, messages in table.items() if entry >= offset}
            self._prune_at = max(1024, 2 * len(self._messages))

    def clear(self) -> None:
        self._messages.clear()
