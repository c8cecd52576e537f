"""The catalogue's database in PostgreSQL: its connections, and how a transaction is made once, all or nothing.

``write`` runs a change as one transaction. Its first statement is the fence: it locks the owner's row FOR KEY SHARE and fails if
the row's epoch is no longer ``epoch``, also after it has waited for another broker that was taking over. That one has to lock the
row FOR UPDATE before it changes the epoch; then no change of an earlier owner is committed after a take-over, and a take-over
waits for the changes that are being committed.

If the connection is lost, the change is tried again on a new one, for some seconds. If that happened while the server committed,
the outcome has to be found out first. Each session therefore has a row in ``writers``, into which the same first statement writes
the number of the transaction. After a loss, an update of that row waits for the old transaction if it still lives, because
that one holds the row's lock; then the number tells whether it was committed. This also is true after a crash of the server and
after a failover to a replica that has not received the transaction. The transaction's own id (``pg_xact_status``) would not do:
after a crash the server gives ids that it has not written down to other transactions. The update of a row of this tiny
table costs the transaction 0.1 ms and needs no vacuum.

Any thread may call any method. A thread has a connection of its own while it calls; there are at most ``sessions``.

Tests: tests/metadata/test_postgres_database.py, tests/metadata/test_postgres.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs

from broker.errors import ConfigError, Fenced, StorageError, UnknownOutcome
from broker.log import get_logger
from broker.metadata.postgres_connection import (
    Address,
    Backend,
    Connection,
    Cursor,
    Error,
    InsufficientPrivilege,
    backend_of,
    can_be_repeated,
    check,
    connect,
    end_backend,
    is_idle,
    is_lost,
    read_only_message,
)
from broker.metadata.postgres_layouts import migrate
from broker.runtime.clock import Clock, SystemClock
from broker.runtime.entropy import SystemEntropy
from broker.runtime.threads import Condition, Event

T = TypeVar("T")

logger = get_logger("storage")

SESSIONS = 4
# How long a lost connection is made again before the caller is told.
RETRY_S = 10.0
# How long a snapshot is kept whose reader does nothing.
SNAPSHOT_IDLE_S = 600
# Between two attempts: doubled from the first to the second.
_PAUSES_S = (0.05, 1.0)
_ORPHANS_MAX = 16
# How often a transaction that failed because of others is made again.
_REPEATS = 10

# The first statement of a transaction: writes its number, and fences.
_NUMBER = "ON CONFLICT (writer) DO UPDATE SET number = excluded.number, written_at = excluded.written_at"
_BEGIN = f"INSERT INTO writers (writer, number) VALUES (%s, %s) {_NUMBER}"
_BEGIN_FENCED = (
    f"INSERT INTO writers (writer, number) SELECT %s, %s FROM owner WHERE epoch = %s FOR KEY SHARE {_NUMBER}"
)
# The number of the session's last committed transaction, once none of its transactions runs. As this writes, too, it waits for
# a synchronous standby if there is one: by then that one has the earlier transaction as well.
_LAST_NUMBER = (
    "INSERT INTO writers (writer, number) VALUES (%s, -1) ON CONFLICT (writer) DO UPDATE SET number = writers.number "
    "RETURNING number"
)


@attrs.define(eq=False)
class _Session:
    connection: Connection
    backend: Backend
    writer: int  # its row in `writers`
    number: int = 0  # of its last transaction


class _OutcomeUnknown(Exception):
    """The connection was lost while the server committed. ``result`` is what the change has returned."""

    def __init__(self, session: _Session, result: Any) -> None:
        super().__init__()
        self.writer = session.writer
        self.number = session.number
        self.result = result


class PostgresDatabase:
    def __init__(
        self,
        address: Address,
        *,
        name: str = "broker",
        sessions: int = SESSIONS,
        retry_s: float = RETRY_S,
        clock: Clock | None = None,
    ) -> None:
        """Connects, and makes or upgrades the tables. Raises ConfigError. ``name`` is shown in the server's lists."""
        self.address = address
        # The owner's epoch; from then on nothing is written unless it is the epoch in the table `owner`. The owner sets it.
        self.epoch: int | None = None
        # Told why, by the thread whose change is fenced.
        self.on_fenced: Callable[[str], None] = lambda _reason: None
        self._name = name
        self._most = sessions
        self._retry_s = retry_s
        self._clock: Clock = SystemClock() if clock is None else clock
        self._closing = Event()
        # Guards what follows.
        self._changed = Condition()
        self._lent = 0  # sessions in use
        self._orphans: list[Backend] = []  # of lost connections: backends that may still hold locks
        self._writing = 0
        self._held = False  # nobody may begin to write
        self._idle = self._open()

    # What others use --------------------------------------------------------------------------------------------------

    def write(self, change: Callable[[Cursor], T]) -> T:
        """Run ``change`` in a transaction and commit it. It is called again if the transaction has to be made again.

        Raises Fenced, StorageError (nothing was changed), or UnknownOutcome.
        """
        with self._may_write():
            patience = self._patience()
            repeats = 0
            while True:
                try:
                    with self._session(patience) as session:
                        return self._transact(session, change)
                except _OutcomeUnknown as unknown:
                    if self._was_committed(unknown):
                        return unknown.result  # type: ignore[no-any-return]  # an exception has no type variable
                    repeats += 1
                    if repeats >= _REPEATS:
                        raise StorageError(
                            "The catalogue could not be written: its connections do not last"
                        ) from unknown
                    patience = self._patience()
                except Error as error:
                    if is_lost(error, session.connection):
                        again = patience.wait()
                    else:
                        repeats += 1
                        again = can_be_repeated(error) and repeats < _REPEATS and not patience.is_over()
                    if not again:
                        raise self._error("written", error) from error

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query, whose placeholders are ``%s``. Raises StorageError."""
        patience = self._patience()
        while True:
            try:
                with self._session(patience) as session:
                    return session.connection.execute(sql.encode(), values).fetchall()
            except Error as error:
                if not (is_lost(error, session.connection) and patience.wait()):
                    raise self._error("read", error) from error

    def snapshot(self, moment: Callable[[], None]) -> "Snapshot":
        """Call ``moment`` while nothing is written. Returns what the database held at that moment, to be read later and while
        changes go on. Raises StorageError."""
        try:
            connection = self.connection(f"{self._name}-snapshot")
            try:
                with self._nobody_writes():
                    # The server lets go of the snapshot if its reader does nothing for so long: it keeps old rows alive.
                    connection.execute(f"SET idle_in_transaction_session_timeout = '{SNAPSHOT_IDLE_S}s'".encode())
                    connection.execute("SET statement_timeout = 0")  # a large table is read in one piece
                    # The snapshot is taken by the first query, with which it comes: it is not idle in between.
                    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1 FROM schema_version")
                    moment()
            except BaseException:
                connection.close()
                raise
        except Error as error:
            raise self._error("read", error) from error
        return Snapshot(self, connection)

    def connection(self, name: str) -> Connection:
        """A new connection for the caller alone, set up like the others. Raises psycopg.Error."""
        return connect(self.address, name)

    def close(self) -> None:
        """End the connections: those in use, when they are given back."""
        with self._changed:
            self._closing.set()
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for session in idle:
            session.connection.close()

    # Transactions -----------------------------------------------------------------------------------------------------

    def _transact(self, session: _Session, change: Callable[[Cursor], T]) -> T:
        """Raises psycopg.Error if nothing was committed, or _OutcomeUnknown."""
        connection = session.connection
        session.number += 1
        cursor = connection.cursor()
        try:
            self._begin(session, cursor)
            result = change(cursor)
        except BaseException as error:
            _undo(connection, error)
            raise
        try:
            made = cursor.execute("COMMIT").statusmessage
        except Error as error:
            if is_lost(error, connection):
                connection.close()
                raise _OutcomeUnknown(session, result) from error
            _undo(connection, error)
            raise
        except BaseException:
            connection.close()
            raise
        if made != "COMMIT":  # the change has gone on after an error
            raise StorageError(f"The catalogue could not be written: the server answered {made}")
        return result

    def _begin(self, session: _Session, cursor: Cursor) -> None:
        epoch = self.epoch
        with session.connection.pipeline():
            session.connection.execute("BEGIN")
            if epoch is None:
                cursor.execute(_BEGIN, (session.writer, session.number))
            else:
                cursor.execute(_BEGIN_FENCED, (session.writer, session.number, epoch))
        if not cursor.rowcount:
            reason = f"Another broker has taken over the catalogue: epoch {epoch} is over"
            self.on_fenced(reason)
            raise Fenced(reason)

    def _was_committed(self, unknown: _OutcomeUnknown) -> bool:
        patience = self._patience()
        while True:
            try:
                with self._session(patience) as session:
                    ((number,),) = session.connection.execute(_LAST_NUMBER, (unknown.writer,)).fetchall()
                committed: bool = number == unknown.number
                logger.warning("catalogue_commit_looked_up", committed=committed)
                return committed
            except Error as error:
                if not patience.wait():
                    raise UnknownOutcome(f"{self._error('written', error)}; whether it was is unknown") from error
            except StorageError as error:
                raise UnknownOutcome(f"{error}; whether an earlier change was is unknown") from error

    @contextmanager
    def _may_write(self) -> Iterator[None]:
        with self._changed:
            while self._held:
                self._changed.wait()
            self._writing += 1
        try:
            yield
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()

    @contextmanager
    def _nobody_writes(self) -> Iterator[None]:
        with self._changed:
            while self._held:
                self._changed.wait()
            self._held = True
        try:
            with self._changed:
                while self._writing:
                    self._changed.wait()
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()

    # Connections ------------------------------------------------------------------------------------------------------

    def _open(self) -> list[_Session]:
        place = self.address.place()
        try:
            return self._first_sessions()
        except InsufficientPrivilege as error:
            schema = self.address.schema
            raise ConfigError(
                f"The catalogue's user may not make the schema {schema} or its tables in {place}: make it with "
                f'"CREATE SCHEMA {schema} AUTHORIZATION ...", or grant CREATE on the database.'
            ) from error
        except Error as error:
            reason = self.address.without_secrets(error)
            if "session is read-only" in reason:
                raise ConfigError(read_only_message(self.address)) from error
            raise ConfigError(f"The catalogue's database {place} cannot be used: {reason}") from error

    def _first_sessions(self) -> list[_Session]:
        """A server that answered and is lost then is waited for, as by ``write``. Raises psycopg.Error, ConfigError."""
        patience = self._patience()
        reached = False
        while True:
            opened: list[_Session] = []
            try:
                opened += [self._new_session()]
                opened += [self._new_session()]
                check(self.address, opened[0].connection, opened[1].connection)
                migrate(self.address, opened[0].connection)
                return opened
            except BaseException as error:
                reached = reached or bool(opened)
                lost = isinstance(error, Error) and (
                    error.sqlstate is None or any(is_lost(error, session.connection) for session in opened)
                )
                for session in opened:
                    session.connection.close()
                if not (lost and reached and patience.wait()):
                    raise

    def _new_session(self) -> _Session:
        connection = self.connection(self._name)
        try:
            backend = backend_of(connection)
            with self._changed:
                orphans, self._orphans = self._orphans, []
            for orphan in orphans:
                end_backend(connection, orphan)
        except BaseException:
            connection.close()
            raise
        return _Session(connection, backend, int.from_bytes(SystemEntropy.bytes(8), "big", signed=True))

    @contextmanager
    def _session(self, patience: "_Patience") -> Iterator[_Session]:
        """A session for this thread. Raises StorageError if there is none in time."""
        session = self._borrow(patience)
        try:
            yield session
        finally:
            self._give_back(session)

    def _borrow(self, patience: "_Patience") -> _Session:
        with self._changed:
            while self._lent >= self._most:
                if patience.is_over():
                    raise StorageError("The catalogue could not be used: all its connections are busy")
                self._changed.wait(patience.left())
            self._lent += 1
            if self._idle and not self._closing.is_set():
                return self._idle.pop()
        try:
            while True:
                if self._closing.is_set():
                    raise StorageError("The catalogue could not be used: it is closed")
                try:
                    return self._new_session()
                except (Error, ConfigError) as error:
                    if not patience.wait():
                        raise self._error("reached", error) from error
        except BaseException:
            with self._changed:
                self._lent -= 1
                self._changed.notify_all()
            raise

    def _give_back(self, session: _Session) -> None:
        connection = session.connection
        fit = is_idle(connection)
        stale: list[_Session] = []
        with self._changed:
            self._lent -= 1
            if fit and not self._closing.is_set():
                self._idle.append(session)
            else:
                # Most likely the others have lost the server, too.
                stale, self._idle = [session, *self._idle], []
                if not self._closing.is_set():
                    self._orphans = [*self._orphans, *(one.backend for one in stale)][-_ORPHANS_MAX:]
            self._changed.notify_all()
        for one in stale:
            one.connection.close()

    def _patience(self) -> "_Patience":
        return _Patience(self._clock, self._closing, self._clock.monotonic() + self._retry_s)

    def _error(self, done: str, error: Exception) -> StorageError:
        return StorageError(f"The catalogue could not be {done}: {self.address.without_secrets(error)}")


class Snapshot:
    """What the database held at a moment. For one thread."""

    def __init__(self, database: PostgresDatabase, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """As ``PostgresDatabase.read``, but without a second attempt."""
        try:
            return self._connection.execute(sql.encode(), values).fetchall()
        except Error as error:
            raise self._database._error("read", error) from error

    def close(self) -> None:
        self._connection.close()


class _Patience:
    """Until when something is tried again, and how long to wait before."""

    def __init__(self, clock: Clock, closing: Event, deadline: float) -> None:
        self._clock = clock
        self._closing = closing
        self._deadline = deadline
        self._pause_s = 0.0  # the first time at once: an idle connection may have been lost long ago

    def left(self) -> float:
        return max(0.0, self._deadline - self._clock.monotonic())

    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._deadline

    def wait(self) -> bool:
        """Wait before the next attempt. Returns False if there should be none."""
        if self.is_over() or self._closing.wait(self._pause_s):
            return False
        self._pause_s = min(_PAUSES_S[1], max(_PAUSES_S[0], 2 * self._pause_s))
        return True


def _undo(connection: Connection, error: BaseException) -> None:
    """Roll back after this error, or end the connection if it is of no use any longer."""
    if isinstance(error, Error) and is_lost(error, connection):
        connection.close()
        return
    try:
        connection.execute("ROLLBACK")
    except Error:
        connection.close()
