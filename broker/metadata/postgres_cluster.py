"""Nodes on several machines, as their supervisors see them: how many there are, which machine has which, and who would take
one.

The number of nodes is fixed in the catalogue when a cluster starts for the first time (``meta``, key ``seats``); without that
key a catalogue is of one broker. Each machine writes the time into its row of ``machines``. Which machine has which node is in
the nodes' owner rows: their ``holder`` begins with the machine's name. A machine is numbered by its address, for good, so that
whoever has the address again is the same brokers to clients (``moved_id`` in cluster/nodes.py). Nothing here decides what may be
written; epochs do.

A machine should have as many nodes as its *weight* says in proportion to those of the others. One that is *drained*, which is a
word in its row, counts as one of weight 0: it gives its nodes away, and leaves free ones to others. The row goes with the
machine's supervisor, and so does the word.

A ``ClusterSession`` is one connection, for one thread. Its methods raise StorageError if the server cannot be reached; then
another one has to be made.

Tests: tests/durable/test_nodes_cluster.py.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

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
# For so long a standby leaves a free node to machines that should rather have it; and one on a drained machine.
_LEFT_S, _LEFT_BY_DRAINED_S = 2.0, 30.0
# Not the key that says among how many nodes partitions were divided last: that comes along with a catalogue that is moved here,
# where all of them are one node's.
SEATS = "seats"
# What `leader_epoch` in server/node_directories.py finds as it should be.
_DIVIDED = "nodes"
# The first keys of the locks under which a cluster is made or joined, and nodes move.
MAKE, _MOVE = 0x6D6E6F64_00000000, 0x6D6F7665_00000000
_BEAT = (
    "INSERT INTO machines (machine, nodes, version, weight, seen) VALUES (%s, %s, %s, %s, clock_timestamp()) "
    "ON CONFLICT (machine) DO UPDATE SET nodes = excluded.nodes, version = excluded.version, weight = excluded.weight, "
    "seen = excluded.seen"
)
_SEEN = (
    "SELECT machine, version, weight, drained FROM machines "
    f"WHERE seen > clock_timestamp() - interval '{SEEN_S} s' ORDER BY machine"
)
_DRAIN = "UPDATE machines SET drained = %s WHERE machine = %s"
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
class MachineRow:
    machine: str
    version: str
    weight: float
    drained: bool

    @property
    def share(self) -> float:
        """How many nodes it should have, in proportion to those of others."""
        return 0.0 if self.drained else self.weight


@attrs.frozen
class ClusterView:
    """``machines``: those that are there."""

    machines: list[MachineRow]
    seats: list[SeatRow]

    def had_by(self, machine: str) -> list[int]:
        return [seat.node for seat in self.seats if seat.leased and seat.machine == machine]

    def has_too_many(self, machine: str) -> bool:
        """Whether a node should move from this machine to another one: afterwards this one has still as many as that one, each in
        proportion to its share."""
        mine, count = share_of(machine, self.machines), len(self.had_by(machine))
        return count > 0 and any(
            (count - 1) * other.share >= (len(self.had_by(other.machine)) + 1) * mine
            for other in self.machines
            if other.machine != machine and other.share
        )


class Read(Protocol):
    def __call__(self, text: str, values: Sequence[object] = (), /) -> list[tuple[Any, ...]]: ...


def read_view(read: Read, address: Address, count: int) -> ClusterView:
    """What the cluster of so many nodes looks like. Raises what ``read`` raises."""
    rows = read(
        f"SELECT owners.node, holder, leased, leased AND nodes.epoch IS NOT NULL, coalesce(about, '{{}}')::json "
        f"FROM ({owners_of(address, count)}) AS owners "
        "LEFT JOIN nodes ON nodes.node = owners.node AND nodes.epoch = owners.epoch ORDER BY owners.node"
    )
    seats = [SeatRow(node, machine_of(who), *others) for node, who, *others in rows]
    return ClusterView([MachineRow(*row) for row in read(_SEEN)], seats)


def share_of(machine: str, machines: Sequence[MachineRow]) -> float:
    return next((each.share for each in machines if each.machine == machine), 1.0)


def drain(database: PostgresDatabase, machine: str, *, drained: bool) -> bool:
    """Whether there is such a machine. Raises Fenced, StorageError."""
    return database.write(lambda cursor: cursor.execute(_DRAIN, (drained, machine)).rowcount) > 0


def left_to_others_s(address: Address, count: int, machine: str, session: OwnerSession) -> float:
    """How long a standby on this machine leaves a free node to others: to one that has fewer nodes, in proportion to its share,
    but not to the one that had the node last; if this machine is drained, to any. Raises StorageError."""
    last = machine_of(session.look().holder)
    had = Counter(machine_of(holder) for _, _, leased, holder in session.read(owners_of(address, count)) if leased)
    machines = [MachineRow(*row) for row in session.read(_SEEN)]
    mine = share_of(machine, machines)
    others = [each for each in machines if each.machine != machine and each.share]
    if not mine and others:
        return _LEFT_BY_DRAINED_S
    less = (each for each in others if (had[each.machine] + 1) * mine < (had[machine] + 1) * each.share)
    return _LEFT_S if any(each.machine != last for each in less) else 0.0


def count_of(database: PostgresDatabase) -> int:
    """How many nodes the catalogue is of. Raises StorageError."""
    found = database.read("SELECT value FROM meta WHERE key = %s", (SEATS,))
    return int(found[0][0]) if found else 1


def check_count(database: PostgresDatabase, count: int) -> None:
    """For the owner of one of so many nodes. The number may have been changed while it stood by. Raises ConfigError,
    StorageError."""
    known = count_of(database)
    if known != count:
        raise ConfigError(_number_message(database.address, known))


def _number_message(address: Address, count: int) -> str:
    how = f"with --nodes {count}" if count > 1 else "without --nodes"
    return (
        f"Start the broker {how}: the catalogue in {address.place()}, schema {address.schema}, is that of {count} "
        f"{'nodes' if count > 1 else 'node'}, a number that only `broker cluster resize` changes."
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
            found = self._read("SELECT value FROM meta WHERE key = %s", (SEATS,))
            used = self._read("SELECT epoch FROM owner") != [(0,)]
            known = int(found[0][0]) if found else 1 if used else count
            if known != count:
                raise ConfigError(_number_message(address, known))
            put = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT DO NOTHING"
            self._connection.execute(put, (SEATS, str(count)))
            self._connection.execute(put, (_DIVIDED, str(count)))
            self._connection.execute(put, ("cluster_id", cluster_id))
            self._connection.execute(put, (SECRET, secret))
        for node in range(1, count):
            one = attrs.evolve(address, node=node)
            OwnerSession(one, self._answer_s).close()
            with self._reaching(), connect(one, "broker-machine") as connection:
                migrate(one, connection)
        self._count = count

    def join(self, machine: str, address: str, version: str, weight: float = 1.0) -> int | None:
        """The number of the machine with this address, which is there from now on. None: another one has the address, and is
        there. After ``prepare``."""
        with self._reaching(), self._connection.transaction():
            self._lock_making()
            found = self._read("SELECT number, machine FROM machine_numbers WHERE address = %s", (address,))
            there = {name for name, *_ in self._read(_SEEN)}
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
            self._connection.execute(_BEAT, (machine, self._count, version, weight))
        return int(number)

    def beat(self, machine: str, version: str, weight: float = 1.0) -> ClusterView:
        """This machine is there; what the cluster looks like. After ``prepare``."""
        with self._reaching(), self._connection.pipeline():
            self._connection.execute("SET synchronous_commit = off")  # a lost row is written again in a second
            self._connection.execute(_BEAT, (machine, self._count, version, weight))
        return read_view(self._read, self._address, self._count)

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
        key = MAKE + zlib.crc32(self._address.schema.encode())
        self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (key,))

    @property
    def _move(self) -> int:
        return _MOVE + zlib.crc32(self._address.schema.encode())

    def _read(self, text: str, values: Sequence[object] = (), /) -> list[tuple[Any, ...]]:
        with self._reaching():
            return self._connection.execute(text.encode(), values).fetchall()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise StorageError(f"{self._address.place()}: {self._address.without_secrets(error)}") from error
