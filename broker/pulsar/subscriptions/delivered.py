"""How many messages each entry has that was delivered and is not acknowledged.

An acknowledgement names an entry, not its messages, and the cursor works with ranges of offsets. The answer is nearly always
here; for what is not (an entry that was delivered before a restart, or one of very many) the acknowledgement waits until the
entry has been read again (``acknowledging.py``). So the table may be bounded.

Pure; the subscription's lock guards it.
"""

from itertools import islice, takewhile
from typing import Final

# Of one subscription, about 100 bytes each.
_MOST: Final = 65_536


class Delivered:
    __slots__ = ("_messages", "_prune_at", "_removed", "most")

    def __init__(self, most: int = _MOST) -> None:
        self.most = most
        self._messages: dict[int, int] = {}  # by the entry's offset, in the order of delivery
        self._prune_at = 1024
        self._removed = 0  # from the front, since the dictionary was made

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, entry: int) -> bool:
        return entry in self._messages

    def add(self, entry: int, messages: int) -> None:
        table = self._messages
        table[entry] = messages
        if len(table) > self.most:
            # Several at once: what was deleted at the front of a dictionary is passed over whenever its first key is looked for.
            for oldest in list(islice(table, self.most // 8 + 1)):
                del table[oldest]

    def messages(self, entry: int) -> int | None:
        """None: it is not known."""
        return self._messages.get(entry)

    def remove(self, entry: int) -> None:
        """It is acknowledged as a whole."""
        self._messages.pop(entry, None)

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
