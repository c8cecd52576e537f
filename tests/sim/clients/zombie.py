"""Fenced producers that do not know it: their requests after their successor was let in must have no effect."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.sim.clients.client import Call, Client
from tests.sim.clients.txn_producer import VERSION_2, Identity, add_partitions, error_of, produce, send_offset
from tests.sim.ledger import Ledger, Partition, Txn
from tests.sim.world import Violation


class Zombie(Client):
    def __init__(self, *args: Any, ledger: Ledger, partitions: Sequence[Partition]) -> None:
        super().__init__(*args)
        self._ledger = ledger
        self._partitions = list(partitions)
        self._calls: deque[Call] = deque()

    def haunt(self, identities: list[Identity], txn: Txn) -> None:
        """Their transaction has been ended, and other epochs have taken their place."""
        rng = self.rng
        for identity in identities:
            if identity.producer_id < 0:
                continue
            partition = rng.choice(self._partitions)
            values = [f"zombie {identity.transactional_id}/{txn.number}/{rng.random()}".encode()]
            ghost = self._ledger.begin(f"zombie {identity.transactional_id}")
            ghost.given_up()
            self._ledger.writing(ghost, partition, values)
            header = identity.header()
            calls = [
                produce(identity, partition, values, identity.sequences.get(partition, 0), self.world.now),
                add_partitions(identity, [partition]),
                Call(ApiKey.ADD_OFFSETS_TO_TXN, {**header, "group_id": f"of-{txn.name}"}),
                send_offset(identity, f"of-{txn.name}", self._partitions[0], 1_000_000),
                Call(ApiKey.END_TXN, {**header, "committed": True}),
                Call(ApiKey.END_TXN, {**header, "committed": False}),
            ]
            for call in calls[:4]:
                if rng.random() < 0.5:
                    call.exactly = VERSION_2.get(call.key, -1)
            self._calls.extend(rng.sample(calls, rng.randrange(1, len(calls) + 1)))
        self._idle_until = 0.0

    @property
    def done(self) -> bool:
        return not self._calls and not self.pending

    def next_call(self) -> Call | None:
        if not self._calls:
            return None
        return self._calls.popleft()

    def answered(self, call: Call, body: Any) -> None:
        if not error_of(call.key, body):
            raise Violation(f"{self.name}: {call.key.name} of a fenced producer was carried out: {call.fields}")
        if error_of(call.key, body) == ErrorCode.unknown_server_error:
            raise Violation(f"{self.name}: {call.key.name} is not understood")
