"""What outlives every machine: the catalogue's tables, the journal, the owner's row and the objects, with faults of their own.

Beside the rows, the vault keeps what they mean: the files that a replay makes. It knows at any moment what a take-over would
find, and looks at each change: a row names an object that is there, the rows that are left still make the same files, and no
object goes that a row or a segment needs.

``engine.py`` is what one life of the broker sees of it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from broker.errors import StorageError
from broker.metadata.journal import JournalRow
from broker.storage.journal.operations import Create, Operation, Remove, Rename, Truncate, Write, decode
from broker.storage.journal.shipper import ShippingLimits
from tests.sim.catalogue import Tables
from tests.sim.journal import JournalTable, Outcome
from tests.sim.world import Process, Violation, World

_LOG = re.compile(r"[^/]*(?<!-delete)/[0-9]{20}\.log")


@attrs.define
class VaultFaults:
    """Probabilities per call."""

    error: float = 0.0  # the database fails, and has changed nothing
    unknown: float = 0.0  # nobody learns what has become of an append
    away: bool = False  # the database cannot be reached
    slow_most_s: float = 0.0
    store_error: float = 0.0  # the object store fails, and has done it or not, or does it later
    store_slow_most_s: float = 0.0


def draw_vault_settings(rng: Any) -> dict[str, Any]:
    return {
        "catalogue": "postgresql://simulated/broker",
        "objects": "memory://",
        "standby": True,
        "remote_log_manager_task_interval_ms": rng.choice((100, 1_000, 30_000)),
        "remote_object_delete_delay_ms": rng.choice((1_000, 60_000)),
        "log_local_retention_bytes": rng.choice((-2, -1, 0, 1_000, 50_000)),
        "log_local_retention_ms": rng.choice((-2, 500)),
    }


class Vault:
    def __init__(self, world: World, tables: Tables, record_most: int = 300) -> None:
        """``record_most``: bytes of the largest record."""
        self.world = world
        self.rng = world.rng("vault")
        self.tables = tables
        self.journal = _Table(self)
        self.faults = VaultFaults()
        self.lease_until = 0.0
        self.lock_holder: Any = None  # a session
        self.owner_session: Any = None
        self.sessions: list[Any] = []
        self._cut_off: dict[Process, float] = {}  # until when these cannot reach it
        self.objects: dict[str, bytes] = {}
        self.files: dict[str, bytearray] = {}  # what a replay of the journal makes, by path
        self._late: list[tuple[float, str, bytes]] = []  # objects that arrive after their request has failed
        rng = world.rng("limits")
        flush_max = max(rng.choice((300, 5_000, 8 * 1024 * 1024)), record_most // 3)
        self.limits = ShippingLimits(
            inline_max=rng.choice((0, 200, 2_000, 65_536)),
            flush_max=flush_max,
            linger_s=rng.choice((0.0, 0.01, 0.25)),
            rows=rng.choice((6, 30, 2_000)),
            bytes=rng.choice((5_000, 512 * 1024 * 1024)),
            carry_max=rng.choice((400, 5_000, 8 * 1024 * 1024)),
            tidy_s=rng.choice((0.05, 0.3, 2.0)),
            beside_min=rng.choice((0, 1_000, 256 * 1024)),
        )

    # -- how it is reached ------------------------------------------------------------------------------------------------

    def reach(self, process: Process) -> None:
        """A request to the database and its answer: time passes. Raises StorageError if there is none."""
        rng, faults = self.rng, self.faults
        slow = rng.random() * faults.slow_most_s if faults.slow_most_s and rng.random() < 0.2 else 0.0
        self.world.wait_for_disk(process, rng.choice((0.0005, 0.003, 0.02)) * rng.random() + slow)
        self.check_reachable(process)
        if faults.error and rng.random() < faults.error:
            self.world.note("  database fails")
            raise StorageError("The database has failed.")

    def check_reachable(self, process: Process | None) -> None:
        if self.faults.away or (process is not None and self.world.now < self._cut_off.get(process, 0.0)):
            raise StorageError("The database cannot be reached.")

    def cut(self, process: Process, until: float) -> None:
        """The process cannot reach it for a while, and perhaps its sessions end."""
        self._cut_off[process] = until
        if self.rng.random() < 0.5:
            self.gone(process, silent=False)

    @property
    def faulty(self) -> bool:
        faults = self.faults
        return bool(faults.error or faults.unknown or faults.away or faults.store_error)

    def outcome(self) -> Outcome:
        unknown = self.faults.unknown
        if not unknown or self.rng.random() >= unknown:
            return Outcome.STORED
        outcome: Outcome = self.rng.choice((Outcome.UNKNOWN_STORED, Outcome.UNKNOWN_LOST, Outcome.UNKNOWN_LATE))
        self.world.note(f"  journal: {outcome.name}")
        return outcome

    def gone(self, process: Process, *, silent: bool) -> None:
        """The process is dead. ``silent``: nobody has told the database, and its lock stays until its session is ended."""
        for session in [session for session in self.sessions if session.process is process]:
            if not silent:
                self.end_session(session)

    def end_session(self, session: Any) -> None:
        session.ended = True
        if session in self.sessions:
            self.sessions.remove(session)
        if self.lock_holder is session:
            self.lock_holder = None

    # -- objects ----------------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> None:
        self.world.note(f"  put {key} {len(data)}")
        if self.objects.get(key, data) != data:
            raise Violation(f"{key} is put a second time, with other bytes")
        self.objects[key] = data

    def put_late(self, key: str, data: bytes) -> None:
        self._late.append((self.world.now + self.rng.random() * 5.0, key, data))

    def settle(self) -> None:
        for late in [late for late in self._late if late[0] <= self.world.now]:
            self._late.remove(late)
            self.put(*late[1:])

    def delete(self, keys: Iterable[str]) -> None:
        named = {row.object: row.number for row in self.journal.rows.values() if row.object is not None}
        used = {file.object: path for path, file in self.tables.remote_files.items()}
        for key in keys:
            if key in named:
                raise Violation(f"{key} is deleted, and row {named[key]} of the journal names it")
            if key in used:
                raise Violation(f"{key} is deleted, and {used[key]} is in it")
            self.world.note(f"  delete {key}")
            self.objects.pop(key, None)

    # -- the journal ------------------------------------------------------------------------------------------------------

    def stored(self, rows: Sequence[JournalRow]) -> None:
        for row in rows:
            self.world.note(f"  row {row.number} {row.object or ''}")
            for operation in decode(row.index).operations:
                if isinstance(operation, Remove):
                    self._check_forgotten(row.number, operation.path)
            self._replay(self.files, row)

    def _check_forgotten(self, number: int, path: str) -> None:
        """What is deleted has another name before. So a log that goes under its own is in an object, or was never durable."""
        if _LOG.fullmatch(path) and self.files.get(path) and path not in self.tables.remote_files:
            raise Violation(f"row {number} removes {path}, and it is in no object")

    def removed(self, upto: int) -> None:
        """The rows that are left make the same files."""
        self.world.note(f"  rows removed up to {upto}")
        files: dict[str, bytearray] = {}
        for _, row in sorted(self.journal.rows.items()):
            self._replay(files, row)
        for path in {**self.files, **files}:
            before, after = self.files.get(path), files.get(path)
            if before != after:
                sizes = [None if each is None else len(each) for each in (before, after)]
                raise Violation(
                    f"after the rows up to {upto} were removed, {path} would be another file: {sizes} bytes"
                )

    def _replay(self, files: dict[str, bytearray], row: JournalRow) -> None:
        index = decode(row.index)
        data = row.data or b""
        if row.object is not None:
            self.settle()
            if row.object not in self.objects:
                raise Violation(f"row {row.number} is in the journal, and its object {row.object} is not there")
            data = self.objects[row.object]
        if len(data) != index.data_size:
            raise Violation(f"row {row.number} has {len(data)} bytes, and its index says {index.data_size}")
        at = 0
        for operation in index.operations:
            _apply(files, operation, data[at:])
            at += operation.size if isinstance(operation, Write) else 0

    # -- what a take-over finds -------------------------------------------------------------------------------------------

    def would_survive(self, directory: str, data: bytes) -> bool:
        """Were the machine lost now: would these bytes be in some file of that directory of the data directory?"""
        start = f"{directory}/"
        if any(data in content for path, content in self.files.items() if path.startswith(start)):
            return True
        remote = [file for path, file in self.tables.remote_files.items() if path.startswith(start)]
        return any(data in self.objects.get(file.object, b"") for file in remote)


def _apply(files: dict[str, bytearray], operation: Operation, data: bytes) -> None:
    match operation:
        case Create(path):
            files.setdefault(path, bytearray())
        case Write(path, position, size):
            content = files.setdefault(path, bytearray())
            content.extend(bytes(max(0, position - len(content))))
            content[position : position + size] = data[:size]
        case Truncate(path, size):
            if path in files:
                del files[path][size:]
        case Rename(old, new):
            moved = {path: files.pop(path) for path in list(files) if path == old or path.startswith(f"{old}/")}
            files.pop(new, None)
            files.update({new + path[len(old) :]: content for path, content in moved.items()})
        case Remove(path):
            files.pop(path, None)


class _Table(JournalTable):
    def __init__(self, vault: Vault) -> None:
        super().__init__(vault.outcome)
        self._vault = vault

    def store(self, rows: Sequence[JournalRow]) -> None:
        super().store(rows)
        self._vault.stored(rows)
