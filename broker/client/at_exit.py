"""What a process does at its end, and a forked child of it does not.

Tests: tests/client/shuffle/test_fork.py.
"""

import atexit
from collections.abc import Callable

from broker.runtime import forks


class AtExit:
    """Has ``function`` called when the interpreter ends, unless it is cancelled before.

    A child that was forked meanwhile has this, too, and may end first. What is to be cleaned up is the parent's.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._forks = forks.count()
        atexit.register(self._run)

    def _run(self) -> None:
        if forks.count() == self._forks:
            self._function()

    def cancel(self) -> None:
        """Twice is no error."""
        atexit.unregister(self._run)
