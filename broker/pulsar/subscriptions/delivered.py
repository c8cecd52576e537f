"""How many messages each entry has that was delivered and is not acknowledged.

An acknowledgement names an entry, not its messages, and the cursor works with ranges of offsets. The answer is nearly always
here; for what is not (an entry that was delivered before a restart, or one of very many) the acknowledgement waits until the
entry has been read again (``acknowledging.py``). So the table may be bounded.

Pure; the subscription's lock guards it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from broker.pulsar.dispatch.dispatcher import Delivery

# Of one subscription, about 100 bytes each.
_MOST: Final = 65_536


class Run(NamedTuple):
    """Entries that follow each other: the offset of the first, the one after the last, and all of theirs."""

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
        # Several at once: what was deleted at the front of a dictionary is passed over whenever its first key is looked for.
        table = self._messages
        for oldest in list(islice(table, len(table) - self.most + self.most // 8)):
            del table[oldest]

    def messages(self, entry: int) -> int | None:
        """None: it is not known."""
        return self._messages.get(entry)

    def remove(self, entry: int) -> None:
        """It is acknowledged as a whole."""
        self._messages.pop(entry, None)

    def take(self, entries: Iterable[int]) -> tuple[list[Run], list[int]]:
        """Take these out: in runs of entries that follow each other, and those that are not known."""
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
        """These could not be acknowledged."""
        for _, end, entries in runs:
            for entry, following in zip(entries, [*entries[1:], end], strict=True):
                self._messages[entry] = following - entry

    def remove_before(self, offset: int) -> None:
        """Everything before the offset is acknowledged."""
        table = self._messages
        # Usually the oldest ones are the first, and there are few of them.
        gone = list(takewhile(offset.__gt__, table))
        for entry in gone:
            del table[entry]
        self._removed += len(gone)
        # An entry that was delivered again stands behind newer ones: look at all of them when the table has doubled. And when as
        # many were deleted as there are, the dictionary is made anew, because it does not forget the places of those.
        if len(table) > self._prune_at or self._removed > max(1024, len(table)):
            self._removed = 0
            self._messages = {entry: messages for entry, messages in table.items() if entry >= offset}
            self._prune_at = max(1024, 2 * len(self._messages))

    def clear(self) -> None:
        self._messages.clear()
