"""Connections to PostgreSQL: how they are made, what they are set to, and what their errors mean.

Importing this module raises ConfigError if psycopg is not installed. Only a broker with ``catalogue=postgresql://...`` does so.

Every connection is in autocommit mode, has the broker's schema as its search path, and waits for nothing without limit: neither
for a server that has vanished (keepalives and ``tcp_user_timeout`` at this end, the same at the server's), nor for a lock, nor
for a statement. A broker that stands still inside a transaction loses it after some seconds, so that another one that takes over
need not wait for its locks.

PostgreSQL's ``text`` cannot hold the character \\0, which names and keys from clients may have. So \\0 is stored as \\1\\1 and
\\1 as \\1\\2 wherever a ``str`` is sent or received. That keeps the order of texts, and one text the beginning of the other.

Tests: tests/metadata/test_postgres_database.py.
"""

import logging
from typing import Any

import attrs

from broker.errors import ConfigError
from broker.log import get_logger
from broker.runtime.clock import SystemClock

try:
    import psycopg
    from psycopg import conninfo
    from psycopg.adapt import AdaptersMap, Dumper, Loader
except ImportError as missing:
    raise ConfigError(
        "Install the extra postgres (pip install '.[postgres]' in a checkout) to have the catalogue in PostgreSQL."
    ) from missing

# It warns of what it also raises.
logging.getLogger("psycopg").addHandler(logging.NullHandler())
logging.getLogger("psycopg").propagate = False

Cursor = psycopg.Cursor[tuple[Any, ...]]
# For the modules that build on this one: so they need psycopg only through it, and importing them raises ConfigError, too.
Error = psycopg.Error
InsufficientPrivilege = psycopg.errors.InsufficientPrivilege

logger = get_logger("storage")

OLDEST_SERVER = 15
CONNECT_S = 5
STATEMENT_S = 30
LOCK_S = 5
# Shorter than the owner's lease, so that a broker that takes over after the lease does not wait any longer for locks.
IDLE_IN_TRANSACTION_S = 5

