"""The owner's row in PostgreSQL, and the lock of whoever holds it.

There is one row in the table ``owner`` (of several nodes that share the catalogue each has such a table, in a schema of its
own): the epoch of the newest owner, the number of the journal's last row, who it is, until when it has the lease by the
server's clock. Everything that an owner writes checks the epoch in the transaction that writes: changes of the catalogue lock
the row FOR KEY SHARE (``postgres_database.py``), the journal updates it (``postgres_journal.py``). A take-over locks it FOR
UPDATE and adds one to the epoch. So it waits for what is being committed, and nothing is committed after it under the old
epoch.

The lock is an advisory one of a session. It is free some ms after its holder was killed. It only tells that the holder's
connection is gone: lock and lease decide when to take over, and the epoch who may write. Only who holds the lock takes over.

An ``OwnerSession`` is one connection, for this alone, and belongs to one thread. Its methods raise StorageError if the server
cannot be reached; then it is of no use, and another one has to be made.

Tests: tests/cluster/test_owner.py.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import psycopg
from psycopg import sql

from broker.errors import ConfigError, Fenced, StorageError
from broker.metadata.postgres_connection import (
    Address,
    Backend,
    Connection,
    backend_of,
    connect,
    end_backend,
)

# The first key of a two-part number of the lock; the second one is the table's oid, so that each schema has its own.
LOCK_CLASS = 0x6F776E65
_LOCK = LOCK_CLASS << 32
_MAKE = 0x6D616B65_00000000

# One row that is updated all the time: with room in its page, updates need no vacuum, as no index has any changed column.
_TABLE = """
CREATE TABLE IF NOT EXISTS owner (
    id int PRIMARY KEY CHECK (id = 1), epoch bigint NOT NULL, number bigint NOT NULL,
    holder text NOT NULL, address text NOT NULL, lease_until timestamptz NOT NULL, taken_at timestamptz,
    backend_pid int, backend_started text
) WITH (fillfactor = 10);
INSERT INTO owner (id, epoch, number, holder, address, lease_until) VALUES (1, 0, 0, '', '', 'epoch')
ON CONFLICT DO NOTHING;
"""
# The tables of a schema; those by which a broker's are known, with a column that other owners do not have.
_TABLES = (
    "SELECT tablename || coalesce('.' || attname, '') FROM pg_tables LEFT JOIN pg_attribute "
    "ON attrelid = format('%%I.%%I', schemaname, tablename)::regclass AND attname IN ('lease_until', 'written_at') "
    "WHERE schemaname = %s"
)
_OWN_OWNER, _OWN_CATALOGUE = "owner.lease_until", "writers.written_at"
_LEFT = "greatest(0, extract(epoch FROM lease_until - clock_timestamp()))::float8"
_LOOK = f"SELECT epoch, number, holder, address, {_LEFT}, backend_pid, backend_started FROM owner WHERE id = 1"
_LOCK_ROW = f"SELECT {_LEFT} FROM owner WHERE id = 1 FOR UPDATE"
_TAKE = (
    "UPDATE owner SET epoch = epoch + 1, holder = %s, address = %s, taken_at = clock_timestamp(), "
    "lease_until = clock_timestamp() + %s * interval '1 second', backend_pid = %s, backend_started = %s "
    "WHERE id = 1 RETURNING epoch, number"
)
_RENEW = (
    "UPDATE owner SET lease_until = greatest(lease_until, clock_timestamp() + %s * interval '1 second'), "
    "backend_pid = %s, backend_started = %s WHERE id = 1 AND epoch = %s RETURNING number"
)
_RELEASE = "UPDATE owner SET lease_until = 'epoch' WHERE id = 1 AND epoch = %s"
# Sessions with a lock of any row of the table: of an owner that stands still in a transaction, for example.
_HOLDERS = (
    "SELECT DISTINCT pid, extract(epoch FROM backend_start)::text FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'relation' AND relation = 'owner'::regclass AND granted AND pid <> pg_backend_pid() "
    "AND mode IN ('RowShareLock', 'RowExclusiveLock')"
)
_LOCK_HOLDERS = (
    "SELECT pid, extract(epoch FROM backend_start)::text FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND classid = %s::bigint::oid AND objid = %s::bigint::oid AND objsubid = 1 "
    "AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()"
)
# How long a take-over waits for transactions of the old owner before it ends them.
_COMMITS_S = 1.0
_ATTEMPTS = 5


@attrs.frozen
class OwnerRow:
    """``left_s``: what is left of the lease by the server's clock; 0: it has run out, or was given up."""

    epoch: int
    number: int
    holder: str
    address: str
    left_s: float
    backend: Backend | None


@attrs.frozen
class Taken:
    """A take-over: the new owner's epoch, the number of the journal's last row, and what was left of the lease before."""

    epoch: int
    number: int
    left_s: float


