"""Copies files whole and durably, for backups: bytes with their checksum, and second names if both are on one disk.

Runs in commands, on their main thread. Raises OSError.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from protocol.frames import crc32c

_PIECE_BYTES = 1024 * 1024


class Identity(NamedTuple):
    """Identifies a file and its content: equal identities mean that neither has changed."""

    inode: int
    size: int
    modified_ns: int


def identity(path: str) -> Identity:
    status = os.stat(path)
    return Identity(status.st_ino, status.st_size, status.st_mtime_ns)


def copy_file(source: str, target: str, size: int, tick: Callable[[int], None] = lambda _: None) -> int:
    """Make the first ``size`` bytes of ``source`` the durable content of ``target``, for this user only. Returns their CRC-32C.

    ``tick`` is called after each piece with its size. If the source is shorter, that is an error.
    """
    return write_file(target, pieces_of(source, size), tick)


def pieces_of(source: str, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of a file. If it is shorter, that is an error."""
    with open(source, "rb", buffering=0) as reading:
        left = size
        while left:
            piece = reading.read(min(_PIECE_BYTES, left))
            if not piece:
                raise OSError(errno.EIO, f"the file ends {left} bytes too early", source)
            yield piece
            left -= len(piece)


def write_file(target: str, pieces: Iterable[bytes], tick: Callable[[int], None] = lambda _: None) -> int:
    """Make these the durable content of ``target``, for this user only. Returns their CRC-32C. ``tick``: as ``copy_file``."""
    checksum = 0
    # A link that somebody put there is not followed: root may be writing into another user's directory.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(target, flags, 0o600)
    with open(descriptor, "wb", buffering=0) as writing:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[writing.write(view) :]
            checksum = crc32c(piece, checksum)
            tick(len(piece))
        os.fsync(writing.fileno())
    return checksum


def checksum_of(path: str, tick: Callable[[int], None] = lambda _: None) -> tuple[int, int]:
    """Size and CRC-32C of a file."""
    checksum = size = 0
    with open(path, "rb", buffering=0) as reading:
        while piece := reading.read(_PIECE_BYTES):
            checksum = crc32c(piece, checksum)
            size += len(piece)
            tick(len(piece))
    return size, checksum


def link_or_none(source: str, target: str) -> bool:
    """Give ``source`` a second name; False if it is gone or on another disk."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(target)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ENOENT, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            return False
        raise
    return True


def append_line(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def make_private_directory(path: str) -> None:
    """Make it and its parents, for this user only; an existing directory stays as it is."""
    os.makedirs(path, mode=0o700, exist_ok=True)


def make_directory_for_owner_of(directory: str, path: str) -> None:
    """Make ``path`` below ``directory`` with the missing directories between them, each for the owner of ``directory`` only."""
    missing = []
    while path != directory and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        os.mkdir(each, mode=0o700)
        give_to_owner_of(directory, each)


def files_below(path: str) -> Iterator[str]:
    """The paths of all files below a directory, relative to it, sorted by directory."""
    for directory, directories, names in os.walk(path):
        directories.sort()
        relative = os.path.relpath(directory, path)
        for name in sorted(names):
            yield name if relative == "." else f"{relative}/{name}"


def give_to_owner_of(directory: str, path: str) -> None:
    """Where root has made ``path`` in a directory of another user, hand it to that user. Links are not followed."""
    if os.geteuid() != 0:
        return
    owner = os.stat(directory)
    if owner.st_uid != 0:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
