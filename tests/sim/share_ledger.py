"""Records of a share group in a simulation: each record's holder and its deadline, the promises, and the deliveries to come.

A record is known by its partition, its offset and its value: after a power loss the same offset may be given to another record.
Everything is known from the clients' ends of their connections, so what a member has is counted from when it has surely got it
until the broker may have taken it back.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import attrs

from tests.sim.fabric import Wire
from tests.sim.history import History
from tests.sim.world import Violation, World

# Partition, offset, value.
Record = tuple[int, int, bytes]


@attrs.define(eq=False)
class Sharer:
    """A member of the group during one share session."""

    name: str
    wire: Wire
    member_until: float  # the group may remove it then
    left: bool = False

    def is_sound(self, world: World) -> bool:
        """The broker must count on it: both ends have the connection, on which the session depends, and it is a member."""
        wire = self.wire
        return not (
            self.left or wire.broken or wire.broker_closed or wire.life != world.lives or world.now >= self.member_until
        )


@attrs.frozen
class _Hold:
    sharer: Sharer
    since: float  # the member knows
    until: float  # the lock may end


class ShareLedger:
    """``limit``: how often a record is delivered that nobody accepts."""

    def __init__(self, world: World, history: History, topic: str, partitions: int, lock_s: float, limit: int) -> None:
        self.topic = topic
        self.lock_s = lock_s
        self.stored: Callable[[int, Sequence[int]], bool] = lambda partition, offsets: True
        self.finished: Callable[[], bool] = lambda: False  # there is nothing left for anybody
        self._world = world
        self._history = history
        self._partitions = partitions
        self._limit = limit
        self._settled: dict[Record, float] = {}  # accepted or rejected records: the time since which that is known
        self._doubtful: set[Record] = set()  # perhaps
        self._asked: Counter[Record] = Counter()  # ... and not answered yet
        self._deliveries: Counter[Record] = Counter()  # how often, by the largest count that came
        self._unseen: Counter[int] = Counter()  # by partition: fetches whose answers were lost
        self._holds: dict[tuple[int, int], _Hold] = {}
        self.delivered_count = 0
        history.on_crash.append(self._crashed)

    # -- deliveries -------------------------------------------------------------------------------------------------------

    def delivered(self, sharer: Sharer, record: Record, count: int, sent_at: float) -> None:
        """``sharer`` has got the record for a fetch that was sent then."""
        partition, offset, value = record
        world, history = self._world, self._history.partition(self.topic, partition)
        where = f"{sharer.name}: {value[:40]!r} at {offset} of {history}"
        if sharer.wire.life <= history.lost_life:
            self._unseen[partition] += 1  # it may be gone
            return
        known = history.acked.get(offset)
        if known is not None and known != value:
            raise Violation(f"{where} was delivered; {known[:40]!r} was acknowledged there")
        if value not in history.sent:
            raise Violation(f"{where}: nobody ever sent it")
        settled_at = self._settled.get(record)
        if settled_at is not None and settled_at < sent_at:
            raise Violation(f"{where} was delivered, and had been acknowledged {sent_at - settled_at:.3f} s before")
        if not 1 <= count <= self._limit:
            raise Violation(f"{where} was delivered {count} times, of {self._limit}")
        hold = self._holds.get((partition, offset))
        if (
            hold is not None
            and hold.sharer is not sharer
            and hold.since <= sent_at
            and world.now < hold.until
            and hold.sharer.is_sound(world)
        ):
            raise Violation(f"{where} was delivered while {hold.sharer.name} had it")
        self._deliveries[record] = max(count, self._deliveries[record])
        self._holds[partition, offset] = _Hold(sharer, world.now, sent_at + self.lock_s)
        self.delivered_count += 1

    def missed(self, partitions: Iterable[int]) -> None:
        """The answer to a fetch was lost: records may have been delivered by it."""
        self._unseen.update(partitions)

    def held_until(self, sharer: Sharer, partition: int, offset: int) -> float:
        """For sure, if nothing is done about it; 0: perhaps not even now."""
        hold = self._holds.get((partition, offset))
        return hold.until if hold is not None and hold.sharer is sharer and sharer.is_sound(self._world) else 0.0

    # -- acknowledgements -------------------------------------------------------------------------------------------------

    def asking(self, sharer: Sharer, records: Iterable[Record], *, settles: bool, renews: bool) -> None:
        """The sharer acknowledges these. ``settles``: nobody is to get them any more."""
        for record in records:
            if not renews:
                self._let_go(sharer, record)
            if settles:
                self._asked[record] += 1

    def settled(self, sharer: Sharer, records: Sequence[Record]) -> None:
        """The broker says so."""
        for record in records:
            self._asked[record] -= 1
            history = self._history.partition(self.topic, record[0])
            if sharer.wire.life > history.lost_life:
                self._settled.setdefault(record, self._world.now)
            else:
                self._doubtful.add(record)
        if sharer.wire.life == self._world.lives:
            for partition in {record[0] for record in records}:
                offsets = [offset for number, offset, _ in records if number == partition]
                if not self.stored(partition, offsets):
                    raise Violation(
                        f"{sharer.name}: offsets {offsets} of {self.topic}-{partition} were acknowledged, and that is not stored"
                    )

    def renewed(self, sharer: Sharer, records: Iterable[Record], sent_at: float) -> None:
        for partition, offset, _ in records:
            hold = self._holds.get((partition, offset))
            if hold is not None and hold.sharer is sharer:
                self._holds[partition, offset] = _Hold(sharer, self._world.now, sent_at + self.lock_s)

    def refused(self, records: Iterable[Record], *, perhaps: bool = False) -> None:
        """``perhaps``: it may have happened, or will happen."""
        for record in records:
            self._asked[record] -= 1
            if perhaps:
                self._doubtful.add(record)

    def _let_go(self, sharer: Sharer, record: Record) -> None:
        hold = self._holds.get(record[:2])
        if hold is not None and hold.sharer is sharer:
            del self._holds[record[:2]]

    # -- the machine, and the end -----------------------------------------------------------------------------------------

    def _crashed(self, power: bool) -> None:
        self._holds.clear()
        if not power:
            return
        for record in list(self._settled):
            if record[1] >= self._history.partition(self.topic, record[0]).durable_end:
                # The log may have lost it, and then the producer sends it again.
                del self._settled[record]
                self._doubtful.add(record)

    def audit(self) -> None:
        """Nothing is left to be delivered: then every record has come to an end."""
        for number in range(self._partitions):
            for offset, value in sorted(self._history.partition(self.topic, number).acked.items()):
                record = number, offset, value
                if record in self._settled or record in self._doubtful or self._asked[record] > 0:
                    continue
                seen, unseen = self._deliveries[record], self._unseen[number]
                if seen + unseen < self._limit:
                    raise Violation(
                        f"share group: {value[:40]!r} at {offset} of {self.topic}-{number} is not delivered any more; it was "
                        f"delivered {seen} times, at most {unseen} times unseen, and never accepted"
                    )
