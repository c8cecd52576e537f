"""A file to which lines are appended, and which is opened anew after it was renamed. Any thread."""

import os


class LogFile:
    """Raises OSError if the file cannot be opened. Afterwards nothing that happens to it stops its writers: a line that cannot be
    written, as on a full disk, is lost."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = self._open()

    def _open(self) -> int:
        # Appending, so that a file that somebody else cuts to nothing (logrotate's copytruncate) goes on at its new end.
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def reopen(self) -> None:
        """Go on in a new file of that name. May be called by a signal handler. If it cannot be opened, the old one stays."""
        try:
            descriptor = self._open()
        except OSError:
            return
        # The number stays the same, so that a thread in the middle of a write has a file to write to.
        os.dup2(descriptor, self._descriptor, inheritable=False)
        os.close(descriptor)

    def write_line(self, line: str) -> None:
        try:
            os.write(self._descriptor, f"{line}\n".encode("utf-8", "backslashreplace"))
        except OSError:
            pass
