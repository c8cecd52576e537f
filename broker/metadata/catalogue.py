"""Everything durable that is not a record: topics and their settings, committed offsets, groups, producer ids.

``Catalogue`` is the interface, ``SqliteCatalogue`` the embedded implementation. Any thread may call any method. A method
that changes something returns when the change is durable (it survives power loss) and raises StorageError when it is not;
then nothing of it has happened, now or after a restart. Where the disk does not allow even that much to be known, it raises
UnknownOutcome: the change is not in force, and the next start finds it either whole or not at all. Who calls keeps its own
copy in memory where speed matters: nothing here is on the path of a record.
"""

import json
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import attrs

from broker.errors import ConfigError, StorageError, UnknownOutcome
from broker.log import get_logger
from broker.runtime.threads import Lock

T = TypeVar("T")

logger = get_logger("storage")

# Rises with each change of the tables that an older broker would misread.
SCHEMA_VERSION = 3


@attrs.frozen
class TopicRow:
    """One topic. ``configs`` holds only what differs from the broker's defaults."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = attrs.field(factory=dict)


class OffsetCommit(NamedTuple):
    """What a group commits for one partition; a plain tuple of this shape does as well."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    commit_ms: int


class StoredOffset(NamedTuple):
    """A committed offset as it is loaded. ``expire_ms`` is -1: how long it is kept is the group's affair."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    commit_ms: int
    expire_ms: int


class TransactionRow(NamedTuple):
    """A transactional id. Epochs and times (wall clock, ms) are -1 where there is none."""

    transactional_id: str
    producer_id: int
    epoch: int
    last_epoch: int
    timeout_ms: int
    phase: str
    partitions: tuple[tuple[str, int], ...]
    groups: tuple[str, ...]
    started_ms: int
    updated_ms: int
    last_producer_id: int


class PendingOffset(NamedTuple):
    """What a group commits with a transaction that has not ended yet."""

    transactional_id: str
    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    commit_ms: int


class Catalogue(Protocol):
    def topics(self) -> list[TopicRow]:
        """All topics, sorted by name."""

    def put_topic(self, row: TopicRow) -> None:
        """Insert the topic, or replace the one with its name."""

    def delete_topic(self, name: str) -> None:
        """Remove the topic and remember its id among ``deleted_topic_ids``, in one step. Unknown names do nothing."""

    def deleted_topic_ids(self) -> set[uuid.UUID]:
        """Ids of deleted topics whose files may still be there under their old names."""

    def forget_deleted_topics(self, topic_ids: Iterable[uuid.UUID]) -> None: ...

    def broker_configs(self, entity: str = "") -> dict[str, str]:
        """Settings that were changed while running: of one broker by its id as text, or ('') of all."""

    def alter_broker_configs(self, changes: Mapping[str, str | None], entity: str = "") -> None:
        """Set, or with None remove, settings."""

    def load_offsets(self) -> Iterable[StoredOffset]:
        """All committed offsets, in no particular order."""

    def commit_offsets(self, group: str, offsets: Iterable[tuple[str, int, int, int, str | None, int]]) -> None:
        """All of them or none. Each is (topic, partition, offset, leader_epoch, metadata, commit_ms)."""

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]] | None) -> None:
        """Of these (topic, partition); None: all of the group's."""

    def delete_topic_offsets(self, topic: str) -> None:
        """Of all groups, those pending in transactions too."""

    def load_groups(self) -> Iterable[tuple[str, bytes]]:
        """(group, blob) as saved."""

    def save_group(self, group: str, blob: bytes) -> None: ...

    def delete_group(self, group: str) -> None:
        """Its blob; its offsets are deleted by ``delete_offsets``."""

    def load_transactions(self) -> Iterable[TransactionRow]:
        """All transactional ids, in no particular order."""

    def save_transactions(self, rows: Iterable[TransactionRow]) -> None:
        """All of them or none."""

    def load_pending_offsets(self) -> Iterable[PendingOffset]: ...

    def add_pending_offsets(
        self, transactional_id: str, group: str, offsets: Iterable[tuple[str, int, int, int, str | None, int]]
    ) -> None:
        """As ``commit_offsets``, but they count only once the transaction is completed."""

    def complete_transaction(self, row: TransactionRow, commit: bool) -> None:
        """Save the row, and make its pending offsets the committed ones (or with ``commit`` False drop them), in one step."""

    def delete_transaction(self, transactional_id: str) -> None:
        """Its row and whatever is pending in it."""

    def allocate_producer_ids(self, n: int) -> int:
        """First of ``n`` ids in a row that were never given out before. The first of all is 0."""

    def together(self, changes: "Iterable[Change]") -> None:
        """Make several changes one: all of them or none. Each is called with a catalogue whose methods change something."""

    def meta(self, key: str) -> str | None: ...

    def set_meta(self, key: str, value: str) -> None: ...

    def close(self) -> None: ...


