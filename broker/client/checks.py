"""What a test asks of a consumer or a pipeline: ``from broker.client import checks``. The messages say which record is wrong, and
where.

Functions compare what went in with what came out, after the fact. ``Progress`` and ``Rebalances`` are told what happens while it
happens. All of them raise AssertionError.

A record is a message of confluent-kafka, kafka-python or aiokafka, a ``Record`` of ``broker.records()``, or a plain value.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import attrs

from broker.client.broker_calls import BrokerCalls, NotRunning
from broker.runtime.threads import RLock

# Of each kind of violation, a message lists so many.
_LISTED_MAX: Final = 10
_SHOWN_MAX: Final = 80
_PROGRESS: Final = "The group's offsets do not follow its work"

TopicPartition = tuple[str, int]
Of = Callable[[Any], Hashable]


class Place(NamedTuple):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] at {self.offset}"


# -- inputs and outputs -----------------------------------------------------------------------------------------------


def processed_at_least_once(inputs: Iterable[Any], outputs: Iterable[Any], *, of: Of | None = None) -> None:
    """Every input came out, as often as it went in or more often, and nothing else came out.

    ``of``: the input that an output stands for; by default it has the same value. Inputs and what ``of`` returns are
    compared by value: a record among the inputs is its value.
    """
    __tracebackhide__ = True
    _compare(inputs, outputs, of, again=True)


def processed_exactly_once(inputs: Iterable[Any], outputs: Iterable[Any], *, of: Of | None = None) -> None:
    """Every input came out as often as it went in, and nothing else came out. See ``processed_at_least_once``."""
    __tracebackhide__ = True
    _compare(inputs, outputs, of, again=False)


def _compare(inputs: Iterable[Any], outputs: Iterable[Any], of: Of | None, *, again: bool) -> None:
    __tracebackhide__ = True
    went_in, came_out = _numbered(inputs, _value), _numbered(outputs, of or _value)
    total = sum(map(len, went_in.values()))
    never, often, unknown = [], [], []
    for value, places in went_in.items():
        found = came_out.get(value, [])
        if len(found) < len(places):
            seen = f", {len(found)} of {len(places)} times" if found else ""
            never.append(f"{_shown(value)} ({places[len(found)]}{seen})")
        elif len(found) > len(places) and not again:
            often.append(f"{_shown(value)} ({len(found)} times for {len(places)}: {_listed(found)})")
    for value, places in came_out.items():
        if value not in went_in:
            unknown.append(f"{_shown(value)} ({_listed(places)})")
    _fail_for(
        (f"Of {total} inputs, {len(never)} did not come out", never),
        (f"{len(often)} came out more often than they went in", often),
        (f"{len(unknown)} that came out never went in", unknown),
    )


def in_order_per_key(
    inputs: Iterable[Any], outputs: Iterable[Any], *, key: Of | None = None, of: Of | None = None
) -> None:
    """The outputs of a key came for the first time in the order of its inputs. What comes again may come at any time, as after a
    rebalance; what never came out is not looked at.

    ``key``: of an input; by default the record's key. ``of``: as in ``processed_at_least_once``.
    """
    __tracebackhide__ = True
    order: dict[Hashable, tuple[int, Hashable]] = {}
    for number, record in enumerate(inputs):
        order.setdefault(_value(record), (number, (key or _key)(record)))
    latest: dict[Hashable, tuple[int, str]] = {}
    seen: set[Hashable] = set()
    wrong = []
    for position, record in enumerate(outputs):
        value = (of or _value)(record)
        if value in seen or value not in order:
            continue
        seen.add(value)
        number, name = order[value]
        what = f"{_shown(value)} ({_where(record, position)})"
        before, said = latest.get(name, (-1, ""))
        if number < before:
            wrong.append(f"key {_shown(name)}: {what} came after {said}")
        else:
            latest[name] = (number, what)
    _fail_for((f"{len(wrong)} records came out of order", wrong))


def no_zombie_writes(records: Iterable[Any], epoch: Callable[[Any], Any]) -> None:
    """In no partition does a record of an older writer stand behind one of a newer writer, which has fenced it.

    ``epoch``: tells of a record's writer how new it is, for example from a header; None for a record of no such writer.
    """
    __tracebackhide__ = True
    newest: dict[Any, tuple[Any, str]] = {}
    wrong = []
    for position, record in enumerate(records):
        number = epoch(record)
        if number is None:
            continue
        partition = (_field(record, "topic"), _field(record, "partition"))
        what = _where(record, position)
        before = newest.get(partition)
        if before is not None and number < before[0]:
            wrong.append(f"{_shown(_value(record))} ({what}) of epoch {number}, behind epoch {before[0]} ({before[1]})")
        else:
            newest[partition] = (number, what)
    _fail_for((f"{len(wrong)} records are of writers that were fenced", wrong))


def still_there(read: Iterable[Any], broker: BrokerCalls) -> None:
    """Every record that somebody has read is in the broker as it was read: with the same key and value. For consumers of
    committed records; not for topics that are compacted or whose records expire."""
    __tracebackhide__ = True
    there: dict[Place, tuple[Any, Any]] = {}
    topics: set[str] = set()
    gone, changed = [], []
    for record in read:
        place = place_of(record)
        if place.topic not in topics:
            topics.add(place.topic)
            there |= {
                Place(place.topic, each.partition, each.offset): (each.key, each.value)
                for each in broker.records(place.topic)
            }
        content = (_key(record), _value(record))
        if place not in there:
            gone.append(f"{_shown(content[1])} ({place})")
        elif there[place] != content:
            changed.append(f"{_shown(content[1])} ({place}), now {_shown(there[place][1])}")
    _fail_for((f"{len(gone)} records that were read are gone", gone), (f"{len(changed)} have another content", changed))


# -- a group ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Report:
    """``lag``: records that the group has still to read, by partition. ``again``: records that were processed more than once, and
    how often. ``processed``: how many were, those that came again counted once. ``str()`` is the text for people."""

    lag: Mapping[TopicPartition, int]
    again: Mapping[Place, int]
    processed: int

    def __str__(self) -> str:
        behind = [f"{topic}[{partition}]: {lag}" for (topic, partition), lag in sorted(self.lag.items()) if lag]
        again = [f"{place}: {times} times" for place, times in sorted(self.again.items())]
        said = [f"{self.processed} records were processed."]
        said.append(f"Lag: {_listed(behind)}." if behind else "No lag.")
        said.append(f"{len(again)} came again: {_listed(again)}." if again else "Nothing came again.")
        return " ".join(said)


class Progress:
    """What a group has processed and committed. Tell it of each record when its work is done.

    >>> progress = Progress(broker, "billing")
    >>> while (message := consumer.poll(1)) is not None:
    ...     bill(message)
    ...     progress.processed(message)
    ...     consumer.commit(message)
    >>> progress.check()

    A group that has committed nothing starts at the first record. The committed offsets are looked at in each call; what
    comes and goes between two calls is not seen. Any thread.
    """

    def __init__(self, broker: BrokerCalls, group: str) -> None:
        self._broker = broker
        self._group = group
        self._lock = RLock()
        self._times: Counter[Place] = Counter()
        self._committed: dict[TopicPartition, int] = dict(broker.committed(group))
        # All records before these offsets are processed, or were reported.
        self._next: dict[TopicPartition, int] = dict(self._committed)
        self._wrong: list[str] = []

    def processed(self, record: Any) -> None:
        """A record's work is done. Raises AssertionError as ``check``; a broker that is stopped is not asked."""
        __tracebackhide__ = True
        with self._lock:
            try:
                self._look()
            except NotRunning:
                pass
            self._times[place_of(record)] += 1
            _fail_for((_PROGRESS, self._wrong))

    def check(self) -> None:
        """No offset is committed ahead of the work, and none has gone back. Raises AssertionError, and does so for ever after."""
        __tracebackhide__ = True
        with self._lock:
            self._look()
            _fail_for((_PROGRESS, self._wrong))

    def report(self) -> Report:
        """As of now."""
        with self._lock:
            committed = self._broker.committed(self._group)
            topics = sorted({topic for topic, _ in committed} | {place.topic for place in self._times})
            lag: Counter[TopicPartition] = Counter()
            for topic in topics:
                for record in self._broker.records(topic):
                    lag[topic, record.partition] += record.offset >= committed.get((topic, record.partition), 0)
            again = {place: times for place, times in self._times.items() if times > 1}
            return Report(dict(lag), again, len(self._times))

    def _look(self) -> None:
        for partition, end in self._broker.committed(self._group).items():
            name = f"{partition[0]}[{partition[1]}]"
            before = self._committed.get(partition, 0)
            if end < before:
                self._wrong.append(f"{name}: the committed offset went back from {before} to {end}")
            self._committed[partition] = end
            start = self._next.get(partition, 0)
            while start < end and Place(*partition, start) in self._times:
                start += 1
            if start < end:  # or there are no records at these offsets
                self._wrong += [
                    f"{name}: {end} was committed before {_shown(record.value)} at {record.offset} was processed"
                    for record in self._broker.records(partition[0])
                    if record.partition == partition[1]
                    and start <= record.offset < end
                    and Place(*partition, record.offset) not in self._times
                ]
            self._next[partition] = max(start, end)


