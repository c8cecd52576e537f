"""The catalogue in SQL: each method of ``Catalogue`` as its statements, the same ones for SQLite and PostgreSQL.

They are written in what both understand, with ``?`` for values: ``ON CONFLICT`` instead of SQLite's ``OR REPLACE``, and columns
by name. ``sqlite.py`` and ``postgres.py`` bring the database that runs them. Rows are written in the order of their keys, so that
transactions that run at the same time do not lock each other's rows crosswise.

A database may run a change a second time if the first attempt came to nothing. So changes take no iterators with them.

Tests: tests/contract/test_catalogue.py, tests/metadata/test_sqlite.py, tests/metadata/test_postgres.py.
"""

import json
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from broker.metadata.catalogue import (
    AclRow,
    Change,
    CredentialRow,
    CursorRow,
    OffsetRow,
    PendingOffset,
    QuotaRow,
    RemoteFile,
    StoredOffset,
    TopicRow,
    TransactionRow,
)
from broker.metrics import HistogramCell, names
from broker.runtime.clock import SystemClock
from broker.runtime.threads import Lock

T = TypeVar("T")

# The partition number of an added group in ``transaction_additions``.
_GROUP = -1
# The key of an offset, and of a cursor.
_FIRST_THREE = itemgetter(0, 1, 2)
# So many values in one statement.
_CHUNK = 200
# Code points that no text has.
_SURROGATES, _AFTER_SURROGATES = 0xD800, 0xE000


def _put(table: str, keys: str, others: str) -> str:
    """The statement that inserts a row or replaces that with the same key. Its values are in the order of these columns."""
    places = ", ".join("?" * len(f"{keys}, {others}".split(", ")))
    changes = ", ".join(f"{column} = excluded.{column}" for column in others.split(", "))
    return f"INSERT INTO {table} ({keys}, {others}) VALUES ({places}) ON CONFLICT ({keys}) DO UPDATE SET {changes}"


def _filled(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Pieces for one statement each, of few lengths, so that there are few statements: the last value is repeated."""
    for first in range(0, len(values), _CHUNK):
        some = values[first : first + _CHUNK]
        yield [*some, *[some[-1]] * ((1 << (len(some) - 1).bit_length()) - len(some))]


def _places(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


_COMMITTED = "committed, leader_epoch, metadata, commit_ms"
_PENDING = f"transactional_id, group_id, topic, partition, {_COMMITTED}"
_TRANSACTION_STATE = (
    "producer_id, epoch, last_epoch, timeout_ms, phase, partitions, groups, started_ms, updated_ms, last_producer_id, "
    "next_producer_id"
)
_TRANSACTION = f"transactional_id, {_TRANSACTION_STATE}"
_ADDITIONS = "SELECT transactional_id, name, partition FROM transaction_additions"
_ACL = "resource_type, resource_name, pattern_type, principal, host, operation, permission"
_CREDENTIAL_KEY, _CREDENTIAL_STATE = '"user", mechanism', "salt, stored_key, server_key, iterations"
_CREDENTIAL = f"{_CREDENTIAL_KEY}, {_CREDENTIAL_STATE}"

_PUT_TOPIC = _put("topics", "name", "topic_id, partitions, configs")
_PUT_CONFIG = _put("broker_configs", "entity, name", "value")
_PUT_OFFSET = _put("offsets", "group_id, topic, partition", f"{_COMMITTED}, expire_ms")
_PUT_GROUP = _put("groups", "group_id", "blob")
_PUT_TRANSACTION = _put("transactions", "transactional_id", _TRANSACTION_STATE)
_PUT_PENDING = _put("pending_offsets", "transactional_id, group_id, topic, partition", _COMMITTED)
_PUT_CREDENTIAL = _put("credentials", _CREDENTIAL_KEY, _CREDENTIAL_STATE)
_PUT_QUOTA = _put("quotas", "entity, key", "value")
_PUT_CURSOR = _put("cursors", "topic_id, partition, subscription", "state")
_PUT_DOCUMENT = _put("documents", "kind, key", "body")
_PUT_REMOTE_FILE = _put("remote_files", "path", "object, position, size")
_PUT_META = _put("meta", "key", "value")
_COMMIT_PENDING_OF = (
    f"INSERT INTO offsets (group_id, topic, partition, {_COMMITTED}, expire_ms) SELECT group_id, topic, partition, "
    f"{_COMMITTED}, -1 FROM pending_offsets WHERE transactional_id = ? {{}}ORDER BY group_id, topic, partition "
    "ON CONFLICT (group_id, topic, partition) DO UPDATE SET committed = excluded.committed, "
    "leader_epoch = excluded.leader_epoch, metadata = excluded.metadata, commit_ms = excluded.commit_ms, expire_ms = -1"
)
_COMMIT_PENDING = _COMMIT_PENDING_OF.format("")
_COMMIT_PENDING_OF_GROUP = _COMMIT_PENDING_OF.format("AND group_id = ? ")


class Rows(Protocol):
    """The answer to a statement."""

    def fetchall(self) -> list[tuple[Any, ...]]: ...


class Statements(Protocol):
    """Runs statements inside a transaction, as ``sqlite3.Connection`` does."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Rows: ...

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> object: ...


class Transactions(Protocol):
    """How the catalogue's statements are run: each change in a transaction of its own. Raises StorageError, as ``Catalogue``."""

    def write(self, change: Callable[[Statements], T]) -> T: ...

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]: ...

    def close(self) -> None: ...


