"""A lock that goes to those who wait for it in the order in which they came.

A plain lock may go again and again to a thread that gives it up only for a moment, as one that polls in a loop does.
"""

from types import TracebackType

from broker.runtime.threads import Condition


class Turns:
    """``with turns:``"""

    def __init__(self) -> None:
        self._condition = Condition()
        self._next_ticket = 0
        self._serving = 0
        self._given_up: set[int] = set()

    def __enter__(self) -> None:
        with self._condition:
            ticket = self._next_ticket
            self._next_ticket += 1
            try:
                while self._serving != ticket:
                    self._condition.wait()
            except BaseException:  # Ctrl-C
                self._given_up.add(ticket)
                self._skip()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._condition:
            self._serving += 1
            self._skip()

    def _skip(self) -> None:
        while self._serving in self._given_up:
            self._given_up.remove(self._serving)
            self._serving += 1
        self._condition.notify_all()