class Rebalances:
    """What the members of a group were told about their partitions: each is assigned, then revoked or lost, then assigned again,
    and no two members have it at the same time. Give each consumer a ``member``."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._held: dict[str, set[TopicPartition]] = {}
        # A member that was not told yet that its partition is another's. It has to hear that it is lost.
        self._doubtful: dict[tuple[str, TopicPartition], str] = {}
        self._wrong: list[str] = []

    def member(self, name: str, on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None) -> "Member":
        """The callbacks of a consumer: ``consumer.subscribe(topics, on_assign=member.on_assign, ...)``. Each calls that which
        is given here, too."""
        with self._lock:
            self._held.setdefault(name, set())
        return Member(self, name, on_assign, on_revoke, on_lost)

    def check(self) -> None:
        """Raises AssertionError."""
        __tracebackhide__ = True
        with self._lock:
            late = [
                f"{member}: was not told that it lost {_name(partition)}, which {other} has"
                for (member, partition), other in sorted(self._doubtful.items())
            ]
            _fail_for(("Rebalances were not in order", [*self._wrong, *late]))

    def _assigned(self, member: str, partitions: Iterable[Any]) -> None:
        with self._lock:
            for each in map(_partition_of, partitions):
                if each in self._held[member]:
                    self._wrong.append(f"{member}: {_name(each)} was assigned a second time")
                for other, held in self._held.items():
                    if other != member and each in held:
                        self._doubtful[other, each] = member
                self._held[member].add(each)

    def _gone(self, member: str, partitions: Iterable[Any], *, is_lost: bool) -> None:
        with self._lock:
            for each in map(_partition_of, partitions):
                if each not in self._held[member]:
                    what = "lost" if is_lost else "revoked"
                    self._wrong.append(f"{member}: {_name(each)} was {what}, but not assigned")
                self._held[member].discard(each)
                other = self._doubtful.pop((member, each), None)
                if other is not None and not is_lost:
                    self._wrong.append(f"{member}: {_name(each)} was revoked after {other} had it")

    def _processed(self, member: str, record: Any) -> None:
        place = place_of(record)
        with self._lock:
            if (place.topic, place.partition) not in self._held[member]:
                self._wrong.append(f"{member}: processed {place}, a partition that it did not have")

    def _died(self, member: str) -> None:
        with self._lock:
            self._gone(member, list(self._held[member]), is_lost=True)


@attrs.frozen(eq=False)
class Member:
    """A consumer of a group, as ``Rebalances`` sees it. The callbacks are those of confluent-kafka; other clients' listeners call
    ``assigned``, ``revoked`` and ``lost``. Partitions have ``topic`` and ``partition``, or are pairs of both."""

    _all: Rebalances
    name: str
    _on_assign: Any
    _on_revoke: Any
    _on_lost: Any

    def on_assign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        self.assigned(partitions)
        if self._on_assign is not None:
            self._on_assign(consumer, partitions)

    def on_revoke(self, consumer: Any, partitions: Sequence[Any]) -> None:
        self.revoked(partitions)
        if self._on_revoke is not None:
            self._on_revoke(consumer, partitions)

    def on_lost(self, consumer: Any, partitions: Sequence[Any]) -> None:
        self.lost(partitions)
        if self._on_lost is not None:
            self._on_lost(consumer, partitions)

    def assigned(self, partitions: Iterable[Any]) -> None:
        self._all._assigned(self.name, partitions)

    def revoked(self, partitions: Iterable[Any]) -> None:
        self._all._gone(self.name, partitions, is_lost=False)

    def lost(self, partitions: Iterable[Any]) -> None:
        self._all._gone(self.name, partitions, is_lost=True)

    def processed(self, record: Any) -> None:
        """The member has worked on a record."""
        self._all._processed(self.name, record)

    def died(self) -> None:
        """The consumer ended without being told what becomes of its partitions."""
        self._all._died(self.name)


# -- records ----------------------------------------------------------------------------------------------------------


def place_of(record: Any) -> Place:
    """Where a record stands. Raises TypeError for what is no record of a topic."""
    found = [_field(record, name) for name in Place._fields]
    if None in found:
        raise TypeError(f"This is no record with a topic, a partition and an offset: {record!r:.200}")
    return Place(*found)


def _field(record: Any, name: str) -> Any:
    """An attribute, or what the method of that name returns (confluent-kafka); None if there is none."""
    if isinstance(record, str | bytes):
        return None
    value = getattr(record, name, None)
    return value() if callable(value) else value


def _value(record: Any) -> Any:
    return _field(record, "value") if hasattr(record, "value") else record


def _key(record: Any) -> Any:
    return _field(record, "key")


def _where(record: Any, position: int) -> str:
    topic, partition, offset = (_field(record, name) for name in Place._fields)
    if offset is None:
        return f"number {position}"
    return f"{topic}[{partition}] at {offset}" if topic else f"partition {partition} at {offset}"


def _numbered(records: Iterable[Any], of: Of) -> dict[Hashable, list[str]]:
    """Where each value is."""
    found: dict[Hashable, list[str]] = {}
    for position, record in enumerate(records):
        found.setdefault(of(record), []).append(_where(record, position))
    return found


def _partition_of(partition: Any) -> TopicPartition:
    if isinstance(partition, tuple):
        return (partition[0], partition[1])
    return (partition.topic, partition.partition)


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}[{partition[1]}]"


# -- messages ---------------------------------------------------------------------------------------------------------


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def _listed(items: Sequence[str]) -> str:
    more = f", and {len(items) - _LISTED_MAX} more" if len(items) > _LISTED_MAX else ""
    return ", ".join(items[:_LISTED_MAX]) + more


def _fail_for(*found: tuple[str, Sequence[str]]) -> None:
    """Each: what is wrong, and where; nothing is wrong where that is empty."""
    __tracebackhide__ = True
    sentences = [f"{what}: {_listed(where)}." for what, where in found if where]
    if sentences:
        raise AssertionError("\n".join(sentences))
