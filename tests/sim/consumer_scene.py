"""A consumer group whose coordinator assigns the partitions (KIP-848), in a simulation."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from broker.kafka.groups.consumer.rows import assignment_row, decode_member
from broker.kafka.groups.coordinated import member_row
from broker.kafka.groups.kinds import KIND, prefix_of
from tests.sim.clients.consumer import ConsumerMember
from tests.sim.consumer_ledger import ConsumerLedger, Partition
from tests.sim.history import History
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.host import Host

GROUP = "consumers"
# After the last fault, each partition has its owner within this time.
_SETTLED_S = 40.0


class ConsumerScene:
    """``partitions``: of topics that are there all the time."""

    def __init__(
        self, world: World, host: "Host", history: History, rng: Any, partitions: Collection[Partition]
    ) -> None:
        self._world = world
        self._host = host
        self._history = history
        session_s, rebalance_s = rng.choice((1.0, 3.0)), rng.choice((0.7, 3.0))
        host.settings |= {
            "group_consumer_min_heartbeat_interval_ms": 1,
            "group_consumer_heartbeat_interval_ms": 300,
            "group_consumer_min_session_timeout_ms": 1,
            "group_consumer_session_timeout_ms": int(session_s * 1000),
        }
        ledger = self.ledger = ConsumerLedger(world, partitions)
        ledger.stored = self._stored
        ledger.topic_names = self._topic_names
        ledger.is_settled = self._is_settled
        self.members = [
            ConsumerMember(
                f"consumer-{n}",
                world,
                host.fabric,
                history,
                ledger=ledger,
                group=GROUP,
                session_s=session_s,
                rebalance_s=rebalance_s,
            )
            for n in range(rng.randrange(2, 5))
        ]

    # -- the broker's state -------------------------------------------------------------------------------------------------

    def _topic_names(self) -> Mapping[object, str]:
        return {row.topic_id: name for name, row in self._host.tables.topics.items()}

    def _stored(self, member_id: str) -> tuple[int, Collection[Partition]] | None:
        documents, prefix = self._host.tables.documents, prefix_of(GROUP)
        metadata = documents.get((KIND, prefix + member_row(member_id)))
        assignment = documents.get((KIND, prefix + assignment_row(member_id)))
        if metadata is None or assignment is None:
            return None
        member = decode_member(GROUP, member_id, metadata, assignment)
        names = self._topic_names()
        owned = [
            (names[topic_id], number)
            for assigned in (member.assigned, member.revoking)
            for topic_id, numbers in assigned.items()
            for number in numbers
        ]
        return member.epoch, owned

    def _is_settled(self) -> bool:
        """Each partition has an owner, and the group is at rest."""
        server = self._host.server
        entry = None if server is None else server.kafka.groups._registry._entries.get(GROUP)
        state = "none" if entry is None else entry.group.state_name
        owned = [partition for member in self.members for partition in member.owned]
        if state == "Stable" and sorted(owned) == sorted(self.ledger.partitions):
            return True
        waiting_s = self._world.now - self.members[0].quiet_since
        if self._history.hurried and waiting_s > _SETTLED_S:
            raise Violation(f"consumer group: {state} with {sorted(owned)} after {waiting_s:.1f} s without faults")
        return False
