"""The catalogue's SQLite file: its tables, how it is opened and checked, and how a transaction is written all or nothing.

The file is in WAL mode with ``synchronous=FULL``, so a commit costs one fsync of the write-ahead log. One connection is used
behind one lock: SQLite allows one writer at a time anyway, and the broker reads only at the start. Any thread may call any
method.

A commit can fail after its frames were written to the log, when the fsync fails. SQLite then rolls back, but the frames stay in
the file, and a process that opens it later takes them for a committed transaction. So a failed commit is followed by a
transaction that only increments a counter. SQLite writes it over the failed frames; because the checksum of each frame
continues the previous checksum, the remaining failed frames become invalid. Nothing else is written until that has succeeded.

In WAL mode SQLite needs a file of 32 KiB beside the catalogue, which a full disk has no space for. In that case the catalogue is
opened exclusively for this process, which does not need the file: it can be read, and it can be written once there is space.

The catalogue contains credentials, so only the broker's own user may read a new file, or a file that an upgrade gives the
tables for credentials. Rights that an operator gives later are left as they are. SQLite gives the -wal and -shm files the same
rights.

The tables are defined as a sequence of layouts. ``user_version`` stores the number of the file's layout. An older file is
upgraded when it is opened, by the scripts of the layouts that it lacks; a newer file is refused.

Tests: tests/metadata/test_sqlite.py, tests/process/test_failed_commit.py.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from broker.errors import ConfigError, StorageError, UnknownOutcome
from broker.log import get_logger
from broker.runtime.files import create_private, explain_access, make_private
from broker.runtime.threads import Lock

# 1: the first layout. `blob` in `groups` is in a format of the group coordinator.
_TOPICS_AND_GROUPS = """
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
# 2: transactions.
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
# 3: the producer id that a producer had before its present id.
_LAST_PRODUCER = """
ALTER TABLE transactions ADD COLUMN last_producer_id INTEGER NOT NULL DEFAULT -1;
UPDATE transactions SET last_producer_id = producer_id WHERE last_epoch >= 0;
"""

# 4: ACLs, credentials and quotas.
_SECURITY = """
CREATE TABLE acls (
    resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL, pattern_type INTEGER NOT NULL, principal TEXT NOT NULL,
    host TEXT NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,
    PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)
) WITHOUT ROWID;
CREATE TABLE credentials (
    user TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL, stored_key BLOB NOT NULL, server_key BLOB NOT NULL,
    iterations INTEGER NOT NULL, PRIMARY KEY (user, mechanism)
) WITHOUT ROWID;
CREATE TABLE quotas (
    entity TEXT NOT NULL, key TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (entity, key)
) WITHOUT ROWID;
"""

