"""Which node owns what: the nodes are processes that share a catalogue, and the records of each are in a directory of its own.

They are on one machine, or each on one of several; then no node sees the directory of another.

Who owns a partition or coordinates a group follows from its name and the number of nodes, so nobody has to be asked. If a node
dies, it is started again, and has what it had; if the number of nodes changes between two starts, directories are moved before
nodes start (``server/node_directories.py``).

Tests: tests/cluster/test_nodes.py.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import attrs

from broker.config.listener import NODES_LISTENER
from broker.errors import ConfigError, StorageError
from broker.metadata.catalogue import Catalogue
from broker.metrics import HistogramCell, names
from broker.runtime.clock import SystemClock
from broker.runtime.disk import Disk
from broker.runtime.threads import Event, Lock, RLock, run_aside
from protocol.kafka.api_keys import ApiKey

# How long a change of a topic waits until the other nodes have it.
SETTLE_S = 10.0
# The directory of the nodes' directories. No partition has such a name.
NODES = "nodes"
# In the catalogue: the leader epoch, and the number of nodes for which it was raised last.
_EPOCH, _NODES = "leader_epoch", "nodes"
# The kind of documents that tell a node what to do with its partitions (``kafka/share/other_nodes.py``).
ORDERS = "share-orders"
_LOCK = ".topics-lock"
_LOCK_WAIT_S = 30.0
_AGAIN_S = 0.005


def directory_of(data_dir: str, node: int) -> str:
    return f"{data_dir}/{NODES}/{node}"


def owner_of(topic: str, partition: int, count: int) -> int:
    """The place among ``count`` nodes, from 0 on, that owns the partition."""
    return (zlib.crc32(topic.encode()) + partition) % count


def coordinator_of(key: str, count: int) -> int:
    """The place of the node that coordinates this group or transactional id. Of ids with braces only what is between the first
    pair counts, so that ids can be kept together."""
    opening = key.find("{")
    closing = key.find("}", opening + 1)
    if 0 <= opening < closing - 1:
        key = key[opening + 1 : closing]
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % count


def transaction_key(transactional_id: str) -> str:
    """What ``coordinator_of`` takes for a transactional id: without braces, what is before its first slash. So the producers of a
    job, which name themselves ``job/task``, have one coordinator, which can end all their transactions by one decision."""
    before, slash, _ = transactional_id.partition("/")
    return before if slash and before and "{" not in transactional_id else transactional_id


def leader_epoch(catalogue: Catalogue, count: int) -> int:
    """The leader epoch of all partitions among ``count`` nodes: a higher one each time that partitions have moved, because
    clients do not believe what is told about a leader in an epoch that they know already. Raises StorageError, and ConfigError
    if a node has orders: nobody knows which of the others would have to carry them out."""
    epoch = int(catalogue.meta(_EPOCH) or 0)
    was = int(catalogue.meta(_NODES) or 1)
    if was != count:
        if any(True for _ in catalogue.load_documents(ORDERS)):
            raise ConfigError(
                f"Start with --nodes {was} once more before you change the number: offsets of a share group were changed that a "
                "node has not heard of yet."
            )
        epoch += 1
        catalogue.set_meta(_EPOCH, str(epoch))
        catalogue.set_meta(_NODES, str(count))
    return epoch


@attrs.frozen
class Node:
    """``node_id``: as clients know it. On several machines it names the machine, too, so that a node which has moved is another
    broker to them: clients compare ids and not addresses. ``endpoints``: host and port by the listener's name. ``epoch``: higher
    for each process that has had the node's place, where an earlier one may still run: on several machines, of which ``machine``
    is the one's name that has the node."""

    node_id: int
    endpoints: Mapping[str, tuple[str, int]]
    rack: str | None = None
    epoch: int = 0
    machine: str | None = None


def node_of(about: Mapping[str, Any]) -> Node:
    """From what a node has told the others about itself, as JSON has it."""
    endpoints = {name: (str(host), int(port)) for name, (host, port) in about["endpoints"].items()}
    return Node(int(about["node_id"]), endpoints, about["rack"], int(about.get("epoch", 0)), about.get("machine"))


def moved_id(first_id: int, machine: int, place: int, count: int) -> int:
    """The id of the node at this place while it is on this machine: machines are numbered from 0 on."""
    return first_id + machine * count + place