class OwnerSession:
    def __init__(self, address: Address, answer_s: float) -> None:
        """Connects. Makes schema and table if they are not there. ``answer_s``: how long to wait for an answer.

        Raises StorageError, or ConfigError for a server that cannot be used.
        """
        self.locked = False  # this session holds the lock
        self._address = address
        self._answer_s = answer_s
        self._lock_timeout_ms = 0  # as it is set by this class
        with self._reaching():
            self._connection: Connection = connect(address, "broker-owner")
        try:
            with self._reaching():
                self._connection.answer_s = answer_s
                self._make_table()
                self.backend = backend_of(self._connection)
                ((oid,),) = self._execute("SELECT 'owner'::regclass::oid::bigint")
        except BaseException:
            self._connection.close()
            raise
        self._lock = _LOCK | oid

    def look(self) -> OwnerRow:
        with self._reaching():
            ((epoch, number, holder, address, left_s, pid, started),) = self._execute(_LOOK)
        return OwnerRow(epoch, number, holder, address, left_s, None if pid is None else Backend(pid, started))

    def lock(self, timeout_s: float) -> bool:
        """Wait for the lock, at most so long; 0: do not wait. Whether this session holds it now."""
        if self.locked:
            return True
        with self._reaching():
            if timeout_s <= 0:
                ((self.locked,),) = self._execute("SELECT pg_try_advisory_lock(%s)", (self._lock,))
                return self.locked
            self._limit_locks(timeout_s)
            try:
                self._execute("SELECT pg_advisory_lock(%s)", (self._lock,))
                self.locked = True
            except psycopg.errors.LockNotAvailable:
                pass
        return self.locked

    def lock_holders(self) -> list[Backend]:
        """The other session that has the lock, if there is one."""
        with self._reaching():
            found = self._execute(_LOCK_HOLDERS, (self._lock >> 32, self._lock & 0xFFFFFFFF))
        return [Backend(pid, started) for pid, started in found]

    def read(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """A query about the other nodes."""
        with self._reaching():
            return self._execute(text, values)

    def end(self, backend: Backend) -> None:
        """End another session, which may still hold the lock."""
        with self._reaching():
            end_backend(self._connection, backend)

    def take(self, holder: str, address: str, lease_s: float) -> Taken:
        """Become the owner. This session holds the lock.

        Transactions of the owner before may take a second; then they are ended. If the connection is lost meanwhile, the row may
        have this holder already: take it over then as from anybody else.
        """
        with self._reaching():
            for _ in range(_ATTEMPTS):
                try:
                    return self._take(holder, address, lease_s)
                except psycopg.errors.LockNotAvailable:
                    for pid, started in self._execute(_HOLDERS):
                        end_backend(self._connection, Backend(pid, started))
        raise StorageError("The owner's row stays locked by others")

    def _take(self, holder: str, address: str, lease_s: float) -> Taken:
        assert self.locked
        self._limit_locks(_COMMITS_S)
        with self._connection.transaction():
            ((left_s,),) = self._execute(_LOCK_ROW)
            values = (holder, address, lease_s, self.backend.pid, self.backend.started)
            ((epoch, number),) = self._execute(_TAKE, values)
        return Taken(epoch, number, left_s)

    def renew(self, epoch: int, lease_s: float) -> int:
        """Renew the lease. Returns the number of the journal's last row. Raises Fenced.

        The row may be locked for long by the journal's append, whose commit waits for the server's disk. That is no reason to
        lose the connection, and the lock with it: so the server says so before this end has waited too long for an answer.
        """
        with self._reaching():
            self._limit_locks(self._answer_s / 2)
            rows = self._execute(_RENEW, (lease_s, self.backend.pid, self.backend.started, epoch))
        if not rows:
            raise Fenced(fenced_message(epoch))
        return int(rows[0][0])

    def release(self, epoch: int, *, lease: bool) -> None:
        """Give up the lock, and the lease if ``lease``."""
        with self._reaching():
            if lease:
                self._execute(_RELEASE, (epoch,))
            self._execute("SELECT pg_advisory_unlock_all()")
        self.locked = False

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended, and the lock with it."""
        return self._connection.closed

    def close(self) -> None:
        self._connection.close()

    def _limit_locks(self, timeout_s: float) -> None:
        milliseconds = max(1, int(timeout_s * 1000))
        if milliseconds != self._lock_timeout_ms:
            self._execute("SELECT set_config('lock_timeout', %s, false)", (f"{milliseconds}ms",))
            self._lock_timeout_ms = milliseconds

    def _make_table(self) -> None:
        connection, schema = self._connection, self._address.own_schema
        with connection.transaction():  # brokers that start together wait for each other
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKE + zlib.crc32(schema.encode()),))
            if not self._execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)):
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            tables = {name for (name,) in self._execute(_TABLES, (schema,))}
            if tables and not tables & {_OWN_OWNER, _OWN_CATALOGUE}:
                raise ConfigError(
                    f"Name another catalogue_schema: the schema {schema} in {self._address.place()} has tables that are no "
                    f"broker's, such as {min(tables)}."
                )
            if _OWN_OWNER not in tables:
                connection.execute(_TABLE)

    def _execute(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(text.encode(), values)
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            schema = self._address.own_schema
            raise ConfigError(
                f"The catalogue's user may not make or use the schema {schema} in {self._address.place()}: make it with "
                f'"CREATE SCHEMA {schema} AUTHORIZATION ...", or grant CREATE on the database.'
            ) from error
        except psycopg.Error as error:
            raise StorageError(f"{self._address.place()}: {self._address.without_secrets(error)}") from error


def fenced_message(epoch: int) -> str:
    return f"Another broker has taken over: epoch {epoch} is over"
