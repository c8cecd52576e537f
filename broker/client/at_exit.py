"""Calls a function when the process ends, but not in a forked child of it.

Tests: tests/client/shuffle/test_fork.py.
"""

import atexit
from collections.abc import Callable

from broker.runtime import forks


class AtExit:
    """Calls ``function`` when the interpreter exits, unless it is cancelled before.

    A child that was forked in between has a copy of the registration and may end first. It does not call the function, because
    what is to be cleaned up belongs to the parent.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._forks = forks.count()
        atexit.register(self._run)

    def _run(self) -> None:
        if forks.count() == self._forks:
            self._function()

    def cancel(self) -> None:
        """Calling it twice is no error."""
        atexit.unregister(self._run)