_SETTINGS = {
    "statement_timeout": f"{STATEMENT_S}s",
    "lock_timeout": f"{LOCK_S}s",
    "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_S}s",
    "idle_session_timeout": "0",
    # What fences a transaction re-reads the owner's row after it has waited for it; a stricter level would fail instead.
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
# For this end of a connection. A server that has vanished is noticed after some 10 s.
_PARAMETERS: dict[str, Any] = {
    "connect_timeout": CONNECT_S,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "target_session_attrs": "read-write",
    "client_encoding": "utf8",
}

# The server has ended the session, or can no longer write: a failover, a restart, or somebody's order.
_LOST = frozenset({"25006", "25P03", "57P01", "57P02", "57P03", "57P05", "53300"})
# Serialization failure, deadlock, and a lock that was not free in time: the whole transaction can be tried again.
_AGAIN = frozenset({"40001", "40P01", "55P03"})


class NoAnswer(psycopg.OperationalError):
    """The server was silent for too long. The connection is closed; what was asked may have been done."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """``answer_s``: the longest silence of the server within a call, past which NoAnswer is raised. A server that stands still
    does not end statements in time, and its kernel goes on to acknowledge what is sent."""

    answer_s = STATEMENT_S + 5.0

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        try:
            return super().wait(_within(gen, self.answer_s), *args, **options)
        except NoAnswer:
            self.close()
            raise


def _within(gen: Any, limit_s: float) -> Any:
    """The generator, which psycopg tells several times a second that there is nothing yet."""
    now = SystemClock.monotonic
    deadline = now() + limit_s
    try:
        awaited = next(gen)
        while True:
            ready = yield awaited
            if ready:
                deadline = now() + limit_s
            elif now() >= deadline:
                raise NoAnswer(f"the server did not answer within {limit_s:g} s")
            awaited = gen.send(ready)
    except StopIteration as end:
        return end.value


def is_lost(error: psycopg.Error, connection: Connection) -> bool:
    """Whether this connection is of no use any longer, and another one may be."""
    state = error.sqlstate
    return connection.closed or state in _LOST or (state is not None and state.startswith("08"))


def is_idle(connection: Connection) -> bool:
    """Whether it can be used, and is in no transaction."""
    return not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def can_be_repeated(error: psycopg.Error) -> bool:
    """Whether the transaction failed only because of others that ran at the same time."""
    return error.sqlstate in _AGAIN


@attrs.frozen
class Address:
    """Where the database is. ``url`` may contain a password: it is in no message and no ``repr``.

    ``node``: of several nodes that share the catalogue, the one whose owner, journal and files are meant. The first one's are in
    ``schema``, as those of a broker alone; each other one has a schema of its own for them, which is searched first.
    """

    url: str = attrs.field(repr=False)
    schema: str = "broker"
    node: int = 0

    @property
    def own_schema(self) -> str:
        return f"{self.schema}_node{self.node}" if self.node else self.schema

    @property
    def search_path(self) -> str:
        return f"{self.own_schema}, {self.schema}" if self.node else self.schema

    @classmethod
    def parse(cls, url: str, schema: str = "broker") -> "Address":
        """``postgresql://user:password@host:port/database?parameter=value``, as libpq reads it: several hosts, and the parameters
        of TLS, too. Raises ConfigError."""
        if not url.startswith(("postgresql://", "postgres://")):
            raise ConfigError("The catalogue's URL must begin with postgresql://.")
        if not _is_well_formed(url):
            # Without libpq's reason: it may quote the part of a password that it took for a port.
            raise ConfigError(
                "The catalogue's URL is not postgresql://user:password@host:port/database with its special characters "
                "percent-encoded and parameters that libpq knows."
            )
        plain = schema.isascii() and schema.replace("_", "a").isalnum() and schema == schema.lower()
        if not plain or schema[0].isdigit() or len(schema) > 48 or schema.startswith("pg_"):
            raise ConfigError(
                f"The catalogue's schema {schema!r} must be of at most 48 small letters, digits and underscores, not begin "
                "with a digit, and not with pg_."
            )
        return cls(url, schema)

    def place(self) -> str:
        """Hosts, their ports and the database, for messages."""
        known = conninfo.conninfo_to_dict(self.url)
        if known.get("service"):
            return f"the service {known['service']}"
        hosts = str(known.get("host") or known.get("hostaddr") or "localhost").split(",")
        ports = str(known.get("port") or "").split(",")
        pairs = zip(hosts, ports if len(ports) == len(hosts) else ports[:1] * len(hosts), strict=True)
        servers = ",".join(f"{f'[{host}]' if ':' in host else host}:{port or 5432}" for host, port in pairs)
        return f"{servers}/{known.get('dbname') or known.get('user') or ''}"

    def without_secrets(self, error: BaseException) -> str:
        """The error's first line."""
        text = " ".join(str(error).split()) if str(error) else type(error).__name__
        password = conninfo.conninfo_to_dict(self.url).get("password")
        return text.replace(str(password), "***") if password else text


def _is_well_formed(url: str) -> bool:
    try:
        known = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return False
    # libpq takes the rest of a password with an unencoded / or @ for these.
    place = f"{known.get('host', '')}{known.get('dbname', '')}"
    return "@" not in place and all(port.isdigit() or not port for port in str(known.get("port", "")).split(","))


def connect(address: Address, name: str = "broker") -> Connection:
    """A new connection; its host is looked up anew. Raises psycopg.Error, or ConfigError for an old server. ``name`` is shown in
    the server's lists."""
    connection = Connection.connect(
        address.url, autocommit=True, application_name=name, context=_ADAPTERS, **_PARAMETERS
    )
    try:
        version = connection.info.server_version // 10_000
        if version < OLDEST_SERVER:
            raise ConfigError(
                f"The catalogue's database {address.place()} is PostgreSQL {version}: version {OLDEST_SERVER} or later is "
                "needed."
            )
        _set_up(connection, address.search_path)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: Connection, search_path: str) -> None:
    settings = {**_SETTINGS, "search_path": search_path}
    calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    connection.execute(f"SELECT {calls}".encode(), [text for pair in settings.items() for text in pair])
    # An acknowledged commit must survive: whatever is stricter than that stays.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
    )
    try:
        # The server ends statements of a client that has vanished. Not every system can tell.
        connection.execute("SET client_connection_check_interval = '5s'")
    except psycopg.Error:
        if connection.closed:
            raise


