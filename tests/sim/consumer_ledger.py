"""The owners of the partitions of a consumer group with server-side assignment (KIP-848), as its members were told.

A member owns a partition from the answer that assigns it until it sends a heartbeat without it, leaves or is fenced, or until
its group may have fenced it because of its silence. This outlives the broker.
"""

from collections.abc import Callable, Collection, Mapping

import attrs

from tests.sim.world import Violation, World

Partition = tuple[str, int]
# A request of a lost connection may still be carried out within this time.
_LATE_S = 5.0


@attrs.define(eq=False)
class Owner:
    """A client as one member of the group, from when it joins until it leaves or is fenced."""

    name: str
    member_id: str
    epoch: int = 0
    member_until: float = 0.0  # the group may fence it then because it is silent
    revoke_by: float = float("inf")  # ... because it has not given up the revoked partitions
    unsure_until: float = 0.0  # a request of which it knows nothing may be carried out

    def is_sure(self, now: float) -> bool:
        """The group must count on it."""
        return self.unsure_until <= now < min(self.member_until, self.revoke_by)

    def lost(self, sent_at: float, now: float, rebalance_s: float) -> None:
        """The answer to a heartbeat."""
        self.unsure_until = now + _LATE_S
        self.revoke_by = min(self.revoke_by, sent_at + rebalance_s)


class ConsumerLedger:
    """``stored``: epoch and partitions of a member in the catalogue, also those that it is to give up; None for no member."""

    def __init__(self, world: World, partitions: Collection[Partition]) -> None:
        self.partitions = partitions
        self.stored: Callable[[str], tuple[int, Collection[Partition]] | None] = lambda member_id: None
        self.topic_names: Callable[[], Mapping[object, str]] = dict
        self.is_settled: Callable[[], bool] = lambda: True
        self.newest_epoch = 0  # that anybody was told
        self._world = world
        self._owners: dict[Partition, tuple[Owner, float]] = {}  # and since when it knows

    def told(self, owner: Owner, epoch: int, assigned: Collection[Partition] | None, sent_at: float) -> None:
        """The answer to the heartbeat that was sent then; None: the assignment is unchanged."""
        now = self._world.now
        if epoch < owner.epoch:
            raise Violation(f"{owner.name}: the member epoch is {epoch}, and was {owner.epoch}")
        owner.epoch = epoch
        self.newest_epoch = max(self.newest_epoch, epoch)
        for partition in assigned or ():
            other, since = self._owners.get(partition, (owner, now))
            if other is not owner and since <= sent_at and other.is_sure(now):
                raise Violation(f"{owner.name} is given {partition}, which {other.name} has not given up")
            if partition not in self._owners or other is not owner:
                self._owners[partition] = (owner, now)
        if owner.is_sure(now):
            self._check_stored(owner, epoch, assigned)

    def _check_stored(self, owner: Owner, epoch: int, assigned: Collection[Partition] | None) -> None:
        """If the broker were killed now, it would still know its answers."""
        row = self.stored(owner.member_id)
        if row is None:
            raise Violation(f"{owner.name} was told that it is a member, and that is not stored")
        if row[0] < epoch:
            raise Violation(f"{owner.name} was told the epoch {epoch}; {row[0]} is stored")
        if row[0] == epoch and assigned is not None and not set(assigned) <= set(row[1]):
            raise Violation(f"{owner.name} was given {sorted(assigned)}; {sorted(row[1])} is stored")

    def given_up(self, owner: Owner, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if self._owners.get(partition, (None, 0.0))[0] is owner:
                del self._owners[partition]

    def gone(self, owner: Owner) -> None:
        """It is no member any more, as far as it knows."""
        owner.member_until = 0.0
        self.given_up(owner, list(self._owners))

    def owner(self, partition: Partition) -> Owner | None:
        return self._owners.get(partition, (None, 0.0))[0]
