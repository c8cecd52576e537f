"""A share group in a simulation: a topic of its own, who writes and who shares, and what must hold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.kafka.share.share_store import KIND, Key, decode
from tests.sim.clients.client import Client
from tests.sim.clients.producer import IdempotentProducer, Producer
from tests.sim.clients.sharer import ShareMember
from tests.sim.history import History
from tests.sim.share_ledger import ShareLedger
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.host import Host

TOPIC = "shared"
PARTITIONS = 2
GROUP = "sharers"
# After the last fault, and after the last record was written, everything is consumed within this time.
_CONSUMED_S = 60.0


class ShareScene:
    def __init__(self, world: World, host: "Host", history: History, rng: Any) -> None:
        self._world = world
        self._host = host
        self._history = history
        self._written_at: float | None = None
        common = (world, host.fabric, history)
        lock_s, limit = rng.choice((1.0, 2.0, 5.0)), rng.choice((2, 5, 25, 25))
        session_s = rng.choice((1.5, 6.0))
        host.settings |= {
            "group_share_min_record_lock_duration_ms": 1_000,
            "group_share_record_lock_duration_ms": int(lock_s * 1000),
            "group_share_delivery_count_limit": limit,
            "group_share_max_delivery_count_limit": 25,
            "group_share_min_heartbeat_interval_ms": 1,
            "group_share_heartbeat_interval_ms": 400,
            "group_share_min_session_timeout_ms": 1,
            "group_share_session_timeout_ms": int(session_s * 1000),
        }
        host.tables.configs[f"group:{GROUP}"] = {"share.auto.offset.reset": "earliest"}
        ledger = self.ledger = ShareLedger(world, history, TOPIC, PARTITIONS, lock_s, limit)
        ledger.stored = self._is_stored
        ledger.finished = self._is_finished
        partitions = [(TOPIC, number) for number in range(PARTITIONS)]
        self.producers: list[Producer] = [
            IdempotentProducer(
                "share-producer",
                *common,
                partitions=partitions,
                batches=rng.randrange(3, 12),
                acks=-1,
                in_flight=rng.randrange(1, 4),
                pace_s=rng.choice((0.02, 0.2)),
            )
        ]
        if rng.random() < 0.5:
            # A power loss takes its records, and other records get the offsets.
            self.producers.append(
                Producer(
                    "share-plain", *common, partitions=partitions, batches=rng.randrange(1, 6), acks=1, in_flight=1
                )
            )
        self.members = [
            ShareMember(f"sharer-{n}", *common, ledger=ledger, group=GROUP, session_s=session_s)
            for n in range(rng.randrange(1, 4))
        ]
        self.clients: list[Client] = [*self.producers, *self.members]

    # -- the broker's state -------------------------------------------------------------------------------------------------

    def _key(self, partition: int) -> Key | None:
        row = self._host.tables.topics.get(TOPIC)
        return None if row is None else Key(GROUP, row.topic_id.bytes, partition)

    def _is_stored(self, partition: int, offsets: Sequence[int]) -> bool:
        """Were the broker killed now, it would know that these are done with."""
        key = self._key(partition)
        row = None if key is None else self._host.tables.documents.get((KIND, key.text))
        if row is None:
            return False
        state = decode(row)
        return all(
            offset < state.start or any(first <= offset < end for first, end in state.done) for offset in offsets
        )

    def _is_finished(self) -> bool:
        """All is written, and nothing is left in the broker that anybody could get."""
        if not all(producer.done for producer in self.producers):
            return False
        if self._written_at is None:
            self._written_at = self._world.now
        if all(self._is_consumed(number) for number in range(PARTITIONS)):
            self.ledger.audit()
            return True
        waiting_s = self._world.now - max(self._written_at, self.members[0].quiet_since)
        if self._history.hurried and waiting_s > _CONSUMED_S:
            raise Violation(f"share group: records are still not consumed after {waiting_s:.1f} s without faults")
        return False

    def _is_consumed(self, number: int) -> bool:
        server, key = self._host.server, self._key(number)
        if server is None or key is None:
            return False
        share = server.kafka.share
        log = share.log((key.topic_id, key.partition))
        entry, row = share._entries.get(key), share._rows.get(key)
        if log is None or (entry is None and row is None):
            return False
        if entry is None or entry.partition is None:
            row = row if entry is None else entry.stored
            return row is not None and decode(row).start >= log.high_watermark
        return bool(entry.partition.is_idle) and entry.partition.end >= log.high_watermark

    # -- invariants ---------------------------------------------------------------------------------------------------------

    def check_idle(self, server: Any) -> None:
        """Every offset of a share partition is in one state."""
        for entry in list(server.kafka.share._entries.values()):
            if entry.partition is not None and not entry.lock.locked():
                entry.partition.check()

    def leftovers(self, server: Any) -> dict[str, Any]:
        share = server.kafka.share
        return {
            "share sessions": len(share.sessions),
            "acquired records": sum(
                entry.partition.in_flight_count for entry in share._entries.values() if entry.partition is not None
            ),
        }
