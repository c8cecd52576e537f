"""Reads a stream of lines, such as standard input, as far as it goes without waiting, so that a program can use what it has
before it waits for more. The only module that asks the system whether a descriptor is readable outside the reactor."""

import os
import select


class TextInput:
    """``descriptor``: a file, a pipe or a terminal, which stays the caller's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A poll, because `select` has no descriptors above 1024. Regular files are always ready.
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def read(self, most: int, wait_s: float | None) -> bytes | None:
        """At most ``most`` bytes; b"" at the end; None where nothing came within ``wait_s`` s (None: waits as long as it takes).

        An exception of a signal handler ends the wait. Raises OSError.
        """
        if wait_s is not None and not self._poll.poll(wait_s * 1000):
            return None
        return os.read(self._descriptor, most)
