"""Clients of a cluster: each request goes to the node that it concerns, over a connection to each node."""

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.cluster.nodes import coordinator_of, owner_of, transaction_key
from protocol.kafka.api_keys import ApiKey
from tests.sim.clients.client import NEWEST, Call, Client
from tests.sim.clients.member import Member
from tests.sim.clients.offsets import Keeper
from tests.sim.clients.producer import IdempotentProducer
from tests.sim.clients.txn_producer import TxnProducer
from tests.sim.clients.txn_reader import TxnReader
from tests.sim.clients.zombie import Zombie
from tests.sim.ledger import Partition

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterSimulation

# So long after the last fault, nothing excuses an error.
SETTLING_S = 30.0
_OF_GROUPS = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.TXN_OFFSET_COMMIT,
    }
)


def place_for(call: Call, count: int) -> int | None:
    """The place of the node that has to be asked. None: any."""
    fields = call.fields
    if call.key == ApiKey.PRODUCE:
        topic = fields["topic_data"][0]
        return owner_of(topic["name"], topic["partition_data"][0]["index"], count)
    if call.key == ApiKey.FETCH:
        topic = fields["topics"][0]
        return owner_of(topic["topic"], topic["partitions"][0]["partition"], count)
    if call.key == ApiKey.LIST_OFFSETS:
        topic = fields["topics"][0]
        return owner_of(topic["name"], topic["partitions"][0]["partition_index"], count)
    if call.key in _OF_GROUPS:
        return coordinator_of(fields["group_id"], count)
    if call.key == ApiKey.END_TXNS:
        return coordinator_of(transaction_key(fields["members"][0].transactional_id), count)
    transactional_id = fields.get("transactional_id") or fields.get("v3_and_below_transactional_id")
    return None if transactional_id is None else coordinator_of(transaction_key(transactional_id), count)


class Line(Client):
    """One client's connection to one node. It asks what the client gives it."""

    def __init__(self, client: "Routed", simulation: "ClusterSimulation", place: int) -> None:
        super().__init__(f"{client.name}@{place}", client.world, client.fabric, client.history)
        self.in_flight_most = client.in_flight_most
        self.calls: deque[Call] = deque()
        self._client = client
        self._simulation = simulation
        self._place = place

    @property
    def port(self) -> int:  # type: ignore[override]
        return self._simulation.port(self._place, self.rng)

    def give(self, call: Call) -> None:
        self.calls.append(call)
        self._idle_until = 0.0

    def next_call(self) -> Call | None:
        return self.calls.popleft() if self.calls else None

    def answered(self, call: Call, body: Any) -> None:
        self._client.hear(call, body, self.life)

    def lost(self, call: Call) -> None:
        self._client.miss(call)


class Routed(Client):
    """Comes before a client's class. What is there of a connection is unused; the connections are ``lines``."""

    _life = 0
    lines: Sequence[Line] = ()

    def attach(self, simulation: "ClusterSimulation") -> None:
        self._count = len(simulation.hosts)
        self.lines = [Line(self, simulation, place) for place in range(self._count)]
        self._connect_at = math.inf

    def at_one_node(self, keys: Sequence[Partition]) -> Sequence[Partition]:
        if not keys:
            return keys
        owners = {key: owner_of(*key, self._count) for key in keys}
        chosen = owners[self.rng.choice(list(keys))]
        return [key for key in keys if owners[key] == chosen]

    @property
    def life(self) -> int:
        """Of the node that has answered last."""
        return self._life

    @property
    def is_current(self) -> bool:
        return True  # whatever a node says that has been replaced has to be true

    @property
    def strict(self) -> bool:
        return self.quiet and self.world.now > self.quiet_since + SETTLING_S

    # -- Actor --------------------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        now = self.world.now
        if self.closed or now < max(self.paused_until, self._idle_until):
            return False
        return len(self.pending) < self.in_flight_most

    def deadline(self) -> float | None:
        moment = max(self.paused_until, self._idle_until)
        if self.closed or moment <= self.world.now or moment == math.inf:
            return None
        return moment if len(self.pending) < self.in_flight_most else None

    def step(self) -> None:
        call = self.next_call()
        if call is None:
            if self._idle_until <= self.world.now:
                self._idle_until = math.inf
            return
        if call.fields.get("require_stable"):
            call.exactly = NEWEST[call.key]  # older versions cannot ask for that
        place = place_for(call, self._count)
        self.pending.append(call)
        self.lines[self.rng.randrange(self._count) if place is None else place].give(call)

    def hear(self, call: Call, body: Any, life: int) -> None:
        self._life = life
        self.pending.remove(call)
        self._idle_until = 0.0
        self.answered(call, body)

    def miss(self, call: Call) -> None:
        self.pending.remove(call)
        self._idle_until = 0.0
        self.lost(call)

    def be_quiet(self) -> None:
        super().be_quiet()
        for line in self.lines:
            line.be_quiet()

    def disconnect(self, *, rudely: bool = False) -> None:
        for line in self.lines:
            line.disconnect(rudely=rudely)
            while line.calls:
                self.miss(line.calls.popleft())
        self.idle(0.1 + self.rng.random() * 0.2)

    def close(self) -> None:
        super().close()
        for line in self.lines:
            line.close()


class RoutedProducer(Routed, IdempotentProducer):
    pass


class RoutedMember(Routed, Member):
    pass


class RoutedKeeper(Routed, Keeper):
    def _after(self, offset: int) -> int:
        return offset + 1 + self.rng.randrange(1_000_000)  # no two of a group commit the same


class RoutedTxnProducer(Routed, TxnProducer):
    """It may die while it waits for an answer."""

    _dies_at = math.inf

    def ready(self) -> bool:
        return super().ready() or (bool(self.pending) and self.world.now >= self._dies_at)

    def deadline(self) -> float | None:
        moments = [at for at in (super().deadline(), self._dies_at) if at is not None and at > self.world.now]
        return min(moments, default=None) if not self.closed else None

    def step(self) -> None:
        if self.pending:
            self._dies_at = math.inf
            if not self.quiet:
                self._die()
            return
        super().step()
        self._dies_at = math.inf
        deadly = self.pending and self.pending[0].key in (ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT)
        if deadly and self._mortality and self.rng.random() < 3 * self._mortality:
            self._dies_at = self.world.now + self.rng.random() * 0.3


class RoutedTxnReader(Routed, TxnReader):
    pass


class RoutedZombie(Routed, Zombie):
    pass
