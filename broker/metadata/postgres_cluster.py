"""Nodes on several machines, as their supervisors see them: how many there are, which machine has which, and who would take
one.

The number of nodes is fixed in the catalogue when a cluster starts for the first time (``meta``, key ``seats``); without that
key a catalogue is of one broker. Each machine writes the time into its row of ``machines``. Which machine has which node is in
the nodes' owner rows: their ``holder`` begins with the machine's name. A machine is numbered by its address, for good, so that
whoever has the address again is the same brokers to clients (``moved_id`` in cluster/nodes.py). Nothing here decides what may be
written; epochs do.

A ``ClusterSession`` is one connection, for one thread. Its methods raise StorageError if the server cannot be reached; then
another one has to be made.

Tests: tests/durable/test_nodes_cluster.py.
"""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import psycopg

from broker.errors import ConfigError, StorageError
from broker.metadata.postgres_connection import Address, connect
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_feed import SECRET, owners_of
from broker.metadata.postgres_layouts import MOST_NODES, migrate
from broker.metadata.postgres_owner import LOCK_CLASS, OwnerSession
from broker.runtime.process import process_name

# A machine that has not written the time for so long takes no nodes.
SEEN_S = 5.0
# Not the key that says among how many nodes partitions were divided last: that comes along with a catalogue that is moved here,
# where all of them are one node's.
_SEATS = "seats"
# What `leader_epoch` in server/node_directories.py finds as it should be.
_DIVIDED = "nodes"
# The first keys of the locks under which a cluster is made or joined, and nodes move.
_MAKE, _MOVE = 0x6D6E6F64_00000000, 0x6D6F7665_00000000
_BEAT = (
    "INSERT INTO machines VALUES (%s, %s, %s, clock_timestamp()) ON CONFLICT (machine) "
    "DO UPDATE SET nodes = excluded.nodes, version = excluded.version, seen = excluded.seen"
)
_SEEN = f"SELECT machine, version FROM machines WHERE seen > clock_timestamp() - interval '{SEEN_S} s' ORDER BY machine"
_WAITING = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s::bigint::oid "
    "AND objid = to_regclass(%s)::oid AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def holder(machine: str) -> str:
    """How an owner's row names this process on that machine."""
    return f"{machine}, {process_name().rpartition(', ')[2]}"


def machine_of(holder: str) -> str:
    return holder.rpartition(", ")[0]


@attrs.frozen
class SeatRow:
    """``machine`` has the node, or had it last. ``leased``: its lease has not run out. ``serves``: clients can use it."""

    node: int
    machine: str
    leased: bool
    serves: bool
    about: Mapping[str, Any]


@attrs.frozen
class ClusterView:
    """``machines``: those that are there, with their versions."""

    machines: Mapping[str, str]
    seats: list[SeatRow]

    def had_by(self, machine: str) -> list[int]:
        return [seat.node for seat in self.seats if seat.leased and seat.machine == machine]


def others_have_fewer(address: Address, count: int, machine: str, session: OwnerSession) -> bool:
    """Whether another machine, but the one that has the node or had it last, has fewer nodes than this one. Raises
    StorageError."""
    last = machine_of(session.look().holder)
    had = [machine_of(holder) for _, _, leased, holder in session.read(owners_of(address, count)) if leased]
    others = {name for name, _ in session.read(_SEEN)} - {machine, last}
    return any(had.count(other) < had.count(machine) for other in others)


def refuse_several(database: PostgresDatabase) -> None:
    """For a broker alone. Raises ConfigError, StorageError."""
    for (count,) in database.read("SELECT value FROM meta WHERE key = %s", (_SEATS,)):
        raise ConfigError(_number_message(database.address, int(count)))


def _number_message(address: Address, count: int) -> str:
    how = f"with --nodes {count}" if count > 1 else "without --nodes"
    return (
        f"Start the broker {how}: the catalogue in {address.place()}, schema {address.schema}, is that of {count} "
        f"{'nodes' if count > 1 else 'node'}, a number that is fixed at the first start."
    )