class PartitionLeader(NamedTuple):
    """``node_id`` and ``epoch`` are those of the last one if there is none now."""

    node_id: int
    epoch: int
    is_there: bool = True


class Settling(Protocol):
    def settle(self, timeout_s: float, node: int) -> bool: ...

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        """The number of the catalogue's last change, and which topics have changed since that of number ``since``. None: that is
        not known any more. Raises StorageError."""


class Held(Protocol):
    def close(self) -> None: ...


@attrs.frozen
class MachineNodes:
    """One of several machines. ``nodes``: the places of those that it has; ``serving``: of those that clients can use."""

    machine: str
    version: str
    weight: float
    drained: bool
    nodes: list[int]
    serving: list[int]


class Machines(Protocol):
    """The machines among which nodes are divided, in the catalogue. Methods raise StorageError."""

    def machines(self) -> list[MachineNodes]:
        """Those that are there."""

    def drain(self, machine: str, *, drained: bool) -> bool:
        """Whether there is such a machine."""


class Pinning(Protocol):
    """A backup that all nodes pin together (``storage/backup/together.py``)."""

    def moment(self) -> None: ...

    def staged(self) -> None: ...


# The mechanism and the names by which nodes log in with each other.
MECHANISM = "SCRAM-SHA-256"
SECRET_BYTES = 32


def user_of(place: int) -> str:
    return f"node-{place}"


class Link(Protocol):
    """A connection to another node, over Kafka's protocol. For one thread. Methods raise BrokerError; after that, the link
    is of no use any more."""

    def open(self) -> None: ...

    def ask(self, key: ApiKey, version: int, fields: Mapping[str, Any], /) -> Any:
        """Send a request and wait for its answer. Without an answer its outcome is unknown."""

    def close(self) -> None: ...


