"""The journal in PostgreSQL: the table ``journal``, beside the catalogue's.

A row is stored by one statement in autocommit: it updates the owner's row, if that has this owner's epoch and the number before,
and inserts the row. So it renews the lease, is fenced, and leaves no transaction open if this process stands still.

*Unknown outcomes.* If the connection is lost, the statement may have been committed, or may still be. It is simply sent again
over a new one: the number before can be there only once, so either of the two stores the rows, and the other one stores
nothing. Which of them it was does not matter. "Not stored" is never concluded from having found nothing, because the old session
may be about to commit; only from an error that the server itself has answered. If it is not known in time, ``append`` raises
UnknownOutcome, and is called again with the same rows.

Rows that are there already are recognised by their numbers, and compared as a whole: the epoch says that nobody else can have
stored them. That they are there is found out by an update of the owner's row, and not by a query: with a synchronous replica, a
commit whose wait for the replica was cancelled is visible, and only a later commit that did wait shows that it has arrived. The
server says so by a warning; a statement with one counts as unknown.

``append`` is for one thread at a time and has a connection of its own. Each reading has another one. ``remove`` goes through the
catalogue's database, fenced like its changes. The space of removed rows is used again after a vacuum, which ``remove`` asks for
itself; autovacuum, whose settings have it come early, only does what that could not. While a long transaction, such as that of a
dump, keeps old rows alive, the table grows.

Tests: tests/contract/test_journal.py, tests/metadata/test_postgres_journal.py.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from broker.errors import Fenced, StorageError, UnknownOutcome
from broker.log import get_logger
from broker.metadata.journal import JournalRow, check_numbers, is_repetition
from broker.metadata.postgres_connection import Backend, Connection, backend_of, can_be_repeated, end_backend, is_lost
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_owner import fenced_message
from broker.runtime.clock import Clock, SystemClock
from broker.runtime.threads import Event

log = get_logger("storage")

# EXTERNAL: bytes are compressed batches, most of them; to compress them again costs the server CPU and gains little.
# Autovacuum comes when some thousand rows were removed, whatever the size of the table.
_AUTOVACUUM = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0"
_TOAST_VACUUM = ", ".join(f"toast.{setting}" for setting in _AUTOVACUUM.split(", "))
_TABLE = f"""
CREATE TABLE IF NOT EXISTS journal (
    number bigint PRIMARY KEY, epoch bigint NOT NULL, index bytea NOT NULL, data bytea, object text
) WITH ({_AUTOVACUUM}, autovacuum_vacuum_insert_threshold = -1, {_TOAST_VACUUM});
ALTER TABLE journal ALTER index SET STORAGE EXTERNAL, ALTER data SET STORAGE EXTERNAL;
"""
_OWNED = (
    "WITH owned AS (UPDATE owner SET number = %(last)s, "
    "lease_until = greatest(lease_until, clock_timestamp() + %(lease)s * interval '1 second') "
    "WHERE id = 1 AND epoch = %(epoch)s AND number = %(before)s RETURNING 1) "
    "INSERT INTO journal (number, epoch, index, data, object) "
)
_APPEND_ONE = f"{_OWNED} SELECT %(last)s, %(epoch)s, %(index)b, %(data)b, %(object)s FROM owned"
_APPEND = (
    f"{_OWNED} SELECT row.number, %(epoch)s, row.index, row.data, row.object FROM owned, "
    "unnest(%(numbers)s::bigint[], %(index)b::bytea[], %(data)b::bytea[], %(object)s::text[]) "
    "AS row (number, index, data, object)"
)
_RENEW = (
    "UPDATE owner SET lease_until = greatest(lease_until, clock_timestamp() + %s * interval '1 second') "
    "WHERE id = 1 AND epoch = %s RETURNING number"
)
_READ = "SELECT number, index, data, object FROM journal WHERE number > %s ORDER BY number LIMIT %s"
_REMOVE = "DELETE FROM journal WHERE number <= %s AND number < (SELECT min(number) FROM journal) + %s"

# How long `append` tries before the outcome counts as unknown. The caller appends again.
APPEND_S = 10.0
# The longest silence of the server.
_ANSWER_S = 5.0
_PAUSE_S = 0.2
# Rows that are read in one piece: 4 MiB, with data of 64 KiB each.
_READ_ROWS = 64
# Rows that are removed in one transaction.
_REMOVED_ROWS = 1000
# Removed rows after which the table is vacuumed. Autovacuum comes once a minute, and until then the table grows.
_VACUUM_ROWS = 2000


class _Unsure(Exception):
    """The rows may be stored, now or later."""


class PostgresJournal:
    """``Journal``, for the owner with the epoch of ``database``."""

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        lease_s: float,
        on_renewed: Callable[[float, int], None] = lambda _sent_at, _number: None,
        on_fenced: Callable[[str], None] = lambda _reason: None,
        clock: Clock | None = None,
        append_s: float = APPEND_S,
    ) -> None:
        """Makes the table if it is not there. ``on_renewed`` gets the time (Clock.monotonic() s) at which the request was sent,
        and the number of the last row. Raises StorageError."""
        assert database.epoch is not None, "the state is nobody's"
        self.epoch: int = database.epoch
        self._database = database
        self._lease_s = lease_s
        self._on_renewed = on_renewed
        self._on_fenced = on_fenced
        self._clock: Clock = SystemClock() if clock is None else clock
        self._append_s = append_s
        self._closing = Event()
        self._connection: Connection | None = None
        self._backend: Backend | None = None  # of that connection, or of the one before
        self._warned = False  # by the server, in the last statement
        self._repeat: list[JournalRow] | None = None  # the outcome of these is unknown
        self._removed = 0  # rows since the last vacuum
        self._known = 0  # the highest number that is known to be stored
        # Only if it is not there: to alter it would have to wait for the end of a dump.
        own = f"{database.address.own_schema}.journal"
        if database.read("SELECT to_regclass(%s)::text", (own,)) == [(None,)]:
            database.write(lambda cursor: cursor.execute(_TABLE.encode()))

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(self, rows: Sequence[JournalRow]) -> None:
        check_numbers(rows)
        assert self._repeat in (None, list(rows)), "other rows, while the outcome of some is unknown"
        unsure = self._repeat is not None
        deadline = self._clock.monotonic() + self._append_s
        while True:
            try:
                self._append_once(rows, self._connected())
                self._repeat = None
                self._known = rows[-1].number
                return
            except Fenced as error:
                self._on_fenced(str(error))
                raise
            except _Unsure as error:
                unsure, problem, again = True, str(error), True
            except (
                psycopg.Error
            ) as error:  # the server, or that it cannot be reached: these rows are not stored by this attempt
                problem = self._database.address.without_secrets(error)
                again = self._connection is None or can_be_repeated(error)
            if not again or self._clock.monotonic() >= deadline or self._closing.wait(_PAUSE_S):
                break
        if unsure:
            self._repeat = list(rows)
            raise UnknownOutcome(f"Rows {rows[0].number} to {rows[-1].number} of the journal may be stored: {problem}")
        raise StorageError(f"The journal could not be written: {problem}")

    def _append_once(self, rows: Sequence[JournalRow], connection: Connection) -> None:
        """Raises Fenced, _Unsure, or psycopg.Error if this attempt has stored nothing and will not."""
        sent_at = self._clock.monotonic()
        self._warned = False
        try:
            stored = self._send(rows, connection)
            # Not stored: fenced, or stored before. Only a commit shows that what was committed before has reached the replica.
            found = stored or self._renew(connection)
        except psycopg.Error as error:
            if is_lost(error, connection):
                self._drop_connection()
                raise _Unsure(self._database.address.without_secrets(error)) from error
            raise
        if self._warned:
            self._drop_connection()
            raise _Unsure("the server did not wait for its replica")
        if stored or self._is_stored(rows, found, connection):
            self._on_renewed(sent_at, rows[-1].number)
        else:
            raise _Unsure("the server has found another number than before")

    def _send(self, rows: Sequence[JournalRow], connection: Connection) -> int:
        """Returns the number of the last row if they were stored, and 0 if nothing was."""
        last = rows[-1].number
        values: dict[str, object] = {
            "last": last,
            "before": rows[0].number - 1,
            "epoch": self.epoch,
            "lease": self._lease_s,
        }
        if len(rows) == 1:
            ((row),) = rows
            cursor = connection.execute(
                _APPEND_ONE.encode(), {**values, "index": row.index, "data": row.data, "object": row.object}
            )
        else:
            columns = {
                "numbers": [row.number for row in rows],
                "index": [row.index for row in rows],
                "data": [row.data for row in rows],
                "object": [row.object for row in rows],
            }
            cursor = connection.execute(_APPEND.encode(), {**values, **columns})
        assert cursor.rowcount in (0, len(rows)), cursor.rowcount
        return last if cursor.rowcount else 0

    def _renew(self, connection: Connection) -> int:
        """The number of the last row. Raises Fenced."""
        found = connection.execute(_RENEW, (self._lease_s, self.epoch)).fetchall()
        if not found:
            raise Fenced(fenced_message(self.epoch))
        return int(found[0][0])

    def _is_stored(self, rows: Sequence[JournalRow], last: int, connection: Connection) -> bool:
        """Whether these rows are in the table, as far as row ``last`` is the last one."""
        if last < self._known:
            raise Fenced(f"The server has lost rows of the journal that it had stored, {last + 1} to {self._known}")
        if not is_repetition(rows, last):
            return False
        there = _rows(connection, rows[0].number - 1, len(rows))
        assert there == list(rows), f"other rows than {rows[0].number} to {rows[-1].number} have these numbers"
        log.warning("journal_rows_found", first=rows[0].number, last=rows[-1].number)
        return True

    def _connected(self) -> Connection:
        """Raises psycopg.Error."""
        connection = self._connection
        if connection is None:
            connection = self._database.connection("broker-journal")
            try:
                connection.answer_s = _ANSWER_S
                if self._backend is not None:  # it may be at work for nobody, and hold up this one
                    end_backend(connection, self._backend)
                self._backend = backend_of(connection)
                connection.add_notice_handler(self._notice)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return connection

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        self._warned |= notice.severity_nonlocalized == "WARNING"

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- reading, removing --------------------------------------------------------------------------------------------

    def read(self, after: int) -> Iterator[JournalRow]:
        deadline = self._clock.monotonic() + self._append_s
        connection: Connection | None = None
        try:
            while True:
                try:
                    if connection is None:
                        connection = self._database.connection("broker-journal-reader")
                    rows = _rows(connection, after, _READ_ROWS)
                except psycopg.Error as error:
                    lost = connection is None or is_lost(error, connection)
                    if connection is not None:
                        connection.close()
                    connection = None
                    if not lost or self._clock.monotonic() >= deadline or self._closing.wait(_PAUSE_S):
                        reason = self._database.address.without_secrets(error)
                        raise StorageError(f"The journal could not be read: {reason}") from error
                    continue
                yield from rows
                if len(rows) < _READ_ROWS:
                    return
                after = rows[-1].number
                deadline = self._clock.monotonic() + self._append_s
        finally:
            if connection is not None:
                connection.close()

    def remove(self, upto: int) -> None:
        def remove_some(cursor: Any) -> int:
            cursor.execute(_REMOVE, (upto, _REMOVED_ROWS))
            return int(cursor.rowcount)

        while removed := self._database.write(remove_some):
            self._removed += removed
        if self._removed >= _VACUUM_ROWS:
            self._removed = 0
            self._vacuum()

    def _vacuum(self) -> None:
        try:
            with self._database.connection("broker-journal-vacuum") as connection:
                connection.execute("VACUUM journal")
        except psycopg.Error as error:  # autovacuum will come
            log.info("journal_not_vacuumed", error=self._database.address.without_secrets(error))

    def last(self) -> int:
        ((number,),) = self._database.read("SELECT number FROM owner WHERE id = 1")
        return int(number)

    def close(self) -> None:
        """End the connection. An append that waits for the server gives up. When no thread appends."""
        self._closing.set()
        self._drop_connection()


def _rows(connection: Connection, after: int, most: int) -> list[JournalRow]:
    found = connection.execute(_READ, (after, most), binary=True).fetchall()
    return [
        JournalRow(number, bytes(index), None if data is None else bytes(data), key)
        for number, index, data, key in found
    ]