@attrs.frozen
class Backend:
    """The server's process of a connection. A process id may be another session's by now, so it only counts together with the
    time when the session began."""

    pid: int
    started: str


def backend_of(connection: Connection) -> Backend:
    """Raises psycopg.Error."""
    sql = "SELECT pid, extract(epoch FROM backend_start)::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    ((pid, started),) = connection.execute(sql).fetchall()
    return Backend(pid, started)


def end_backend(connection: Connection, backend: Backend) -> None:
    """Have the server end another session of the same user, if it is still there. Its locks are free a moment later. Does
    nothing if the user may not. Raises psycopg.Error."""
    sql = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid = %s AND extract(epoch FROM backend_start)::text = %s"
    )
    try:
        connection.execute(sql, (backend.pid, backend.started))
    except psycopg.errors.InsufficientPrivilege:
        logger.warning("session_not_ended", pid=backend.pid)


def check(address: Address, connection: Connection, other: Connection) -> None:
    """Whether the database can be used. ``other`` is a second connection to it. Raises ConfigError or psycopg.Error."""
    names = ("server_encoding", "transaction_read_only", "fsync")
    sql = "SELECT current_setting(%s), current_setting(%s), current_setting(%s), pg_is_in_recovery()"
    ((encoding, read_only, fsync, replica),) = connection.execute(sql, names).fetchall()
    if encoding != "UTF8":
        raise ConfigError(f"The catalogue's database {address.place()} has the encoding {encoding}: UTF8 is needed.")
    if read_only == "on" or replica:
        raise ConfigError(read_only_message(address))
    if fsync == "off":
        logger.warning("catalogue_without_fsync", database=address.place())
    if _shares_sessions(connection, other):
        raise ConfigError(
            f"The catalogue's database {address.place()} is behind a pooler that gives each transaction another session: "
            "connect to PostgreSQL itself, or have the pooler use its session mode."
        )


def read_only_message(address: Address) -> str:
    return f"The catalogue's database {address.place()} is a replica or read-only: connect to the primary."


def _shares_sessions(connection: Connection, other: Connection) -> bool:
    """Whether a pooler gives the sessions of the server to others between two transactions: then neither locks nor settings
    stay. While one client has a transaction open, the other one's next transaction shows what session it gets."""

    def session(of: Connection) -> int:
        return int(of.execute("SELECT pg_backend_pid()").fetchall()[0][0])

    first = session(connection)
    connection.execute("SELECT pg_advisory_lock(%s)", (_PROBE + first,))
    with other.transaction():
        theirs, second = session(other), session(connection)
    held = connection.execute("SELECT pg_advisory_unlock(%s)", (_PROBE + first,)).fetchall()[0][0]
    return first == theirs or first != second or not held


# An advisory lock's number is this plus the process id of the session, so that no two brokers wait for each other.
_PROBE = 0x62726F6B_00000000


class _TextDumper(Dumper):
    """``str`` to text of a type that the server infers."""

    def dump(self, obj: str) -> bytes:
        if "\0" in obj or "\1" in obj:
            obj = obj.replace("\1", "\1\2").replace("\0", "\1\1")
        return obj.encode()


class _TextLoader(Loader):
    def load(self, data: Any) -> str:
        text = str(data, "utf-8")
        return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(str, _TextDumper)
    for name in ("text", "varchar"):
        adapters.register_loader(name, _TextLoader)
    return adapters


class _Context:
    """What psycopg wants: an object with adapters."""

    connection = None
    adapters = _adapters()


_ADAPTERS: Any = _Context()
