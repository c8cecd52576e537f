"""What the nodes of several machines tell each other through PostgreSQL: which tables have changed, who is there, and who has
taken in what.

*Changes.* A transaction that changes a table which nodes keep in memory raises the row '' of the table ``feed``, and writes
the new number to the row with the table's name, as its last statements. The row '' is locked until the commit, so numbers are
in the order of the commits, which a sequence's are not: whoever has read a number has missed nothing before it. These
transactions wait for each other; those of groups, offsets, cursors, transactions and files, which are the frequent ones, have
no row here.

After the commit, in a transaction of its own, a NOTIFY wakes the other nodes: inside, it would hold a lock of the whole server
until the commit is on the disk. It may be lost, so nodes look by themselves as well.

A change of topics writes a row for each topic as well, so that nodes need not read all topics again for each. These rows are
removed after ``CHANGES_KEPT`` further changes.

*Nodes.* A node that serves has a row in ``nodes``: under which epoch, what it says about itself, and up to which number it has
the changes in force. The row counts as long as its owner's epoch is that one and has the lease. A node's rows are fenced as
all that it writes.

Any thread may call.

Tests: tests/durable/test_nodes_feed.py.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import psycopg

from broker.errors import Fenced, StorageError
from broker.log import get_logger
from broker.metadata.postgres_connection import Address, Connection, Cursor
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.shared_wire import CHANGES_KEPT, changed_names, changed_table, topic_of
from broker.runtime.clock import Clock
from broker.runtime.threads import Event

log = get_logger("cluster")

# The key of the nodes' password in ``meta``.
SECRET = "nodes_secret"
# Tables that no node reads again: what is in a row is one node's only, or is asked for each time.
_UNTOLD = frozenset(
    "offsets groups transactions transaction_additions pending_offsets cursors producer_ids remote_files condemned_objects "
    "deleted_topics meta".split()
)
# The same of documents, by kind. Share partitions and groups are written all the time.
_UNTOLD_KINDS = frozenset(f"documents/{kind}" for kind in ("share-partition", "group-rows", "pulsar-sequence-ids"))
_RAISE = "INSERT INTO feed VALUES ('', 1) ON CONFLICT (name) DO UPDATE SET version = feed.version + 1"
_NAME = (
    "INSERT INTO feed SELECT unnest(%s::text[]), (SELECT version FROM feed WHERE name = '') "
    "ON CONFLICT (name) DO UPDATE SET version = excluded.version"
)
_REGISTER = (
    "INSERT INTO nodes VALUES (%s, %s, %s, %s) "
    "ON CONFLICT (node) DO UPDATE SET epoch = excluded.epoch, about = excluded.about, applied = excluded.applied"
)
# Names are sorted by their code points, and that of "0" follows that of "/".
_ONE_TOPIC = "name >= 'topics/' AND name < 'topics0'"
_VERSIONS = f"SELECT name, version FROM feed WHERE NOT ({_ONE_TOPIC})"
_CHANGED_TOPICS = f"SELECT name, version FROM feed WHERE name IN ('', 'topics') OR ({_ONE_TOPIC} AND version > %s)"
_FORGET = f"DELETE FROM feed WHERE {_ONE_TOPIC} AND version < (SELECT version FROM feed WHERE name = '') - %s"
# Topics are changed under a lock that its holder may lose without knowing. So whoever takes it raises this row, as a change, and
# a transaction that changes topics fails unless the row is as it was raised. Both lock the row '' first. What fails is a NULL;
# the server's message has the row.
_TOKEN = "INSERT INTO feed VALUES ('#topics', 1) ON CONFLICT (name) DO UPDATE SET version = feed.version + 1 RETURNING version"
_CHECK_TOKEN = (
    "INSERT INTO feed SELECT 'another node has begun to change topics meanwhile', NULL "
    "WHERE NOT EXISTS (SELECT 1 FROM feed WHERE name = '#topics' AND version = %s)"
)
# The first key of that lock.
_TOPICS = 0x746F7069_00000000
# A session that does nothing for so long with that lock is ended: its process stands still, or its machine is gone, and nobody
# has taken its node over. Longer than a change may wait for the engine and for other nodes.
_HELD_MOST_S = 25
# A change that waits for other nodes looks so often.
_LOOKS_S = (0.005, 0.05)


@attrs.frozen
class LivingNode:
    """``about``: what it has said. ``applied``: up to which number of the feed it has the changes in force."""

    node: int
    about: Mapping[str, Any]
    applied: int


def told_table(sql: str) -> str | None:
    """The table that the statement changes, if nodes are told of it."""
    table = changed_table(sql)
    return None if table in _UNTOLD else table


def told_names(table: str, rows: Iterable[Sequence[Any]]) -> set[str]:
    """``changed_names`` without what nodes are not told of."""
    return changed_names(table, rows) - _UNTOLD_KINDS


def owners_of(address: Address, count: int) -> str:
    """A query: of each node's owner ``node``, ``epoch``, ``leased``, ``holder``."""
    schemas = (attrs.evolve(address, node=node).own_schema for node in range(count))
    return " UNION ALL ".join(
        f"SELECT {node} AS node, epoch, lease_until > clock_timestamp() AS leased, holder FROM {schema}.owner"
        for node, schema in enumerate(schemas)
    )


