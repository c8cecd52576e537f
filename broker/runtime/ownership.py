"""Says why this process may not use a path: who it runs as, who owns what is in the way, and the command that mends it.

An operator sees this when a volume belongs to another user than the one that a container or a unit runs the broker as.
"""

import errno
import grp
import os
import pwd
import stat

_DENIED = (errno.EACCES, errno.EPERM)


def explain_denial(error: OSError, path: str) -> str:
    """What went wrong, as a clause; where rights are missing, with the users concerned and the way out."""
    if error.errno == errno.EROFS:
        return f"{path} is on a file system that is mounted read-only"
    if error.errno not in _DENIED:
        return error.strerror or str(error)
    reason = error.strerror or str(error)
    found = _nearest(os.path.abspath(path))
    if found is None:
        return f"{reason}; this process runs as {_user(os.geteuid(), os.getegid())}"
    there, status = found
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
    """The path, or the directory above it that is there, and what it is."""
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