class ClusterSession:
    def __init__(self, address: Address, answer_s: float) -> None:
        """Connects. Raises StorageError."""
        self._address = address
        self._count = 0
        self._answer_s = answer_s
        with self._reaching():
            self._connection = connect(address, "broker-machine")
            self._connection.answer_s = answer_s

    def close(self) -> None:
        self._connection.close()

    def prepare(self, count: int, cluster_id: str, secret: str) -> None:
        """Make the cluster, or look whether it is that of so many nodes. ``cluster_id`` and ``secret``, the nodes' password: of a
        new one. Raises ConfigError, StorageError."""
        assert 1 < count <= MOST_NODES, count
        address = self._address
        OwnerSession(address, self._answer_s).close()
        PostgresDatabase(address).close()  # makes the tables, and looks whether the server can be used
        with self._reaching(), self._connection.transaction():
            self._lock_making()
            found = self._read("SELECT value FROM meta WHERE key = %s", (_SEATS,))
            used = self._read("SELECT epoch FROM owner") != [(0,)]
            known = int(found[0][0]) if found else 1 if used else count
            if known != count:
                raise ConfigError(_number_message(address, known))
            put = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT DO NOTHING"
            self._connection.execute(put, (_SEATS, str(count)))
            self._connection.execute(put, (_DIVIDED, str(count)))
            self._connection.execute(put, ("cluster_id", cluster_id))
            self._connection.execute(put, (SECRET, secret))
        for node in range(1, count):
            one = attrs.evolve(address, node=node)
            OwnerSession(one, self._answer_s).close()
            with self._reaching(), connect(one, "broker-machine") as connection:
                migrate(one, connection)
        self._count = count

    def join(self, machine: str, address: str, version: str) -> int | None:
        """The number of the machine with this address, which is there from now on. None: another one has the address, and is
        there. After ``prepare``."""
        with self._reaching(), self._connection.transaction():
            self._lock_making()
            found = self._read("SELECT number, machine FROM machine_numbers WHERE address = %s", (address,))
            there = dict(self._read(_SEEN))
            if found and found[0][1] != machine and found[0][1] in there:
                return None
            if found:
                number = int(found[0][0])
                self._connection.execute(
                    "UPDATE machine_numbers SET machine = %s WHERE address = %s", (machine, address)
                )
            else:
                ((number,),) = self._read(
                    "INSERT INTO machine_numbers SELECT %s, coalesce(max(number) + 1, 0), %s FROM machine_numbers "
                    "RETURNING number",
                    (address, machine),
                )
            self._connection.execute(_BEAT, (machine, self._count, version))
        return int(number)

    def beat(self, machine: str, version: str) -> ClusterView:
        """This machine is there; what the cluster looks like. After ``prepare``."""
        with self._reaching(), self._connection.pipeline():
            self._connection.execute("SET synchronous_commit = off")  # a lost row is written again in a second
            self._connection.execute(_BEAT, (machine, self._count, version))
        machines = dict(self._read(_SEEN))
        rows = self._read(
            f"SELECT owners.node, holder, leased, leased AND nodes.epoch IS NOT NULL, coalesce(about, '{{}}')::json "
            f"FROM ({owners_of(self._address, self._count)}) AS owners "
            "LEFT JOIN nodes ON nodes.node = owners.node AND nodes.epoch = owners.epoch ORDER BY owners.node"
        )
        return ClusterView(machines, [SeatRow(node, machine_of(who), *others) for node, who, *others in rows])

    def leave(self, machine: str) -> None:
        """This machine takes no nodes any more."""
        with self._reaching():
            self._connection.execute("DELETE FROM machines WHERE machine = %s", (machine,))
            self._connection.execute("DELETE FROM machines WHERE seen < clock_timestamp() - interval '1 day'")

    def somebody_waits_for(self, node: int) -> bool:
        """Whether a standby would take the node at once."""
        table = f"{attrs.evolve(self._address, node=node).own_schema}.owner"
        ((waiting,),) = self._read(_WAITING, (LOCK_CLASS, table))
        return int(waiting) > 0

    def begin_move(self) -> bool:
        """Whether this machine may move a node: one machine at a time, until ``end_move`` or the end of the connection."""
        ((mine,),) = self._read("SELECT pg_try_advisory_lock(%s)", (self._move,))
        return bool(mine)

    def end_move(self) -> None:
        self._read("SELECT pg_advisory_unlock(%s)", (self._move,))

    def _lock_making(self) -> None:
        key = _MAKE + zlib.crc32(self._address.schema.encode())
        self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (key,))

    @property
    def _move(self) -> int:
        return _MOVE + zlib.crc32(self._address.schema.encode())

    def _read(self, text: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._reaching():
            return self._connection.execute(text.encode(), values).fetchall()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise StorageError(f"{self._address.place()}: {self._address.without_secrets(error)}") from error