Change = Callable[[Catalogue], None]

_TABLES = """
CREATE TABLE topics (
    name TEXT PRIMARY KEY, topic_id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL, configs TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE deleted_topics (topic_id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE broker_configs (
    entity TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (entity, name)
) WITHOUT ROWID;
CREATE TABLE offsets (
    group_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, committed INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL, metadata TEXT, commit_ms INTEGER NOT NULL, expire_ms INTEGER NOT NULL DEFAULT -1,
    PRIMARY KEY (group_id, topic, partition)
) WITHOUT ROWID;
CREATE INDEX offsets_by_topic ON offsets (topic);
CREATE TABLE groups (group_id TEXT PRIMARY KEY, blob BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE producer_ids (next INTEGER NOT NULL);
INSERT INTO producer_ids VALUES (0);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_TRANSACTIONS = """
CREATE TABLE transactions (
    transactional_id TEXT PRIMARY KEY, producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL, last_epoch INTEGER NOT NULL,
    timeout_ms INTEGER NOT NULL, phase TEXT NOT NULL, partitions TEXT NOT NULL, groups TEXT NOT NULL,
    started_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE pending_offsets (
    transactional_id TEXT NOT NULL, group_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    committed INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT, commit_ms INTEGER NOT NULL,
    PRIMARY KEY (transactional_id, group_id, topic, partition)
) WITHOUT ROWID;
"""
_LAST_PRODUCER = """
ALTER TABLE transactions ADD COLUMN last_producer_id INTEGER NOT NULL DEFAULT -1;
UPDATE transactions SET last_producer_id = producer_id WHERE last_epoch >= 0;
"""
# What each version of the layout has added.
_LAYOUTS = (_TABLES, _TRANSACTIONS, _LAST_PRODUCER)


# The key in ``meta`` of the counter of commits that failed.
_OVERWRITES = "overwritten_commits"
# A commit that fails with one of these did not get as far as its last frame, without which the others are void.
_NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_BUSY)


class SqliteCatalogue:
    """One SQLite file in WAL mode with ``synchronous=FULL``: a commit is one fsync of the write-ahead log.

    One connection behind one lock: SQLite has one writer anyhow, reads are rare (at the start), and the module's own
    thread checks are per connection.

    A commit can fail after its frames were written to the log, when the fsync fails. SQLite then rolls back, but the frames
    stay in the file, and a process that opens it later takes them for a transaction that was committed. So a failed commit
    is followed by one that changes nothing but a counter: SQLite writes it over the failed frames, whose checksums continue
    those before them and are therefore void. Until that has succeeded nothing else is written.

    In WAL mode SQLite wants a file of 32 KiB beside the catalogue, for which a full disk has no room. Then the catalogue is
    opened for this process alone, which needs no such file: it can be read, and written again as soon as there is room.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigError where the file cannot be opened, is damaged, or was written by a newer broker."""
        self.path = path
        self._lock = Lock()
        self._uncertain = False  # frames of a commit that failed may be in the log
        try:
            self._connection = self._connect(exclusive=False)
        except sqlite3.Error as error:
            if _is_damage(error):
                raise ConfigError(
                    f"The catalogue {path} is damaged ({error}): restore it from a backup, or move it and its -wal file away "
                    "to have the topics taken in from their directories, without their settings and without committed offsets."
                ) from error
            try:
                self._connection = self._connect(exclusive=True)
            except sqlite3.Error:
                raise ConfigError(
                    f"The catalogue {path} cannot be used ({error}): make room on its disk if that is full, and see to it that "
                    "its directory can be written to."
                ) from error
            logger.warning("catalogue opened for this process alone", path=path, reason=str(error))

    def _connect(self, exclusive: bool) -> sqlite3.Connection:
        # isolation_level=None: transactions begin and end where we say so.
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            self._prepare(connection, exclusive)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, exclusive: bool) -> None:
        execute = connection.execute
        if exclusive:
            execute("PRAGMA locking_mode=EXCLUSIVE")
        version = execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise ConfigError(
                f"The catalogue {self.path} has layout {version} and this broker knows {SCHEMA_VERSION}: start the newer broker."
            )
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        if version < SCHEMA_VERSION:
            added = "".join(_LAYOUTS[version:])
            connection.executescript(f"BEGIN IMMEDIATE;{added}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
        problem = execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)

    def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``change`` in a transaction of its own."""
        with self._lock:
            if self._uncertain and (error := self._overwrite_failed()) is not None:
                raise StorageError(f"The catalogue could not be written: {error}") from error
            connection = self._connection
            committing = False
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    result = change(connection)
                    committing = True
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                message = f"The catalogue could not be written: {error}"
                if committing and getattr(error, "sqlite_errorcode", 0) not in _NOT_WRITTEN:
                    self._uncertain = True
                    if self._overwrite_failed() is not None:
                        raise UnknownOutcome(f"{message}; the next start will show whether it was") from error
                raise StorageError(message) from error
            return result

    def _overwrite_failed(self) -> sqlite3.Error | None:
        """Write a transaction over the frames of one whose commit failed. Returns the error if that fails as well."""
        try:
            self._connection.execute(
                "INSERT INTO meta VALUES (?, '1') ON CONFLICT (key) DO UPDATE SET value = value + 1", (_OVERWRITES,)
            )
        except sqlite3.Error as error:
            return error
        self._uncertain = False
        return None

    def _read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise StorageError(f"The catalogue could not be read: {error}") from error

    def _execute(self, sql: str, values: Sequence[object] = ()) -> None:
        self._write(lambda connection: connection.execute(sql, values))

    def topics(self) -> list[TopicRow]:
        rows = self._read("SELECT name, topic_id, partitions, configs FROM topics ORDER BY name")
        return [TopicRow(r[0], uuid.UUID(bytes=r[1]), r[2], json.loads(r[3])) for r in rows]  # type: ignore[arg-type]

    def put_topic(self, row: TopicRow) -> None:
        configs = json.dumps(dict(row.configs), sort_keys=True)
        self._execute(
            "INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?)", (row.name, row.topic_id.bytes, row.partitions, configs)
        )

    def delete_topic(self, name: str) -> None:
        def change(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR IGNORE INTO deleted_topics SELECT topic_id FROM topics WHERE name = ?", (name,)
            )
            connection.execute("DELETE FROM topics WHERE name = ?", (name,))

        self._write(change)

    def deleted_topic_ids(self) -> set[uuid.UUID]:
        return {uuid.UUID(bytes=r[0]) for r in self._read("SELECT topic_id FROM deleted_topics")}  # type: ignore[arg-type]

    def forget_deleted_topics(self, topic_ids: Iterable[uuid.UUID]) -> None:
        rows = [(topic_id.bytes,) for topic_id in topic_ids]
        self._write(lambda connection: connection.executemany("DELETE FROM deleted_topics WHERE topic_id = ?", rows))

    def broker_configs(self, entity: str = "") -> dict[str, str]:
        rows = self._read("SELECT name, value FROM broker_configs WHERE entity = ?", (entity,))
        return dict(rows)  # type: ignore[arg-type]

    def alter_broker_configs(self, changes: Mapping[str, str | None], entity: str = "") -> None:
        def change(connection: sqlite3.Connection) -> None:
            for name, value in changes.items():
                if value is None:
                    connection.execute("DELETE FROM broker_configs WHERE entity = ? AND name = ?", (entity, name))
                else:
                    connection.execute("INSERT OR REPLACE INTO broker_configs VALUES (?, ?, ?)", (entity, name, value))

        self._write(change)

    def load_offsets(self) -> Iterable[StoredOffset]:
        rows = self._read(
            "SELECT group_id, topic, partition, committed, leader_epoch, metadata, commit_ms, expire_ms FROM offsets"
        )
        return map(StoredOffset._make, rows)

    def commit_offsets(self, group: str, offsets: Iterable[tuple[str, int, int, int, str | None, int]]) -> None:
        rows = [(group, *offset) for offset in offsets]
        self._write(
            lambda connection: connection.executemany(
                "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, -1)", rows
            )
        )

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]] | None) -> None:
        if partitions is None:
            self._execute("DELETE FROM offsets WHERE group_id = ?", (group,))
            return
        rows = [(group, topic, partition) for topic, partition in partitions]
        self._write(
            lambda connection: connection.executemany(
                "DELETE FROM offsets WHERE group_id = ? AND topic = ? AND partition = ?", rows
            )
        )

    def delete_topic_offsets(self, topic: str) -> None:
        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM offsets WHERE topic = ?", (topic,))
            connection.execute("DELETE FROM pending_offsets WHERE topic = ?", (topic,))

        self._write(change)

    def load_groups(self) -> Iterable[tuple[str, bytes]]:
        return self._read("SELECT group_id, blob FROM groups")  # type: ignore[return-value]

    def save_group(self, group: str, blob: bytes) -> None:
        self._execute("INSERT OR REPLACE INTO groups VALUES (?, ?)", (group, blob))

    def delete_group(self, group: str) -> None:
        self._execute("DELETE FROM groups WHERE group_id = ?", (group,))

    def load_transactions(self) -> Iterable[TransactionRow]:
        for row in self._read("SELECT * FROM transactions"):
            partitions, groups = json.loads(str(row[6])), json.loads(str(row[7]))
            pairs = tuple((topic, partition) for topic, partition in partitions)
            yield TransactionRow._make([*row[:6], pairs, tuple(groups), *row[8:]])

    def save_transactions(self, rows: Iterable[TransactionRow]) -> None:
        def change(connection: sqlite3.Connection) -> None:
            for row in rows:
                _put_transaction(connection, row)

        self._write(change)

    def load_pending_offsets(self) -> Iterable[PendingOffset]:
        return map(PendingOffset._make, self._read("SELECT * FROM pending_offsets"))

    def add_pending_offsets(
        self, transactional_id: str, group: str, offsets: Iterable[tuple[str, int, int, int, str | None, int]]
    ) -> None:
        rows = [(transactional_id, group, *offset) for offset in offsets]
        self._write(
            lambda connection: connection.executemany(
                "INSERT OR REPLACE INTO pending_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
        )

    def complete_transaction(self, row: TransactionRow, commit: bool) -> None:
        def change(connection: sqlite3.Connection) -> None:
            key = (row.transactional_id,)
            if commit:
                connection.execute(
                    "INSERT OR REPLACE INTO offsets SELECT group_id, topic, partition, committed, leader_epoch, metadata, "
                    "commit_ms, -1 FROM pending_offsets WHERE transactional_id = ?",
                    key,
                )
            connection.execute("DELETE FROM pending_offsets WHERE transactional_id = ?", key)
            _put_transaction(connection, row)

        self._write(change)

    def delete_transaction(self, transactional_id: str) -> None:
        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM pending_offsets WHERE transactional_id = ?", (transactional_id,))
            connection.execute("DELETE FROM transactions WHERE transactional_id = ?", (transactional_id,))

        self._write(change)

    def allocate_producer_ids(self, n: int) -> int:
        def change(connection: sqlite3.Connection) -> int:
            first: int = connection.execute("SELECT next FROM producer_ids").fetchone()[0]
            connection.execute("UPDATE producer_ids SET next = ?", (first + n,))
            return first

        return self._write(change)

    def together(self, changes: Iterable[Change]) -> None:
        def all_of_them(connection: sqlite3.Connection) -> None:
            inside = _Inside(connection)
            for change in changes:
                change(inside)

        self._write(all_of_them)

    def meta(self, key: str) -> str | None:
        rows = self._read("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None  # type: ignore[return-value]

    def set_meta(self, key: str, value: str) -> None:
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class _Inside(SqliteCatalogue):
    """The catalogue within one of its transactions, which is begun, ended and rolled back around it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        return change(self._connection)


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # none for what quick_check finds
    return isinstance(error, sqlite3.DatabaseError) and (
        code is None or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    )


def _put_transaction(connection: sqlite3.Connection, row: TransactionRow) -> None:
    partitions, groups = json.dumps(sorted(row.partitions)), json.dumps(sorted(row.groups))
    connection.execute(
        "INSERT OR REPLACE INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row[:6], partitions, groups, *row[8:]),
    )
