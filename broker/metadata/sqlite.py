"""The catalogue in an SQLite file: each method of ``Catalogue`` as its SQL.

``sqlite_database.py`` opens the file, has the tables and runs the transactions. Any thread may call any method.

Tests: tests/contract/test_catalogue.py, tests/metadata/test_sqlite.py.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from broker.metadata.catalogue import (
    AclRow,
    Change,
    CredentialRow,
    CursorRow,
    OffsetRow,
    PendingOffset,
    QuotaRow,
    StoredOffset,
    TopicRow,
    TransactionRow,
)
from broker.metadata.sqlite_database import Connection, SqliteDatabase

T = TypeVar("T")

# The partition number of an added group in ``transaction_additions``.
_GROUP = -1


class Transactions(Protocol):
    """How the catalogue's statements are run. ``SqliteDatabase`` runs each change in a transaction of its own."""

    def write(self, change: Callable[[Connection], T]) -> T: ...

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]: ...

    def close(self) -> None: ...


class SqliteCatalogue:
    """``Catalogue``. Raises ConfigError if the file cannot be used; see ``SqliteDatabase``."""

    def __init__(self, path: str, database: Transactions | None = None) -> None:
        self.path = path
        self._database: Transactions = SqliteDatabase(path) if database is None else database

    # Topics -----------------------------------------------------------------------------------------------------------

    def topics(self) -> list[TopicRow]:
        rows = self._database.read("SELECT name, topic_id, partitions, configs FROM topics ORDER BY name")
        return [TopicRow(r[0], uuid.UUID(bytes=r[1]), r[2], json.loads(r[3])) for r in rows]

    def put_topic(self, row: TopicRow) -> None:
        configs = json.dumps(dict(row.configs), sort_keys=True)
        self._execute(
            "INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?)", (row.name, row.topic_id.bytes, row.partitions, configs)
        )

    def delete_topic(self, name: str) -> None:
        def change(connection: Connection) -> None:
            connection.execute(
                "INSERT OR IGNORE INTO deleted_topics SELECT topic_id FROM topics WHERE name = ?", (name,)
            )
            connection.execute("DELETE FROM topics WHERE name = ?", (name,))

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
        def change(connection: Connection) -> None:
            for name, value in changes.items():
                if value is None:
                    connection.execute("DELETE FROM broker_configs WHERE entity = ? AND name = ?", (entity, name))
                else:
                    connection.execute("INSERT OR REPLACE INTO broker_configs VALUES (?, ?, ?)", (entity, name, value))

        self._database.write(change)

    # Groups -----------------------------------------------------------------------------------------------------------

    def load_offsets(self) -> Iterable[StoredOffset]:
        rows = self._database.read(
            "SELECT group_id, topic, partition, committed, leader_epoch, metadata, commit_ms, expire_ms FROM offsets"
        )
        return map(StoredOffset._make, rows)

    def commit_offsets(self, group: str, offsets: Iterable[OffsetRow]) -> None:
        rows = [(group, *offset) for offset in offsets]
        self._execute_many("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, -1)", rows)

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]] | None) -> None:
        if partitions is None:
            self._execute("DELETE FROM offsets WHERE group_id = ?", (group,))
            return
        rows = [(group, topic, partition) for topic, partition in partitions]
        self._execute_many("DELETE FROM offsets WHERE group_id = ? AND topic = ? AND partition = ?", rows)

    def delete_topic_offsets(self, topic: str) -> None:
        def change(connection: Connection) -> None:
            connection.execute("DELETE FROM offsets WHERE topic = ?", (topic,))
            connection.execute("DELETE FROM pending_offsets WHERE topic = ?", (topic,))

        self._database.write(change)

    def load_groups(self) -> Iterable[tuple[str, bytes]]:
        return [(group, blob) for group, blob in self._database.read("SELECT group_id, blob FROM groups")]

    def save_group(self, group: str, blob: bytes) -> None:
        self._execute("INSERT OR REPLACE INTO groups VALUES (?, ?)", (group, blob))

    def delete_group(self, group: str) -> None:
        self._execute("DELETE FROM groups WHERE group_id = ?", (group,))

    # Transactions -----------------------------------------------------------------------------------------------------

    def load_transactions(self) -> Iterable[TransactionRow]:
        added: dict[str, list[tuple[str, int]]] = {}
        for transactional_id, name, partition in self._database.read("SELECT * FROM transaction_additions"):
            added.setdefault(transactional_id, []).append((name, partition))
        for row in self._database.read("SELECT * FROM transactions"):
            additions = added.get(row[0], [])
            partitions = {(topic, partition) for topic, partition in json.loads(row[6])}
            partitions.update(key for key in additions if key[1] != _GROUP)
            groups = {*json.loads(row[7]), *(name for name, partition in additions if partition == _GROUP)}
            yield TransactionRow._make([*row[:6], tuple(sorted(partitions)), tuple(sorted(groups)), *row[8:]])

    def save_transactions(self, rows: Iterable[TransactionRow]) -> None:
        def change(connection: Connection) -> None:
            for row in rows:
                _put_transaction(connection, row)

        self._database.write(change)

    def add_to_transaction(
        self, transactional_id: str, partitions: Iterable[tuple[str, int]], groups: Iterable[str]
    ) -> None:
        rows = [(transactional_id, *key) for key in partitions] + [(transactional_id, name, _GROUP) for name in groups]
        self._execute_many("INSERT OR IGNORE INTO transaction_additions VALUES (?, ?, ?)", rows)

    def load_pending_offsets(self) -> Iterable[PendingOffset]:
        return map(PendingOffset._make, self._database.read("SELECT * FROM pending_offsets"))

    def add_pending_offsets(self, transactional_id: str, group: str, offsets: Iterable[OffsetRow]) -> None:
        rows = [(transactional_id, group, *offset) for offset in offsets]
        self._execute_many("INSERT OR REPLACE INTO pending_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def complete_transaction(self, row: TransactionRow, commit: bool) -> None:
        def change(connection: Connection) -> None:
            key = (row.transactional_id,)
            if commit:
                connection.execute(
                    "INSERT OR REPLACE INTO offsets SELECT group_id, topic, partition, committed, leader_epoch, metadata, "
                    "commit_ms, -1 FROM pending_offsets WHERE transactional_id = ?",
                    key,
                )
            connection.execute("DELETE FROM pending_offsets WHERE transactional_id = ?", key)
            _put_transaction(connection, row)

        self._database.write(change)

    def delete_transaction(self, transactional_id: str) -> None:
        def change(connection: Connection) -> None:
            connection.execute("DELETE FROM pending_offsets WHERE transactional_id = ?", (transactional_id,))
            connection.execute("DELETE FROM transaction_additions WHERE transactional_id = ?", (transactional_id,))
            connection.execute("DELETE FROM transactions WHERE transactional_id = ?", (transactional_id,))

        self._database.write(change)

    def allocate_producer_ids(self, n: int) -> int:
        def change(connection: Connection) -> int:
            first: int = connection.execute("SELECT next FROM producer_ids").fetchone()[0]
            connection.execute("UPDATE producer_ids SET next = ?", (first + n,))
            return first

        return self._database.write(change)

    # Security ---------------------------------------------------------------------------------------------------------

    def load_acls(self) -> Iterable[AclRow]:
        return map(AclRow._make, self._database.read("SELECT * FROM acls"))

    def alter_acls(self, added: Iterable[AclRow], removed: Iterable[AclRow]) -> None:
        added, removed = list(added), list(removed)

        def change(connection: Connection) -> None:
            connection.executemany(
                "DELETE FROM acls WHERE resource_type = ? AND resource_name = ? AND pattern_type = ? AND principal = ? "
                "AND host = ? AND operation = ? AND permission = ?",
                removed,
            )
            connection.executemany("INSERT OR IGNORE INTO acls VALUES (?, ?, ?, ?, ?, ?, ?)", added)

        self._database.write(change)

    def load_credentials(self) -> Iterable[CredentialRow]:
        return map(CredentialRow._make, self._database.read("SELECT * FROM credentials"))

    def alter_credentials(self, put: Iterable[CredentialRow], deleted: Iterable[tuple[str, str]]) -> None:
        put, deleted = list(put), list(deleted)

        def change(connection: Connection) -> None:
            connection.executemany("DELETE FROM credentials WHERE user = ? AND mechanism = ?", deleted)
            connection.executemany("INSERT OR REPLACE INTO credentials VALUES (?, ?, ?, ?, ?, ?)", put)

        self._database.write(change)

    def load_quotas(self) -> Iterable[QuotaRow]:
        return map(QuotaRow._make, self._database.read("SELECT * FROM quotas"))

    def alter_quotas(self, changes: Iterable[tuple[str, str, float | None]]) -> None:
        changes = list(changes)

        def change(connection: Connection) -> None:
            for entity, key, value in changes:
                if value is None:
                    connection.execute("DELETE FROM quotas WHERE entity = ? AND key = ?", (entity, key))
                else:
                    connection.execute("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?)", (entity, key, value))

        self._database.write(change)

    # Subscriptions, and what services keep ----------------------------------------------------------------------------

    def load_cursors(self) -> Iterable[CursorRow]:
        rows = self._database.read("SELECT topic_id, partition, subscription, state FROM cursors")
        return [CursorRow(uuid.UUID(bytes=topic_id), *rest) for topic_id, *rest in rows]

    def save_cursors(self, rows: Iterable[CursorRow]) -> None:
        self._execute_many(
            "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)", [(row[0].bytes, *row[1:]) for row in rows]
        )

    def delete_cursors(self, cursors: Iterable[tuple[uuid.UUID, int, str]]) -> None:
        self._execute_many(
            "DELETE FROM cursors WHERE topic_id = ? AND partition = ? AND subscription = ?",
            [(topic_id.bytes, partition, subscription) for topic_id, partition, subscription in cursors],
        )

    def delete_topic_cursors(self, topic_ids: Iterable[uuid.UUID]) -> None:
        self._execute_many("DELETE FROM cursors WHERE topic_id = ?", [(topic_id.bytes,) for topic_id in topic_ids])

    def load_documents(self, kind: str) -> Iterable[tuple[str, bytes]]:
        return [
            (key, body) for key, body in self._database.read("SELECT key, body FROM documents WHERE kind = ?", (kind,))
        ]

    def alter_documents(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        changes = list(changes)

        def change(connection: Connection) -> None:
            for kind, key, body in changes:
                if body is None:
                    connection.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (kind, key))
                else:
                    connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (kind, key, body))

        self._database.write(change)

    def delete_documents(self, kind: str, prefix: str) -> None:
        sql = "DELETE FROM documents WHERE kind = ? AND key >= ? AND key < ?"
        self._database.write(lambda connection: connection.execute(sql, (kind, prefix, _after(prefix))))

    # The rest ---------------------------------------------------------------------------------------------------------

    def together(self, changes: Iterable[Change]) -> None:
        def change_all(connection: Connection) -> None:
            inside = SqliteCatalogue(self.path, _OpenTransaction(connection))
            for change in changes:
                change(inside)

        self._database.write(change_all)

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        return self._database.copy(moment)

    def meta(self, key: str) -> str | None:
        rows = self._database.read("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def set_meta(self, key: str, value: str) -> None:
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def close(self) -> None:
        self._database.close()

    def _execute(self, sql: str, values: Sequence[object]) -> None:
        self._database.write(lambda connection: connection.execute(sql, values))

    def _execute_many(self, sql: str, rows: Sequence[tuple[object, ...]]) -> None:
        self._database.write(lambda connection: connection.executemany(sql, rows))


def _after(prefix: str) -> str:
    """The first text after all those that begin with ``prefix``."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class _OpenTransaction:
    """Statements inside a transaction that somebody else begins and ends: the changes of ``together``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, change: Callable[[Connection], T]) -> T:
        return change(self._connection)

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        raise AssertionError("a change that is made together with others only writes")

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        raise AssertionError("a change that is made together with others copies nothing")

    def close(self) -> None:
        raise AssertionError("a change that is made together with others does not close the catalogue")


def _put_transaction(connection: Connection, row: TransactionRow) -> None:
    partitions, groups = json.dumps(row.partitions), json.dumps(row.groups)
    connection.execute(
        "INSERT OR REPLACE INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row[:6], partitions, groups, *row[8:]),
    )
    connection.execute("DELETE FROM transaction_additions WHERE transactional_id = ?", (row.transactional_id,))
