"""The catalogue in PostgreSQL, 15 or later.

``sql.py`` has the statements, ``postgres_layouts.py`` the tables; ``postgres_database.py`` runs the transactions. Any thread may
call any method. A change takes some milliseconds, more than a processor may wait; and 10 s or longer while the server is away.

Of several nodes that share it, each tells the others which tables it has changed (``postgres_feed.py``).

A change's statements are sent without waiting for one another's answers, so it takes three exchanges with the server however
many there are: begin and fence, the change, commit.

Tests: tests/contract/test_catalogue.py, tests/metadata/test_postgres.py.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from broker.errors import StorageError
from broker.metadata.copying import copy_catalogue
from broker.metadata.postgres_connection import Address, Cursor
from broker.metadata.postgres_database import PostgresDatabase, Snapshot
from broker.metadata.postgres_feed import PostgresFeed, told_names, told_table
from broker.metadata.sql import SqlCatalogue, Statements, Timed
from broker.metadata.sqlite import SqliteCatalogue
from broker.metadata.sqlite_database import SqliteDatabase

T = TypeVar("T")


class PostgresCatalogue(SqlCatalogue):
    """``Catalogue``. Raises ConfigError if the database cannot be used."""

    def __init__(
        self, address: Address, database: PostgresDatabase | None = None, feed: PostgresFeed | None = None
    ) -> None:
        """``feed``: of one of several nodes."""
        self.database = PostgresDatabase(address) if database is None else database
        transactions = _Transactions(self.database) if feed is None else _ToldTransactions(self.database, feed)
        timed = Timed(transactions)
        super().__init__(timed, _lock)
        self.seconds = timed.seconds


class _Transactions:
    """``sql.Transactions`` on PostgreSQL."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def write(self, change: Callable[[Statements], T]) -> T:
        def run(cursor: Cursor) -> T:
            with cursor.connection.pipeline():
                return change(_Statements(cursor))

        return self._database.write(run)

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._database.read(_translate(sql), values)

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        snapshot = self._database.snapshot(moment)

        def save(path: str) -> None:
            try:
                target = SqliteCatalogue(path, database := SqliteDatabase(path))
                try:
                    copy_catalogue(SqlCatalogue(_Past(snapshot)), target)
                    database.read("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
                finally:
                    target.close()
            finally:
                snapshot.close()

        return save

    def close(self) -> None:
        self._database.close()


class _ToldTransactions(_Transactions):
    """Those of one of several nodes: the others are told which tables have changed."""

    def __init__(self, database: PostgresDatabase, feed: PostgresFeed) -> None:
        super().__init__(database)
        self._feed = feed

    def write(self, change: Callable[[Statements], T]) -> T:
        tables: set[str] = set()

        def run(cursor: Cursor) -> T:
            tables.clear()  # it may be run again
            with cursor.connection.pipeline():
                result = change(_NotedStatements(cursor, tables))
                if tables:
                    self._feed.note(cursor, tables)
                return result

        result = self._database.write(run)
        if tables:
            self._feed.notify()
        return result

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        raise StorageError("A node of several has only a part of the partitions, so it makes no backup")


class _Past:
    """``sql.Transactions`` that only read what a snapshot holds."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def write(self, change: Callable[[Statements], T]) -> T:
        raise AssertionError("the past cannot be changed")

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._snapshot.read(_translate(sql), values)

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        raise AssertionError("a snapshot is copied as it is read")

    def close(self) -> None:
        self._snapshot.close()


class _Statements:
    """``sql.Statements``. Each has a cursor of its own: its rows are fetched when somebody asks for them."""

    def __init__(self, cursor: Cursor) -> None:
        self._connection = cursor.connection

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor:
        return self._connection.execute(_translate(sql).encode(), values)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> None:
        if rows:
            self._connection.cursor().executemany(_translate(sql).encode(), rows)


class _NotedStatements(_Statements):
    """Notes the tables that are changed."""

    def __init__(self, cursor: Cursor, tables: set[str]) -> None:
        super().__init__(cursor)
        self._tables = tables

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor:
        self._note(sql, (values,))
        return super().execute(sql, values)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> None:
        if rows:
            self._note(sql, rows)
            super().executemany(sql, rows)

    def _note(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        table = told_table(sql)
        if table is not None:
            self._tables.update(told_names(table, rows))


@lru_cache(512)
def _translate(sql: str) -> str:
    """With PostgreSQL's placeholders. No statement has a question mark or a percent sign in its text."""
    return sql.replace("?", "%s")


def _lock(statements: Statements, table: str) -> None:
    statements.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