# 5: the cursors of subscriptions, and documents in the formats of their services.
_CURSORS = """
CREATE TABLE cursors (
    topic_id BLOB NOT NULL, partition INTEGER NOT NULL, subscription TEXT NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (topic_id, partition, subscription)
) WITHOUT ROWID;
CREATE TABLE documents (kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""

# 6: the producer id that a producer gets when its transaction is complete. A broker that does not know it would go on with the
# old id, whose last epoch has been used.
_NEXT_PRODUCER = """
ALTER TABLE transactions ADD COLUMN next_producer_id INTEGER NOT NULL DEFAULT -1;
"""

# 7: additions to an open transaction after its row was written, because the row has all of it: a partition of the topic
# `name`, or with the partition -1 the group `name`.
_TRANSACTION_ADDITIONS = """
CREATE TABLE transaction_additions (
    transactional_id TEXT NOT NULL, name TEXT NOT NULL, partition INTEGER NOT NULL,
    PRIMARY KEY (transactional_id, name, partition)
) WITHOUT ROWID;
"""

# 8: files whose bytes are in objects of the object store, and objects that no file refers to any longer.
_REMOTE_FILES = """
CREATE TABLE remote_files (
    path TEXT PRIMARY KEY, object TEXT NOT NULL, position INTEGER NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX remote_files_by_object ON remote_files (object);
CREATE TABLE condemned_objects (object TEXT PRIMARY KEY, since_ms INTEGER NOT NULL) WITHOUT ROWID;
"""

_LAYOUTS = (
    _TOPICS_AND_GROUPS,
    _TRANSACTIONS,
    _LAST_PRODUCER,
    _SECURITY,
    _CURSORS,
    _NEXT_PRODUCER,
    _TRANSACTION_ADDITIONS,
    _REMOTE_FILES,
)

# Increases with each change of the tables that an older broker would misread.
LAYOUT_VERSION = len(_LAYOUTS)
# The first layout with secrets.
CREDENTIALS_SINCE = 4


def upgrade_script(version: int) -> str:
    """The SQL that brings a file with this layout version (0: an empty file) up to ``LAYOUT_VERSION``, in one transaction."""
    added = "".join(_LAYOUTS[version:])
    return f"BEGIN IMMEDIATE;{added}PRAGMA user_version={LAYOUT_VERSION};COMMIT;"


T = TypeVar("T")
Connection = sqlite3.Connection

logger = get_logger("storage")

# The key in ``meta`` of the counter of failed commits.
_OVERWRITES = "overwritten_commits"
# A commit that fails with one of these has not written its last frame, and without it the other frames do not count.
_NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_BUSY)


class SqliteDatabase:
    def __init__(self, path: str) -> None:
        """Raises ConfigError if the file cannot be opened, is damaged, or was written by a newer broker."""
        self._path = path
        self._lock = Lock()
        # The log may contain frames of a failed commit.
        self._uncertain = False
        self._exclusive = False
        create_private(path)
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
                self._exclusive = True
            except sqlite3.Error:
                denial = explain_access(path)
                way_out = denial or (
                    "make room on its disk if that is full, and see to it that its directory can be written to"
                )
                raise ConfigError(f"The catalogue {path} cannot be used ({error}): {way_out}.") from error
            logger.warning("catalogue_opened_exclusively", path=path, reason=str(error))

    def write(self, change: Callable[[Connection], T]) -> T:
        """Run ``change`` in a transaction and commit it. Raises StorageError, or UnknownOutcome, if that fails.

        On a full disk it is called again, if the write-ahead log can be emptied: to delete a topic must not need room.
        """
        with self._lock:
            try:
                return self._write(change)
            except StorageError as error:
                is_full = getattr(error.__cause__, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
                if not is_full or self._uncertain or not self._empty_log():
                    raise
            return self._write(change)

    def _write(self, change: Callable[[Connection], T]) -> T:
        if self._uncertain and (error := self._overwrite_failed_commit()) is not None:
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
                if self._overwrite_failed_commit() is not None:
                    raise UnknownOutcome(f"{message}; the next start will show whether it was") from error
            raise StorageError(message) from error
        return result

    def _empty_log(self) -> bool:
        """Bring what is in the write-ahead log into the database, whose pages are there, and give the log's room back."""
        try:
            ((busy, _, _),) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            return False
        return not busy

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query. Raises StorageError."""
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise StorageError(f"The catalogue could not be read: {error}") from error

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        """``Catalogue.copy``: a second connection keeps what was committed at the moment, until it is written."""
        with self._lock:
            if self._uncertain and (error := self._overwrite_failed_commit()) is not None:
                raise StorageError(f"The catalogue could not be written: {error}") from error
            try:
                source = self._pinned()
            except sqlite3.Error as error:
                raise StorageError(f"The catalogue could not be read: {error}") from error
            try:
                moment()
            except BaseException:
                source.close()
                raise

        def save(path: str) -> None:
            create_private(path)
            try:
                target = sqlite3.connect(path, isolation_level=None)
                try:
                    source.backup(target)
                    # One file, without a log beside it.
                    target.execute("PRAGMA journal_mode=DELETE")
                finally:
                    target.close()
            except sqlite3.Error as error:
                raise StorageError(f"The catalogue could not be copied: {error}") from error
            finally:
                source.close()

        return save

    def _pinned(self) -> Connection:
        """A connection with a snapshot of what is committed now. ``_lock`` is held."""
        source = sqlite3.connect(
            ":memory:" if self._exclusive else self._path, isolation_level=None, check_same_thread=False
        )
        try:
            if self._exclusive:  # no other connection may read the file
                self._connection.backup(source)
            else:
                source.execute("BEGIN")
                source.execute("SELECT count(*) FROM meta").fetchall()  # the snapshot is taken by the first read
        except BaseException:
            source.close()
            raise
        return source

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # Opening ----------------------------------------------------------------------------------------------------------

    def _connect(self, exclusive: bool) -> Connection:
        # isolation_level=None: this module begins and ends the transactions, not the sqlite3 module.
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            self._prepare(connection, exclusive)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection, exclusive: bool) -> None:
        execute = connection.execute
        if exclusive:
            execute("PRAGMA locking_mode=EXCLUSIVE")
        version = execute("PRAGMA user_version").fetchone()[0]
        if version > LAYOUT_VERSION:
            raise ConfigError(
                f"The catalogue {self._path} has layout {version} and this broker knows {LAYOUT_VERSION}: start the newer broker."
            )
        if version < CREDENTIALS_SINCE:
            for suffix in ("", "-wal", "-shm"):
                make_private(self._path + suffix)
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        if version < LAYOUT_VERSION:
            connection.executescript(upgrade_script(version))
            # The tables' pages are in the database from now on, so that a full disk can be relieved of the log (``_empty_log``).
            execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        problem = execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)

    # Failed commits ---------------------------------------------------------------------------------------------------

    def _overwrite_failed_commit(self) -> sqlite3.Error | None:
        """Write a transaction over the frames of the failed commit. Returns the error if this fails as well."""
        try:
            self._connection.execute(
                "INSERT INTO meta VALUES (?, '1') ON CONFLICT (key) DO UPDATE SET value = value + 1", (_OVERWRITES,)
            )
        except sqlite3.Error as error:
            return error
        self._uncertain = False
        return None


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # None for a problem that quick_check reports
    return isinstance(error, sqlite3.DatabaseError) and (
        code is None or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    )
