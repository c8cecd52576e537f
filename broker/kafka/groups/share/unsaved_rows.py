"""Which rows of a share group are not durable yet: changed since they were last handed out to be saved, or being saved.

Pure bookkeeping of a ``ShareGroup``, under the group's lock. A row that could not be saved counts as changed again, so that the
next save, of whatever, writes it too: one failure leaves nothing behind.
"""

from collections.abc import Iterable


class UnsavedRows:
    """Rows are named by any text."""

    def __init__(self) -> None:
        self._changed: dict[str, None] = {}  # as an ordered set
        # By row: the number of the last save that has it.
        self._saving: dict[str, int] = {}
        self._number = 0

    def __contains__(self, row: object) -> bool:
        return row in self._saving or row in self._changed

    def add(self, row: str) -> None:
        """This row has changed."""
        self._changed[row] = None

    def take(self) -> tuple[int, list[str]]:
        """The rows that have changed, which are saved from now on, and the number of that save."""
        self._number += 1
        taken = list(self._changed)
        self._changed.clear()
        self._saving.update(dict.fromkeys(taken, self._number))
        return self._number, taken

    def saved(self, number: int, taken: Iterable[str], *, failed: bool) -> None:
        """That save is durable, or has failed."""
        for row in taken:
            if self._saving.get(row) == number:
                del self._saving[row]
                if failed:
                    self._changed[row] = None

    @property
    def any_changed(self) -> bool:
        """Whether there is anything to ``take``."""
        return bool(self._changed)
