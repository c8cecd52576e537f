"""Temporary directories that are always removed, at the latest by the next process that makes one.

A directory ``broker-<random>`` holds two things: ``data``, which its owner uses, and ``owner``, a file of one line of our own
which the owner's process has locked (flock) for as long as it lives. The kernel takes the lock back however the process ends, so
a directory whose lock can be taken is abandoned. Nothing else is ever removed: no directory that lacks this file, belongs to
another user, or is reached over a symbolic link, and of an abandoned directory only these two things.

On any thread. A process that was forked from the owner's is not the owner.
"""

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable

_PREFIX = "broker-"
# How often, and how long (s) in between, the end of an owner is awaited.
_TRIES, _TRY_AGAIN_S = 100, 0.01
_MARK = b"temporary directory of a reactor-broker process\n"
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class TemporaryDirectory:
    """Removed by ``remove``, and at the normal end of this process, an exception's included.

    ``before_exit`` is called at the end of this process, before the directory is removed, unless it was removed before.
    """

    def __init__(self, before_exit: Callable[[], object] | None = None) -> None:
        remove_abandoned()
        self._root = tempfile.mkdtemp(prefix=_PREFIX)
        self._pid = os.getpid()
        self.before_exit = before_exit
        self._lock = -1
        try:
            # Under another name until it is locked: others take an unlocked directory for abandoned.
            new = os.path.join(self._root, "owner.new")
            self._lock = os.open(new, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._lock, _MARK)
            os.mkdir(self.path, 0o700)
            os.rename(new, os.path.join(self._root, "owner"))
        except BaseException:
            if self._lock >= 0:
                os.close(self._lock)
            shutil.rmtree(self._root, ignore_errors=True)
            raise
        atexit.register(self._at_exit)

    @property
    def path(self) -> str:
        """The directory for its owner's files."""
        return os.path.join(self._root, "data")

    @property
    def is_mine(self) -> bool:
        """Whether this process made it. A forked process has a copy of this object, and its end must remove nothing."""
        return self._pid == os.getpid()

    def remove(self) -> None:
        """Remove the directory; files that cannot be removed stay. In a forked process, or the second time, it does nothing."""
        lock, self._lock = self._lock, -1
        if lock < 0 or not self.is_mine:
            return
        atexit.unregister(self._at_exit)
        _remove(self._root)
        os.close(lock)

    def _at_exit(self) -> None:
        if not self.is_mine:
            return
        try:
            if self.before_exit is not None:
                self.before_exit()
        finally:
            self.remove()


def remove_abandoned() -> None:
    """Remove the directories of this user's processes that have ended without removing them."""
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            roots = [entry.path for entry in entries if entry.name.startswith(_PREFIX) and _is_own_directory(entry)]
    except OSError:
        return
    for root in roots:
        _remove_if_abandoned(root)


def _is_own_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:  # it was removed meanwhile
        return False


def remove_when_abandoned(path: str) -> None:
    """Remove the temporary directory whose ``path`` this is, in a process that has seen its owner's end. Does nothing if that
    still lives, or if it is no such directory."""
    for _ in range(_TRIES):
        if _remove_if_abandoned(os.path.dirname(path)):
            return
        time.sleep(_TRY_AGAIN_S)  # the kernel takes back all that a process had, in any order


def _remove_if_abandoned(root: str) -> bool:
    """False if it has an owner."""
    owner = os.path.join(root, "owner")
    try:
        lock = os.open(owner, _FLAGS | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        opened = os.fstat(lock)
        if not stat.S_ISREG(opened.st_mode) or os.read(lock, len(_MARK) + 1) != _MARK:
            return True
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a living owner has it
        if os.path.samestat(opened, os.stat(owner, follow_symlinks=False)):  # no other process has removed it meanwhile
            _remove(root)
    except BlockingIOError:
        return False
    except OSError:
        pass
    finally:
        os.close(lock)
    return True


def _remove(root: str) -> None:
    """Remove ``data`` before ``owner``: if this process dies between them, the next process still recognises the directory."""
    shutil.rmtree(os.path.join(root, "data"), ignore_errors=True)
    if os.path.lexists(os.path.join(root, "data")):
        return
    try:
        os.unlink(os.path.join(root, "owner"))
        os.rmdir(root)  # fails if there are other files in it
    except OSError:
        pass
