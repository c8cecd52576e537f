"""Backups in an object store: ``broker backup URL``, and the source from which ``broker restore URL`` copies.

A backup has its own place in the store, as it has its own directory on a disk: ``data/<number>`` are the files in the order of
the manifest, because their paths may be no keys, and ``backup.json`` is the manifest. It comes last, so a backup without it is
none. An interrupted backup begins anew, and puts its files over those of the attempt before.

In the process of a command. Raises OSError (``ObjectError`` for the store).

Tests: tests/durable/test_restore.py.
"""

from collections.abc import Callable, Iterator

from broker.errors import ConfigError
from broker.runtime import copying
from broker.runtime.objects import ObjectMissing, ObjectStore
from broker.storage.backup.layout import (
    DATA,
    MANIFEST,
    BadBackup,
    Manifest,
    Plan,
    StoredFile,
    manifest_from_text,
    manifest_text,
)
from protocol.frames import crc32c

_PIECE_BYTES = 4 * 1024 * 1024
_MANIFEST_MAX = 1024 * 1024 * 1024


class ObjectBackup:
    """``Source`` of a restore (``copying.py``)."""

    def __init__(self, objects: ObjectStore) -> None:
        self.name = objects.name
        self._objects = objects

    def exists(self) -> bool:
        try:
            self._objects.size(MANIFEST)
        except ObjectMissing:
            return False
        return True

    def manifest(self) -> Manifest:
        """Raises BadBackup."""
        try:
            size = self._objects.size(MANIFEST)
        except ObjectMissing:
            raise BadBackup(
                f"{self.name} is not a backup, or one that was not finished: it has no {MANIFEST}."
            ) from None
        if size > _MANIFEST_MAX:
            raise BadBackup(f"{self.name} is not a backup: its {MANIFEST} has {size} bytes.")
        try:
            text = self._objects.get(MANIFEST, 0, size).decode()
        except UnicodeDecodeError as error:
            raise BadBackup(f"{MANIFEST} in {self.name} is damaged: it is not text.") from error
        return manifest_from_text(text, self.name)

    def copy(self, number: int, file: StoredFile, target: str, tick: Callable[[int], None]) -> int:
        """Its checksum (CRC-32C)."""
        return copying.write_file(target, self._pieces(number, file), tick)

    def _pieces(self, number: int, file: StoredFile) -> Iterator[bytes]:
        for position in range(0, file.size, _PIECE_BYTES):
            yield self._objects.get(_key(number), position, min(_PIECE_BYTES, file.size - position))

    def verify(self, tick: Callable[[int], None]) -> tuple[Manifest, list[str]]:
        """The manifest, and the problems of the files. Raises BadBackup."""
        manifest = self.manifest()
        there = dict(self._objects.list(DATA))
        problems = []
        for number, file in enumerate(manifest.files):
            size = there.get(_key(number))
            if size is None:
                problems.append(f"{file.path} is missing")
            elif size != file.size:
                problems.append(f"{file.path} has {size} bytes and should have {file.size}")
            else:
                checksum = 0
                for piece in self._pieces(number, file):
                    checksum = crc32c(piece, checksum)
                    tick(len(piece))
                if checksum != file.checksum:
                    problems.append(f"{file.path} is damaged: its checksum differs")
        return manifest, problems


def check_place(objects: ObjectStore) -> None:
    """Raises ConfigError if there is anything but an unfinished backup, ObjectError."""
    for key, _ in objects.list(""):
        if key == MANIFEST:
            raise ConfigError(f"Choose another place: {objects.name} is a backup already.")
        if not key.startswith(f"{DATA}/"):
            raise ConfigError(f"Choose another place: {objects.name} has other objects (it has {key[:100]!r}).")


def put_backup(
    plan: Plan, staging: str, objects: ObjectStore, tick: Callable[[int], None] = lambda _: None
) -> tuple[int, int]:
    """Put the files of the plan, which are in the directory ``staging``. The number of files, and of bytes."""
    stored = []
    for number, file in enumerate(plan.files):
        checksum = 0

        def pieces(path: str = f"{staging}/{file.path}", size: int = file.size) -> Iterator[bytes]:
            nonlocal checksum
            for piece in copying.pieces_of(path, size):
                checksum = crc32c(piece, checksum)
                yield piece
                tick(len(piece))

        objects.put(_key(number), pieces(), file.size)
        tick(0)
        stored.append(StoredFile(file.path, file.size, checksum, None))
    text = manifest_text(Manifest(plan, tuple(stored))).encode()
    objects.put(MANIFEST, [text], len(text))
    return len(stored), sum(file.size for file in stored)


def _key(number: int) -> str:
    return f"{DATA}/{number:08d}"