class Nodes:
    """One node's view. Any thread may read it."""

    def __init__(
        self,
        place: int,
        count: int,
        first_id: int,
        data_dir: str,
        disk: Disk,
        shared: Settling,
        secret: str = "",
        link: Callable[[tuple[str, int]], Link] | None = None,
        lock_topics: Callable[[float], Held] | None = None,
        epoch: int = 0,
        node_id: int | None = None,
        pin: Callable[[str, str], AbstractContextManager[Pinning]] | None = None,
        machines: Machines | None = None,
    ) -> None:
        """``place`` of this node, from 0 on; node ids begin with ``first_id``. ``data_dir``: of all nodes. ``secret``: the
        password by which nodes log in with each other; never shown. ``link``: to the node whose listener for nodes is at
        this address. ``lock_topics``: of nodes on several machines, waits so many s for the lock; None: it is a file, as the
        directories of all nodes are here. ``node_id``: this node's; None: the one that follows from its place. ``pin``: begins a
        backup of all nodes, from its id and the directory that its files are pinned in; None: they have no disk in common.
        ``machines``: of nodes on several."""
        assert 0 <= place < count, (place, count)
        self.place = place
        self.epoch = epoch  # as ``Node.epoch``
        self.machines = machines
        self.count = count
        self.first_id = first_id
        self.node_id = first_id + place if node_id is None else node_id
        # By place. Both are replaced as a whole when nodes come and go.
        self.living: Mapping[int, Node] = {}
        self._known = {each: Node(first_id + each, {}) for each in range(count)} | {
            place: Node(self.node_id, {}, epoch=epoch)
        }
        self.secret = secret
        self.pin = pin
        self._link = link
        self._data_dir = data_dir
        self._disk = disk
        self._shared = shared
        self.apart = lock_topics is not None  # each node makes and removes its own directories
        self._lock_topics = self._lock_file if lock_topics is None else lock_topics
        self._lock = RLock()
        self._depth = 0  # guarded by it: a change may be a part of a larger one
        self._pause = Event()
        self._settling = Lock()  # guards what follows
        self.settle_seconds = HistogramCell(names.CLUSTER_SETTLE_SECONDS.bounds)
        self._is_settling = False
        self._waiting: list[Callable[[], object]] = []

    def found(self, living: Mapping[int, Node]) -> None:
        """These nodes are there now, by place."""
        self._known = {**self._known, **living}
        self.living = living

    def known(self, place: int) -> Node:
        """The node at this place, as it was when it was there last."""
        return self._known[place]

    @property
    def node_ids(self) -> list[int]:
        """Of all nodes, whether they are there now or not, by place."""
        return [self._known[place].node_id for place in range(self.count)]

    def link(self, place: int) -> tuple[tuple[str, int], Link] | None:
        """A new link to the node at this place, not open yet, and the address to which it leads. None: the node is not there
        now."""
        address = self.address(place)
        if address is None or self._link is None:
            return None
        return address, self._link(address)

    def address(self, place: int) -> tuple[str, int] | None:
        node = self.living.get(place)
        return None if node is None else node.endpoints.get(NODES_LISTENER)

    def place_of_owner(self, topic: str, partition: int) -> int:
        """The place of the node that owns it."""
        return owner_of(topic, partition, self.count)

    def place_of(self, key: str) -> int:
        """The place of the node that coordinates this group or transactional id."""
        return coordinator_of(key, self.count)

    def epoch_of(self, user: str) -> int:
        """The epoch of the node that logs in by this name, as far as is known."""
        return next((node.epoch for place, node in self.living.items() if user == user_of(place)), 0)

    def is_user(self, name: str) -> bool:
        """Whether a node logs in by this name."""
        return any(name == user_of(place) for place in range(self.count))

    def has_partition(self, topic: str, partition: int) -> bool:
        return owner_of(topic, partition, self.count) == self.place

    @property
    def directories(self) -> list[str]:
        """Of all nodes, by place."""
        return [directory_of(self._data_dir, place) for place in range(self.count)]

    def directory_of(self, topic: str, partition: int) -> str:
        """The directory in which the partition's is."""
        return directory_of(self._data_dir, owner_of(topic, partition, self.count))

    def owner_of(self, topic: str, partition: int) -> Node | None:
        """The node that owns it. None: it is not there now."""
        return self.living.get(owner_of(topic, partition, self.count))

    def coordinates(self, key: str) -> bool:
        return coordinator_of(key, self.count) == self.place

    def coordinator_of(self, key: str) -> Node | None:
        """None: it is not there now."""
        return self.living.get(coordinator_of(key, self.count))

    @contextmanager
    def changing_topics(self) -> Iterator[None]:
        """Nobody else changes topics meanwhile, on no node. Raises StorageError."""
        with self._lock:
            lock = None if self._depth else self._lock_topics(_LOCK_WAIT_S)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if lock is not None:
                    lock.close()

    def _lock_file(self, wait_s: float) -> Held:
        for _ in range(int(wait_s / _AGAIN_S)):
            try:
                return self._disk.lock(f"{self._data_dir}/{_LOCK}")
            except BlockingIOError:
                self._pause.wait(_AGAIN_S)
        raise StorageError("Another node is changing topics, and has not come to an end")

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        """``Settling``."""
        return self._shared.changed_topics(since)

    def settle(self) -> bool:
        """Wait until each living node has in force what is in the catalogue now. False: one has not for a long time."""
        began = SystemClock.monotonic()
        try:
            return self._shared.settle(SETTLE_S, self.node_id)
        finally:
            with self._settling:
                self.settle_seconds.observe(SystemClock.monotonic() - began)

    def when_settled(self, call: Callable[[], object]) -> None:
        """``settle``, and then call this, on another thread. For any thread; it does not block."""
        with self._settling:
            self._waiting.append(call)
            if self._is_settling:
                return
            self._is_settling = True
        run_aside("nodes-settling", self._settle_waiting)

    def _settle_waiting(self) -> None:
        """Until nobody waits any more: those who have come meanwhile wait for the next answer together."""
        while True:
            with self._settling:
                calls, self._waiting = self._waiting, []
                if not calls:
                    self._is_settling = False
                    return
            try:
                self.settle()
            except StorageError:
                pass  # the process that has the catalogue is gone, and so is this one soon
            for call in calls:
                call()


@contextmanager
def changing(nodes: Nodes | None, catch_up: Callable[[], None]) -> Iterator[None]:
    """Change something of the catalogue that every node has in memory. Nobody else does meanwhile, on no node; ``catch_up``
    brings this node up to what the catalogue has. Afterwards the other nodes have the change in force. Of one node alone (None),
    nothing is done. The caller holds no lock that ``catch_up`` takes. Raises StorageError."""
    if nodes is None:
        yield
        return
    with nodes.changing_topics():
        catch_up()
        yield
        nodes.settle()