class PostgresFeed:
    """For one of ``count`` nodes, whose database this is."""

    def __init__(self, database: PostgresDatabase, count: int, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._pause = Event()
        self._token = -1  # of the lock, when it was taken last
        self.channel = f"broker_{database.address.schema}"
        self._topics_session = (
            f"topics-{database.address.own_schema}"  # as the server's list shows it: at most 63 bytes
        )
        self._living = (
            f"SELECT nodes.node, about, applied FROM nodes JOIN ({owners_of(database.address, count)}) AS owners "
            "ON owners.node = nodes.node AND owners.epoch = nodes.epoch WHERE leased ORDER BY nodes.node"
        )

    @property
    def epoch(self) -> int:
        """Of this node's owner."""
        assert self._database.epoch is not None
        return self._database.epoch

    def note(self, cursor: Cursor, tables: Iterable[str]) -> None:
        """At the end of a transaction: these tables have changed. Raises psycopg.Error."""
        connection = cursor.connection
        connection.execute(_RAISE)
        connection.execute(_NAME, (sorted(tables),))
        if "topics" in tables:
            connection.execute(_CHECK_TOKEN, (self._token,))

    def versions(self) -> dict[str, int]:
        """The number of each table's last change; '' has the last number. Raises StorageError."""
        return {name: int(version) for name, version in self._database.read(_VERSIONS)}

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        """``cluster.nodes.Settling``."""
        rows = dict(self._database.read(_CHANGED_TOPICS, (since,)))
        version, last = int(rows.pop("", 0)), int(rows.pop("topics", 0))
        # A node of an earlier version may have changed some, and told no names.
        if since < max(0, version - CHANGES_KEPT) or last > max(since, 0, *rows.values()):
            return version, None
        return version, [topic for topic in map(topic_of, rows) if topic is not None]

    def living(self) -> list[LivingNode]:
        """Raises StorageError."""
        return [
            LivingNode(int(node), json.loads(about), int(applied))
            for node, about, applied in self._database.read(self._living)
        ]

    def secret(self) -> str:
        """The password by which nodes log in with each other. Raises StorageError."""
        ((secret,),) = self._database.read("SELECT value FROM meta WHERE key = %s", (SECRET,))
        return str(secret)

    def register(self, about: Mapping[str, Any], applied: int) -> None:
        """This node serves, and has the changes up to this number in force. Raises Fenced, StorageError."""
        address, epoch = self._database.address, self._database.epoch
        values = (address.node, epoch, json.dumps(about), applied)

        def change(cursor: Cursor) -> None:
            # A crash of the server may lose it: then the node's next look writes it again.
            cursor.execute("SET LOCAL synchronous_commit = off")
            cursor.execute(_REGISTER, values)

        self._database.write(change)

    def notify(self) -> None:
        """Wake the others. If that fails they look by themselves."""
        try:
            self._database.read("SELECT pg_notify(%s, '')", (self.channel,))
        except StorageError:
            pass

    def listen(self) -> Connection:
        """A connection that hears of ``notify``. Raises StorageError."""
        connection: Connection | None = None
        try:
            connection = self._database.connection("broker-feed")
            connection.execute(f"LISTEN {self.channel}".encode())
            return connection
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            raise self._error("reached", error) from error

    def settle(self, timeout_s: float, place: int) -> bool:
        """Wait until every node that is there, but this one, has in force what is committed now. False: one has not, or the
        engine is away."""
        version: int | None = None
        deadline = self._clock.monotonic() + timeout_s
        pause_s, longest_s = _LOOKS_S
        while True:
            away: StorageError | None = None
            try:
                if version is None:
                    version = self.versions().get("", 0)
                if not self._is_behind(version, place):
                    return True
            except StorageError as error:
                away = error
            if isinstance(away, Fenced) or self._clock.monotonic() >= deadline:
                if away is not None:  # the change is in the catalogue, but others may not know
                    log.warning("not_settled", error=str(away))
                return False
            self._pause.wait(pause_s)
            pause_s = min(longest_s, 2 * pause_s)

    def _is_behind(self, version: int, place: int) -> bool:
        # Mostly nobody is, and then the owner's row of each node need not be read.
        rows = self._database.read("SELECT node FROM nodes WHERE applied < %s AND node <> %s", (version, place))
        behind = {int(node) for (node,) in rows}
        return bool(behind) and any(each.node in behind and each.applied < version for each in self.living())

    def end_earlier(self) -> None:
        """This node was just taken over: its owner before, which may stand still, does not keep the lock of topics any longer.
        Raises StorageError."""
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = %s AND datname = current_database() AND usename = current_user"
        )
        self._database.read(ended, (self._topics_session,))

    def lock_topics(self, wait_s: float) -> Connection:
        """Nobody else has this lock until the connection is closed. One thread at a time. Raises StorageError."""
        connection: Connection | None = None
        try:
            connection = self._database.connection(self._topics_session)
            connection.execute(f"SET lock_timeout = '{int(wait_s * 1000)}ms'".encode())
            connection.execute(f"SET statement_timeout = '{int(2 * wait_s)}s'".encode())
            connection.execute(f"SET idle_session_timeout = '{_HELD_MOST_S}s'".encode())
            connection.answer_s = 2 * wait_s
            lock = _TOPICS + zlib.crc32(self._database.address.schema.encode())
            connection.execute("SELECT pg_advisory_lock(%s)", (lock,))
            with connection.transaction():
                connection.execute(_RAISE)
                connection.execute(_FORGET, (CHANGES_KEPT,))
                ((self._token,),) = connection.execute(_TOKEN).fetchall()
            return connection
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            if isinstance(error, psycopg.errors.LockNotAvailable):
                raise StorageError("Another node is changing topics, and has not come to an end") from error
            raise self._error("locked", error) from error

    def _error(self, done: str, error: psycopg.Error) -> StorageError:
        return StorageError(f"The catalogue could not be {done}: {self._database.address.without_secrets(error)}")


class FeedListener:
    """Hears of ``notify``. For one thread."""

    def __init__(self, feed: PostgresFeed) -> None:
        """Raises StorageError."""
        self._feed = feed
        self._connection = feed.listen()

    def wait(self, timeout_s: float) -> bool:
        """Whether somebody has notified. Raises StorageError if it can hear nothing any more."""
        try:
            return any(True for _ in self._connection.notifies(timeout=timeout_s, stop_after=1))
        except psycopg.Error as error:
            raise StorageError(f"Nobody can be heard: {type(error).__name__}") from error

    def close(self) -> None:
        self._connection.close()
