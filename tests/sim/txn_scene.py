"""Transactions in a simulation: a topic of their own, its writers and readers, and the invariants at the end."""

from typing import TYPE_CHECKING, Any

from tests.sim.clients.client import Client
from tests.sim.clients.txn_producer import TxnProducer
from tests.sim.clients.txn_reader import TxnReader
from tests.sim.clients.zombie import Zombie
from tests.sim.history import History
from tests.sim.ledger import Ledger
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.host import Host

TOPIC = "transactions"
PARTITIONS = 3


class TxnScene:
    """``clock_jumps``: among the faults of this simulation."""

    def __init__(self, world: World, host: "Host", history: History, rng: Any, clock_jumps: bool) -> None:
        common = (world, host.fabric, history)
        ledger = self.ledger = Ledger(world)
        ledger.clock_jumps = clock_jumps
        ledger.stored = self._stored
        self._tables = host.tables
        partitions = [(TOPIC, number) for number in range(PARTITIONS)]
        self.zombie = Zombie("zombie", *common, ledger=ledger, partitions=partitions)
        timeout_ms = rng.choice((1_000, 3_000, 20_000))
        # With many aborts, a crash finds entries in the indexes of aborted transactions that are not synced.
        self.aborts = world.rng("aborts").random() < 0.3
        several = [rng.choice((1, 1, 3)) for _ in range(rng.randrange(1, 3))]
        self.producers = [
            TxnProducer(
                f"transactional-{n}",
                *common,
                ledger=ledger,
                partitions=partitions,
                identities=identities,
                version_2=identities == 1 and rng.random() < 0.6,
                transactions=rng.randrange(2, 10),
                timeout_ms=timeout_ms,
                mortality=rng.choice((0.0, 0.01, 0.05)),
                # An abandoned transaction is ended by the wall clock: if that may be set back, it takes for ever.
                deserts=n == 1 and not clock_jumps,
                commits=0.2 if self.aborts else 0.8,
                on_death=self.zombie.haunt,
            )
            for n, identities in enumerate(several)
        ]
        patience_s = timeout_ms / 1000 + 10.0
        self.readers = [TxnReader("txn-reader", *common, ledger=ledger, partitions=partitions, patience_s=patience_s)]
        self.clients: list[Client] = [*self.producers, self.zombie, *self.readers]

    def _stored(self, group: str) -> int:
        row = self._tables.offsets.get((group, TOPIC, 0))
        return -1 if row is None else row.offset
