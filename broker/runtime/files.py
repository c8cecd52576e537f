"""Files beside the log: secret files, small text files, log files, packaged files, and why a path cannot be used.

Secret files can be read only by the user of this process. On systems without such rights they are ordinary files.

``LogFile`` gets lines appended and is opened anew after it was renamed. Any thread.

``explain_denial`` names the user of this process, the owner of the path and the command that mends it. An operator sees this
when a volume belongs to another user than that of the container or unit.

Packaged files are found wherever the package is installed.
"""

import contextlib
import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def create_private(path: str) -> bool:
    """Make an empty file. False, without any change, if it exists or cannot be made."""
    try:
        # Only a new file is opened: closing an existing file would end the locks that this process has on it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return False
    return True


def make_private(path: str) -> None:
    """Take the rights to this file from other users, if that is possible."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o600)


def read_text(path: str, most: int) -> str:
    """The whole file. OSError; ValueError for a file of more than ``most`` bytes or not in UTF-8. No error shows the text."""
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no UTF-8 text") from None


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
        """Continue in a new file of that name. A signal handler may call it. If it cannot be opened, the old file stays."""
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


_DENIED = (errno.EACCES, errno.EPERM)


def explain_denial(error: OSError, path: str) -> str:
    """What went wrong, as a clause; where rights are missing, with the users concerned and the way out."""
    if error.errno == errno.EROFS:
        return f"{path} is on a file system that is mounted read-only"
    if error.errno not in _DENIED:
        return error.strerror or str(error)
    reason = error.strerror or str(error)
    nearest = _nearest(os.path.abspath(path))
    if nearest is None:
        return f"{reason}; this process runs as {_user(os.geteuid(), os.getegid())}"
    there, status = nearest
    uid, gid = os.geteuid(), os.getegid()
    who = f"this process runs as {_user(uid, gid)}"
    whose = f"{there} belongs to {_user(status.st_uid, status.st_gid)} with mode {stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid == uid:
        return f"{reason}; {who}, which owns {there}, but its mode is {stat.S_IMODE(status.st_mode):04o}: chmod u+rwx {there}"
    return (
        f"{reason}; {who}, and {whose}: run `chown -R {uid}:{gid} {there}` as root, or run the broker as user "
        f"{status.st_uid}"
    )


def explain_access(path: str) -> str | None:
    """As ``explain_denial``, where this process may not read and write an existing file; None if it may."""
    if not os.path.exists(path) or os.access(path, os.R_OK | os.W_OK):
        return None
    return explain_denial(PermissionError(errno.EACCES, os.strerror(errno.EACCES), path), path)


def _nearest(path: str) -> tuple[str, os.stat_result] | None:
    """The path, or the nearest existing directory above it, and its status."""
    while True:
        try:
            return path, os.stat(path)
        except OSError:
            above = os.path.dirname(path)
            if above == path:
                return None
            path = above


def _user(uid: int, gid: int) -> str:
    """``uid 10001 (gid 10001)``, with names where the machine knows them."""
    try:
        user = f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except (KeyError, OSError):
        user = f"uid {uid}"
    try:
        group = f"gid {gid} ({grp.getgrgid(gid).gr_name})"
    except (KeyError, OSError):
        group = f"gid {gid}"
    return f"{user}, {group}"


def read_packaged(package: str, folder: str) -> dict[str, bytes]:
    """All files in a folder of a package and in its subfolders: their paths, with ``/``, and contents. OSError."""
    from importlib.resources import files  # which imports 20 modules; a broker without a page does not need them

    return dict(_walk(files(package).joinpath(folder), ""))


def _walk(folder: "Traversable", before: str) -> Iterator[tuple[str, bytes]]:
    for item in sorted(folder.iterdir(), key=lambda each: each.name):
        if item.is_dir():
            yield from _walk(item, f"{before}{item.name}/")
        else:
            yield before + item.name, item.read_bytes()