class Timed:
    """``Transactions`` of another process, and how long they have taken."""

    def __init__(self, database: Transactions) -> None:
        self._database = database
        self._lock = Lock()
        self.seconds = HistogramCell(names.CATALOGUE_SECONDS.bounds)  # guarded by it
        self.copy, self.close = database.copy, database.close

    def write(self, change: Callable[[Statements], T]) -> T:
        began = SystemClock.monotonic()
        try:
            return self._database.write(change)
        finally:
            self._took(began)

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        began = SystemClock.monotonic()
        try:
            return self._database.read(sql, values)
        finally:
            self._took(began)

    def _took(self, began: float) -> None:
        with self._lock:
            self.seconds.observe(SystemClock.monotonic() - began)


def _no_lock(statements: Statements, table: str) -> None:
    """SQLite runs one change at a time."""


class SqlCatalogue:
    """``Catalogue``."""

    seconds: HistogramCell | None = None

    def __init__(self, database: Transactions, lock: Callable[[Statements, str], None] = _no_lock) -> None:
        """``lock(statements, table)`` keeps other transactions from changing the table until this one ends."""
        self._database = database
        self._lock = lock

    # Topics -----------------------------------------------------------------------------------------------------------

    def topics(self, names: Collection[str] | None = None) -> list[TopicRow]:
        query = "SELECT name, topic_id, partitions, configs FROM topics {}ORDER BY name"
        if names is None:
            rows = self._database.read(query.format(""))
        else:
            rows = [
                row
                for some in _filled(sorted(names))
                for row in self._database.read(query.format(f"WHERE name IN ({_places(some)}) "), some)
            ]
        return [TopicRow(r[0], uuid.UUID(bytes=r[1]), r[2], json.loads(r[3])) for r in rows]

    def put_topic(self, row: TopicRow) -> None:
        topic_id, configs = row.topic_id.bytes, json.dumps(dict(row.configs), sort_keys=True)

        def change(run: Statements) -> None:
            run.execute("DELETE FROM topics WHERE topic_id = ? AND name <> ?", (topic_id, row.name))
            run.execute(_PUT_TOPIC, (row.name, topic_id, row.partitions, configs))

        self._database.write(change)

    def delete_topic(self, name: str) -> None:
        def change(run: Statements) -> None:
            run.execute(
                "INSERT INTO deleted_topics (topic_id) SELECT topic_id FROM topics WHERE name = ? ON CONFLICT DO NOTHING",
                (name,),
            )
            run.execute("DELETE FROM topics WHERE name = ?", (name,))

        self._database.write(change)

    def deleted_topic_ids(self) -> set[uuid.UUID]:
        return {uuid.UUID(bytes=row[0]) for row in self._database.read("SELECT topic_id FROM deleted_topics")}

    def forget_deleted_topics(self, topic_ids: Iterable[uuid.UUID]) -> None:
        rows = [(topic_id.bytes,) for topic_id in topic_ids]
        self._execute_many("DELETE FROM deleted_topics WHERE topic_id = ?", rows)

    # Settings ---------------------------------------------------------------------------------------------------------

    def broker_configs(self, entity: str = "") -> dict[str, str]:
        return dict(self._database.read("SELECT name, value FROM broker_configs WHERE entity = ?", (entity,)))

    def configs_by_entity(self, prefix: str) -> dict[str, dict[str, str]]:
        configs: dict[str, dict[str, str]] = {}
        sql = "SELECT entity, name, value FROM broker_configs WHERE entity >= ? AND entity < ?"
        for entity, name, value in self._database.read(sql, (prefix, _after(prefix))):
            configs.setdefault(entity, {})[name] = value
        return configs

    def alter_broker_configs(self, changes: Mapping[str, str | None], entity: str = "") -> None:
        changes = dict(sorted(changes.items()))

        def change(run: Statements) -> None:
            for name, value in changes.items():
                if value is None:
                    run.execute("DELETE FROM broker_configs WHERE entity = ? AND name = ?", (entity, name))
                else:
                    run.execute(_PUT_CONFIG, (entity, name, value))

        self._database.write(change)

    def load_configs(self) -> Iterable[tuple[str, str, str]]:
        rows = self._database.read("SELECT entity, name, value FROM broker_configs")
        return [(entity, name, value) for entity, name, value in rows]

    # Groups -----------------------------------------------------------------------------------------------------------

    def load_offsets(self) -> Iterable[StoredOffset]:
        rows = self._database.read(
            "SELECT group_id, topic, partition, committed, leader_epoch, metadata, commit_ms, expire_ms FROM offsets"
        )
        return map(StoredOffset._make, rows)

    def commit_offsets(self, group: str, offsets: Iterable[OffsetRow]) -> None:
        self._execute_many(_PUT_OFFSET, sorted([(group, *offset, -1) for offset in offsets], key=_FIRST_THREE))

    def restore_offsets(self, rows: Iterable[StoredOffset]) -> None:
        self._execute_many(_PUT_OFFSET, sorted(rows, key=_FIRST_THREE))

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]] | None) -> None:
        if partitions is None:
            self._execute("DELETE FROM offsets WHERE group_id = ?", (group,))
            return
        rows = sorted((group, topic, partition) for topic, partition in partitions)
        self._execute_many("DELETE FROM offsets WHERE group_id = ? AND topic = ? AND partition = ?", rows)

    def delete_topic_offsets(self, topic: str) -> None:
        def change(run: Statements) -> None:
            run.execute("DELETE FROM offsets WHERE topic = ?", (topic,))
            run.execute("DELETE FROM pending_offsets WHERE topic = ?", (topic,))

        self._database.write(change)

    def load_groups(self) -> Iterable[tuple[str, bytes]]:
        return [(group, blob) for group, blob in self._database.read("SELECT group_id, blob FROM groups")]

    def save_group(self, group: str, blob: bytes) -> None:
        self._execute(_PUT_GROUP, (group, blob))

    def delete_group(self, group: str) -> None:
        self._execute("DELETE FROM groups WHERE group_id = ?", (group,))

    # Transactions -----------------------------------------------------------------------------------------------------

    def load_transactions(self) -> Iterable[TransactionRow]:
        added: dict[str, list[tuple[str, int]]] = {}
        for transactional_id, name, partition in self._database.read(_ADDITIONS):
            added.setdefault(transactional_id, []).append((name, partition))
        for row in self._database.read(f"SELECT {_TRANSACTION} FROM transactions"):
            additions = added.get(row[0], [])
            partitions = {(topic, partition) for topic, partition in json.loads(row[6])}
            partitions.update(key for key in additions if key[1] != _GROUP)
            groups = {*json.loads(row[7]), *(name for name, partition in additions if partition == _GROUP)}
            yield TransactionRow._make([*row[:6], tuple(sorted(partitions)), tuple(sorted(groups)), *row[8:]])

    def save_transactions(self, rows: Iterable[TransactionRow]) -> None:
        rows = sorted(rows, key=lambda row: row.transactional_id)

        def change(run: Statements) -> None:
            for row in rows:
                _put_transaction(run, row)

        self._database.write(change)

    def add_to_transaction(
        self, transactional_id: str, partitions: Iterable[tuple[str, int]], groups: Iterable[str]
    ) -> None:
        rows = [(transactional_id, *key) for key in partitions] + [(transactional_id, name, _GROUP) for name in groups]
        self._execute_many(
            "INSERT INTO transaction_additions (transactional_id, name, partition) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            sorted(rows),
        )

    def load_pending_offsets(self) -> Iterable[PendingOffset]:
        return map(PendingOffset._make, self._database.read(f"SELECT {_PENDING} FROM pending_offsets"))

    def add_pending_offsets(self, transactional_id: str, group: str, offsets: Iterable[OffsetRow]) -> None:
        rows = [(transactional_id, group, *offset) for offset in offsets]
        self._execute_many(_PUT_PENDING, sorted(rows, key=lambda row: row[:4]))

    def end_pending_offsets(self, transactional_id: str, group: str, commit: bool) -> None:
        def change(run: Statements) -> None:
            key = (transactional_id, group)
            if commit:
                run.execute(_COMMIT_PENDING_OF_GROUP, key)
            run.execute("DELETE FROM pending_offsets WHERE transactional_id = ? AND group_id = ?", key)

        self._database.write(change)

    def complete_transaction(self, row: TransactionRow, commit: bool) -> None:
        def change(run: Statements) -> None:
            key = (row.transactional_id,)
            if commit:
                run.execute(_COMMIT_PENDING, key)
            run.execute("DELETE FROM pending_offsets WHERE transactional_id = ?", key)
            _put_transaction(run, row)

        self._database.write(change)

    def delete_transaction(self, transactional_id: str) -> None:
        def change(run: Statements) -> None:
            run.execute("DELETE FROM pending_offsets WHERE transactional_id = ?", (transactional_id,))
            run.execute("DELETE FROM transaction_additions WHERE transactional_id = ?", (transactional_id,))
            run.execute("DELETE FROM transactions WHERE transactional_id = ?", (transactional_id,))

        self._database.write(change)

    def allocate_producer_ids(self, n: int) -> int:
        def change(run: Statements) -> int:
            run.execute("UPDATE producer_ids SET next = next + ?", (n,))  # first, because it locks the row
            after: int = run.execute("SELECT next FROM producer_ids").fetchall()[0][0]
            return after - n

        return self._database.write(change)

    def next_producer_id(self) -> int:
        ((after,),) = self._database.read("SELECT next FROM producer_ids")
        return int(after)

    # Security ---------------------------------------------------------------------------------------------------------

    def load_acls(self) -> Iterable[AclRow]:
        return map(AclRow._make, self._database.read(f"SELECT {_ACL} FROM acls"))

    def alter_acls(self, added: Iterable[AclRow], removed: Iterable[AclRow]) -> None:
        added, removed = sorted(added), sorted(removed)

        def change(run: Statements) -> None:
            run.executemany(
                "DELETE FROM acls WHERE resource_type = ? AND resource_name = ? AND pattern_type = ? AND principal = ? "
                "AND host = ? AND operation = ? AND permission = ?",
                removed,
            )
            run.executemany(f"INSERT INTO acls ({_ACL}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", added)

        self._database.write(change)

    def load_credentials(self) -> Iterable[CredentialRow]:
        return map(CredentialRow._make, self._database.read(f"SELECT {_CREDENTIAL} FROM credentials"))

    def alter_credentials(self, put: Iterable[CredentialRow], deleted: Iterable[tuple[str, str]]) -> None:
        put, deleted = list(put), list(deleted)

        def change(run: Statements) -> None:
            run.executemany('DELETE FROM credentials WHERE "user" = ? AND mechanism = ?', deleted)
            run.executemany(_PUT_CREDENTIAL, put)

        self._database.write(change)

    def load_quotas(self) -> Iterable[QuotaRow]:
        return map(QuotaRow._make, self._database.read("SELECT entity, key, value FROM quotas"))

    def alter_quotas(self, changes: Iterable[tuple[str, str, float | None]]) -> None:
        changes = sorted(changes, key=lambda change: change[:2])

        def change(run: Statements) -> None:
            for entity, key, value in changes:
                if value is None:
                    run.execute("DELETE FROM quotas WHERE entity = ? AND key = ?", (entity, key))
                else:
                    run.execute(_PUT_QUOTA, (entity, key, value))

        self._database.write(change)

    # Subscriptions, and what services keep ----------------------------------------------------------------------------

    def load_cursors(self) -> Iterable[CursorRow]:
        rows = self._database.read("SELECT topic_id, partition, subscription, state FROM cursors")
        return [CursorRow(uuid.UUID(bytes=topic_id), *rest) for topic_id, *rest in rows]

    def save_cursors(self, rows: Iterable[CursorRow]) -> None:
        sorted_rows = sorted(rows, key=_FIRST_THREE)
        self._execute_many(_PUT_CURSOR, [(row[0].bytes, *row[1:]) for row in sorted_rows])

    def delete_cursors(self, cursors: Iterable[tuple[uuid.UUID, int, str]]) -> None:
        self._execute_many(
            "DELETE FROM cursors WHERE topic_id = ? AND partition = ? AND subscription = ?",
            [(topic_id.bytes, partition, subscription) for topic_id, partition, subscription in sorted(cursors)],
        )

    def delete_topic_cursors(self, topic_ids: Iterable[uuid.UUID]) -> None:
        self._execute_many("DELETE FROM cursors WHERE topic_id = ?", [(topic_id.bytes,) for topic_id in topic_ids])

    def load_documents(self, kind: str, prefix: str = "") -> Iterable[tuple[str, bytes]]:
        sql = "SELECT key, body FROM documents WHERE kind = ?"
        if prefix:
            rows = self._database.read(f"{sql} AND key >= ? AND key < ?", (kind, prefix, _after(prefix)))
        else:
            rows = self._database.read(sql, (kind,))
        return [(key, body) for key, body in rows]

    def document_kinds(self) -> list[str]:
        return [kind for (kind,) in self._database.read("SELECT DISTINCT kind FROM documents ORDER BY kind")]

    def alter_documents(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        changes = sorted(changes, key=lambda change: change[:2])

        def change(run: Statements) -> None:
            for kind, key, body in changes:
                if body is None:
                    run.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (kind, key))
                else:
                    run.execute(_PUT_DOCUMENT, (kind, key, body))

        self._database.write(change)

    def add_documents(self, documents: Iterable[tuple[str, str, bytes]]) -> None:
        sql = "INSERT INTO documents (kind, key, body) VALUES (?, ?, ?) ON CONFLICT (kind, key) DO NOTHING"
        self._execute_many(sql, sorted(documents))

    def delete_other_documents(self, kind: str, keys: Iterable[str], body: bytes) -> None:
        sql = "DELETE FROM documents WHERE kind = ? AND key = ? AND body <> ?"
        self._execute_many(sql, [(kind, key, body) for key in sorted(keys)])

    def delete_documents(self, kind: str, prefix: str) -> None:
        sql = "DELETE FROM documents WHERE kind = ? AND key >= ? AND key < ?"
        self._database.write(lambda run: run.execute(sql, (kind, prefix, _after(prefix))))

    # Files in the object store ----------------------------------------------------------------------------------------

    def load_remote_files(self) -> Iterable[RemoteFile]:
        return map(RemoteFile._make, self._database.read("SELECT path, object, position, size FROM remote_files"))

    def alter_remote_files(self, put: Iterable[RemoteFile], removed: Iterable[str], now_ms: int) -> None:
        put, removed = list(put), list(removed)

        def change(run: Statements) -> None:
            self._lock(run, "remote_files")
            _replace_files(run, removed, put, now_ms)

        self._database.write(change)

    def rename_remote_files(self, old: str, new: str, now_ms: int) -> None:
        def change(run: Statements) -> None:
            self._lock(run, "remote_files")
            rows = run.execute(
                "SELECT path, object, position, size FROM remote_files WHERE path = ? OR (path >= ? AND path < ?)",
                (old, f"{old}/", _after(f"{old}/")),
            ).fetchall()
            renamed = [RemoteFile(new + path[len(old) :], *rest) for path, *rest in rows]
            _replace_files(run, [row[0] for row in rows], renamed, now_ms)

        if old != new:
            self._database.write(change)

    def condemned_objects(self) -> list[tuple[str, int]]:
        rows = self._database.read("SELECT object, since_ms FROM condemned_objects ORDER BY object")
        return [(key, since_ms) for key, since_ms in rows]

    def forget_objects(self, keys: Iterable[str]) -> None:
        self._execute_many("DELETE FROM condemned_objects WHERE object = ?", [(key,) for key in keys])

    # The rest ---------------------------------------------------------------------------------------------------------

    def together(self, changes: Iterable[Change]) -> None:
        changes = list(changes)

        def change_all(run: Statements) -> None:
            inside = SqlCatalogue(_OpenTransaction(run), self._lock)
            for change in changes:
                change(inside)

        if changes:
            self._database.write(change_all)

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        return self._database.copy(moment)

    def meta(self, key: str) -> str | None:
        rows = self._database.read("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def set_meta(self, key: str, value: str) -> None:
        self._execute(_PUT_META, (key, value))

    def load_meta(self) -> dict[str, str]:
        return dict(self._database.read("SELECT key, value FROM meta"))

    def close(self) -> None:
        self._database.close()

    def _execute(self, sql: str, values: Sequence[object]) -> None:
        self._database.write(lambda run: run.execute(sql, values))

    def _execute_many(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            self._database.write(lambda run: run.executemany(sql, rows))


def _after(prefix: str) -> str:
    """The first text after all those that begin with ``prefix``."""
    last = ord(prefix[-1]) + 1
    if last > sys.maxunicode:
        return _after(prefix[:-1])
    return prefix[:-1] + chr(_AFTER_SURROGATES if last == _SURROGATES else last)


class _OpenTransaction:
    """Statements inside a transaction that somebody else begins and ends: the changes of ``together``."""

    def __init__(self, run: Statements) -> None:
        self._run = run

    def write(self, change: Callable[[Statements], T]) -> T:
        return change(self._run)

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        raise AssertionError("a change that is made together with others only writes")

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        raise AssertionError("a change that is made together with others copies nothing")

    def close(self) -> None:
        raise AssertionError("a change that is made together with others does not close the catalogue")


def _put_transaction(run: Statements, row: TransactionRow) -> None:
    partitions, groups = json.dumps(row.partitions), json.dumps(row.groups)
    run.execute(_PUT_TRANSACTION, (*row[:6], partitions, groups, *row[8:]))
    run.execute("DELETE FROM transaction_additions WHERE transactional_id = ?", (row.transactional_id,))


def _replace_files(run: Statements, removed: Sequence[str], put: Sequence[RemoteFile], now_ms: int) -> None:
    """``Catalogue.alter_remote_files``, inside a transaction."""
    paths = [*removed, *(file.path for file in put)]
    # Objects that may have no file any longer; also new ones, because one of `put` may replace another.
    left = {file.object for file in put}
    for start in range(0, len(paths), _CHUNK):
        chunk = paths[start : start + _CHUNK]
        places = ", ".join("?" * len(chunk))
        rows = run.execute(f"SELECT DISTINCT object FROM remote_files WHERE path IN ({places})", chunk).fetchall()
        left.update(key for (key,) in rows)
        run.execute(f"DELETE FROM remote_files WHERE path IN ({places})", chunk)
    run.executemany(_PUT_REMOTE_FILE, put)
    run.executemany("DELETE FROM condemned_objects WHERE object = ?", sorted({(file.object,) for file in put}))
    run.executemany(
        "INSERT INTO condemned_objects (object, since_ms) SELECT ?, ? WHERE NOT EXISTS "
        "(SELECT 1 FROM remote_files WHERE object = ?) ON CONFLICT DO NOTHING",
        [(key, now_ms, key) for key in sorted(left)],
    )
