"""Messages of Pulsar's topics in a simulation: the sent messages, the promises, and past and possible deliveries.

A ``LogLedger`` for each topic, a ``SubscriptionLedger`` for each subscription, a ``Member`` for each time that a consumer has
subscribed. Everything is known from the clients' ends of their connections. A connection that was lost at either end says
nothing any more about what the broker thinks of its consumer, so most rules ask whether a member is ``sound``.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import attrs

from tests.sim.fabric import Wire
from tests.sim.world import Violation, World

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
SINGLE_ACTIVE = (EXCLUSIVE, FAILOVER)


@attrs.define(eq=False)
class Sent:
    """A message that somebody has sent at least once."""

    value: bytes
    key: str = ""
    deliver_at_ms: int = 0
    attempts: int = 0
    promised: bool = False


class LogLedger:
    def __init__(self, world: World, topic: str) -> None:
        self.world = world
        self.topic = topic
        self.sent: dict[bytes, Sent] = {}
        self.promised: dict[int, bytes] = {}  # by offset: these survive everything
        self.writers: list[Callable[[], bool]] = []  # each: whether it has finished
        self._seen: dict[int, tuple[int, bytes]] = {}  # by offset: the life of the broker, and the payload
        # Whether these bytes are on the disk, in a file of the topic's log.
        self.would_survive: Callable[[bytes], bool] = lambda data: True

    @property
    def finished(self) -> bool:
        return all(finished() for finished in self.writers)

    def sending(self, message: Sent) -> None:
        self.sent.setdefault(message.value, message).attempts += 1

    def promise(self, offset: int, value: bytes, who: str) -> None:
        """The writer was told so."""
        known = self.promised.get(offset)
        if known is not None and known != value:
            raise Violation(f"{who}: {value[:40]!r} is promised at {offset} of {self.topic}, and so is {known[:40]!r}")
        if not self.would_survive(value):
            raise Violation(f"{who}: {value[:40]!r} at {offset} of {self.topic} is promised, and not on the disk")
        self.promised[offset] = value
        self.sent[value].promised = True

    def seen(self, offset: int, value: bytes, who: str, life: int) -> Sent:
        """Somebody reads it."""
        message = self.sent.get(value)
        if message is None:
            raise Violation(f"{who}: nobody ever sent what is at {offset} of {self.topic}: {value[:60]!r}")
        promised = self.promised.get(offset)
        if promised is not None and promised != value:
            raise Violation(f"{who}: at {offset} of {self.topic} is {value[:40]!r}; {promised[:40]!r} was promised")
        seen_in, before = self._seen.get(offset, (-1, b""))
        if seen_in == life and before != value:
            raise Violation(f"{who}: at {offset} of {self.topic} is {value[:40]!r}, and was {before[:40]!r}")
        self._seen[offset] = (life, value)
        return message


@attrs.define(eq=False)
class Member:
    """A consumer, from a successful SUBSCRIBE to the end of its connection or its CLOSE_CONSUMER."""

    name: str
    world: World
    wire: Wire
    joined_at: float
    left: bool = False
    granted: int = 0  # permits
    got: int = 0  # messages
    holds: dict[int, Sent] = attrs.Factory(dict)  # entries by offset, not acknowledged
    acked: set[int] = attrs.Factory(set)  # sent, at least
    asks: int = 0  # for all that it has, perhaps with messages in flight
    asked: Counter[int] = attrs.Factory(Counter)  # for single entries
    turns: Counter[int] = attrs.Factory(Counter)  # of an entry: how often it has come, and gone to another consumer
    newest: dict[str, int] = attrs.Factory(dict)  # of each key
    position: int = -1  # of the last delivery

    def take_turn(self, entry: int) -> bool:
        """The entry comes, or another is given it. False: it had no reason to."""
        self.turns[entry] += 1
        return self.turns[entry] <= 1 + self.asks + self.asked[entry]

    @property
    def sound(self) -> bool:
        """Both ends have the connection, so the broker must count on it."""
        wire = self.wire
        return not (self.left or wire.broken or wire.broker_closed or wire.life != self.world.lives)


class SubscriptionLedger:
    """``early_most_ms``: how much too early delayed messages may come."""

    def __init__(self, world: World, log: LogLedger, name: str, kind: int, *, early_most_ms: int) -> None:
        self.world = world
        self.log = log
        self.name = name
        self.kind = kind
        self._early_most_ms = early_most_ms
        self.members: list[Member] = []
        self.confirmed: dict[int, float] = {}  # entry -> when the broker said that it is durable
        self.confirmed_before = -1  # cumulative
        self.confirmed_before_at = 0.0
        self._holder: dict[int, Member] = {}  # the last member that got it
        self._redelivered: dict[tuple[int, int], int] = {}  # by life of the broker and entry: how often before
        self.ever: set[int] = set()  # delivered entries
        self.acked: set[int] = set()
        self.spans: dict[int, int] = {}  # entry -> how many messages
        self.mark_delete = -1
        self.deserted = False  # a consumer has left with its messages, in the second act

    def __str__(self) -> str:
        return f"{self.log.topic}/{self.name}"

    # -- members ------------------------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> None:
        self.members = [other for other in self.members if other.sound]
        if self.kind == EXCLUSIVE and self.members:
            raise Violation(f"{self}: {member.name} joins {self.members[0].name}, and there may be one")
        self.members.append(member)

    def others(self, member: Member) -> list[Member]:
        """Who goes on if it leaves."""
        return [other for other in self.members if other is not member and other.sound]

    def asked(self, member: Member, entries: Iterable[int] | None) -> None:
        """To be given these again, or all that it has."""
        if entries is None:
            member.asks += 1
            member.holds.clear()
        else:
            for entry in entries:
                member.asked[entry] += 1
                member.holds.pop(entry, None)

    def activated(self, member: Member) -> None:
        """From now on it is served, from the first unacknowledged entry on."""
        self.asked(member, None)
        member.position = -1

    # -- messages -----------------------------------------------------------------------------------------------------------

    def delivered(self, member: Member, entry: int, values: list[bytes], redeliveries: int, partly: bool) -> None:
        who = f"{self}: {member.name}"
        messages = [self.log.seen(entry + at, value, who, member.wire.life) for at, value in enumerate(values)]
        self.spans[entry] = len(values)
        if not partly and member.got >= member.granted:
            raise Violation(f"{who}: {entry} came after {member.got} messages, with permits for {member.granted}")
        member.got += len(values)
        self._check_confirmed(member, entry)
        first = messages[0]
        if self.kind not in SINGLE_ACTIVE:
            early_ms = first.deliver_at_ms - int((self.world.now + self.world.wall_offset_s) * 1000)
            if early_ms > self._early_most_ms:
                raise Violation(f"{who}: {entry} came {early_ms} ms too early")
        holder = self._holder.get(entry)
        elsewhere = holder is not None and holder is not member and holder.sound and not member.sound
        if elsewhere or redeliveries < self._redelivered.get((member.wire.life, entry), 0):
            return  # somebody has got a later delivery already: this one was given back while it was on its way
        self._redelivered[member.wire.life, entry] = redeliveries
        if self._holder.get(entry, member) is not member:
            member.turns[entry] = member.asked[entry] = 0  # it has been elsewhere meanwhile
        again = member.turns[entry] > 0
        if not member.take_turn(entry):
            raise Violation(f"{who}: {entry} came again, and nobody asked for it")
        if self.kind in SINGLE_ACTIVE:
            self._check_gap(member, entry, len(values), again)
        else:
            self._check_holder(member, entry)
        if self.kind == KEY_SHARED:
            self._check_key(member, entry, first.key, again)
        member.acked.discard(entry)
        member.holds[entry] = first
        member.position = entry
        self._holder[entry] = member
        self.ever.add(entry)

    def _check_confirmed(self, member: Member, entry: int) -> None:
        at = self.confirmed.get(entry)
        if at is None and entry <= self.confirmed_before:
            at = self.confirmed_before_at
        if at is not None and (member.joined_at >= at or entry in member.acked):
            raise Violation(
                f"{self}: {member.name}: {entry} came, and the broker had called its acknowledgement durable"
            )

    def _check_holder(self, member: Member, entry: int) -> None:
        holder = self._holder.get(entry)
        if holder is not None and holder is not member and holder.sound and not holder.take_turn(entry):
            raise Violation(f"{self}: {member.name} is given {entry}, which {holder.name} has")

    def _check_gap(self, member: Member, entry: int, count: int, again: bool) -> None:
        """One after the other, and none left out."""
        before = member.position
        if before < 0 or again or entry <= before:
            if before >= entry and not again:
                raise Violation(f"{self}: {member.name}: {entry} came after {before}")
            return
        for offset in range(before + self.spans.get(before, 1), entry):
            if offset in self.log.promised and not self._is_acked(offset):
                raise Violation(f"{self}: {member.name}: {entry} came after {before}, and {offset} was left out")

    def _check_key(self, member: Member, entry: int, key: str, again: bool) -> None:
        if not key:
            return  # a Kafka producer's, without one
        for other in self.members:
            if other is not member and other.sound:
                held = [at for at, message in other.holds.items() if message.key == key]
                if held:
                    raise Violation(f"{self}: {member.name} is given {entry} of {key}, and {other.name} has {held}")
        newest = member.newest.get(key, -1)
        if entry < newest and not again:
            raise Violation(f"{self}: {member.name}: {entry} of {key} came after {newest}")
        member.newest[key] = max(newest, entry)
        for offset, value in self.log.promised.items():
            if offset < entry and self.log.sent[value].key == key and not self._was_given(offset):
                raise Violation(f"{self}: {member.name}: {entry} of {key} came, and {offset} never has")

    def _was_given(self, offset: int) -> bool:
        return self._entry_of(offset) in self.ever

    def _is_acked(self, offset: int) -> bool:
        return offset <= self.confirmed_before or self._entry_of(offset) in self.acked

    def _entry_of(self, offset: int) -> int:
        if offset in self.spans:
            return offset
        return next((at for at in range(offset, offset - 5, -1) if at + self.spans.get(at, 0) > offset), offset)

    # -- acknowledgements ---------------------------------------------------------------------------------------------------

    def acknowledging(self, member: Member, entries: Iterable[int]) -> None:
        for entry in entries:
            member.holds.pop(entry, None)
            member.acked.add(entry)
            self.acked.add(entry)

    def confirm(self, entries: Iterable[int]) -> None:
        for entry in entries:
            self.confirmed.setdefault(entry, self.world.now)

    def acknowledging_all(self, member: Member, entry: int) -> None:
        self.acknowledging(member, [at for at in self.spans if at <= entry])

    def confirm_all(self, entry: int) -> None:
        if entry > self.confirmed_before:
            self.confirmed_before, self.confirmed_before_at = entry, self.world.now

    def marked(self, position: int, who: str, confirmed: int) -> None:
        """The broker says that everything up to here is acknowledged. ``confirmed``: ``confirmed_before`` when it was asked; what
        was confirmed since may have come after the answer was made."""
        if position < confirmed:
            raise Violation(f"{who}: the cursor of {self} is at {position}; {confirmed} was durable")
        for offset in range(self.mark_delete + 1, position + 1):
            if offset in self.log.promised and not self._is_acked(offset):
                raise Violation(f"{who}: the cursor of {self} is at {position}, and {offset} is not acknowledged")
        self.mark_delete = max(self.mark_delete, position)

    # -- the end ------------------------------------------------------------------------------------------------------------

    @property
    def left_over(self) -> list[int]:
        """Promised messages that nobody has acknowledged."""
        return [offset for offset in self.log.promised if not self._is_acked(offset)]

    @property
    def complete(self) -> bool:
        return self.log.finished and not self.left_over
