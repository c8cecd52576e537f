"""Faults that change the broker's state: what each of them does, by the code that does the same in production.

| kind | what it changes | by |
|---|---|---|
| topic_deleted | the topic | DeleteTopics |
| topic_recreated | the topic: deleted, and made with the same partitions and settings | DeleteTopics and CreateTopics |
| partitions_added | the topic: ``partitions`` more, or 1 | CreatePartitions |
| records_deleted | the partition, or all: its records before ``offset``, or all | DeleteRecords |

``happen`` waits for disks, so it runs on a handler of the lane of admin requests or on a thread of the embedder; never on a
processor. What others complete is awaited by callback.

Tests: tests/kafka/faulting/test_changes.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from broker.errors import BrokerError
from broker.faults.fault import Entity, Fault, Kind
from broker.kafka.context import KafkaContext
from broker.runtime.threads import Event
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.storage.refusals import TopicExists, UnknownTopic

# Called once, when it has happened or could not.
Done = Callable[[BrokerError | None], None]

_OF_TOPICS: Final = Kind(changes=True, thing="topic")

KINDS: Final[Mapping[str, Kind]] = {
    "topic_deleted": _OF_TOPICS,
    "topic_recreated": _OF_TOPICS,
    "partitions_added": attrs.evolve(_OF_TOPICS, may=frozenset({"partitions"})),
    "records_deleted": attrs.evolve(_OF_TOPICS, may=frozenset({"offset"}), parts=frozenset({"partition"})),
}
# How often a topic is made again that a client makes in the same moment.
_TRIES: Final = 20
# How long (s) somebody waits for what he has triggered.
_WAIT_S: Final = 60.0


@attrs.frozen
class Change:
    """A fault and the thing to which it happens."""

    fault: Fault
    thing: Entity

    @property
    def topic(self) -> str:
        assert self.thing.topic is not None
        return self.thing.topic


def changes_of(fault: Fault, entities: Iterable[Entity]) -> list[Change]:
    """What the fault does to the things that a request is about; fields of the fault take the place of those that the request
    does not name. Each thing is changed once."""
    kind = KINDS[fault.kind]
    fields = {kind.thing, *kind.parts}

    def thing(entity: Entity) -> Entity:
        given = {field: getattr(fault, field) for field in Entity._fields if getattr(fault, field) is not None}
        return Entity(**{field: value for field, value in (entity._asdict() | given).items() if field in fields})

    return [Change(fault, each) for each in dict.fromkeys(map(thing, entities))]


class Changes:
    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        self._by_kind: Mapping[str, Callable[[Change, Done], None]] = {
            "topic_deleted": self._at_once(self._delete_topic),
            "topic_recreated": self._at_once(self._recreate_topic),
            "partitions_added": self._at_once(self._add_partitions),
            "records_deleted": self._at_once(self._delete_records),
        }
        assert self._by_kind.keys() == KINDS.keys()

    def happen(self, change: Change, done: Done) -> None:
        """``done`` is called on this thread, or on that which completes the change."""
        try:
            self._by_kind[change.fault.kind](change, done)
        except BrokerError as error:
            done(error)

    def trigger(self, fault: Fault) -> None:
        """Have the fault happen, and wait until it is done. Raises BrokerError."""
        (change,) = changes_of(fault, [Entity()])
        over = Event()
        failed: list[BrokerError] = []

        def done(error: BrokerError | None) -> None:
            if error is not None:
                failed.append(error)
            over.set()

        self.happen(change, done)
        if not over.wait(_WAIT_S):
            raise BrokerError(f"{fault.kind} was not done within {_WAIT_S:g} s.")
        if failed:
            raise failed[0]

    @staticmethod
    def _at_once(change: Callable[[Change], object]) -> Callable[[Change, Done], None]:
        def begin(what: Change, done: Done) -> None:
            change(what)
            done(None)

        return begin

    # -- topics -------------------------------------------------------------------------------------------------------

    def _topic(self, change: Change) -> TopicInfo:
        info = self._context.logs.topic(change.topic)
        if info is None:
            raise UnknownTopic(f"There is no topic {change.topic!r}.")
        return info

    def _delete_topic(self, change: Change) -> None:
        self._context.logs.delete_topic(self._topic(change).name)

    def _recreate_topic(self, change: Change) -> None:
        logs, info = self._context.logs, self._topic(change)
        for left in reversed(range(_TRIES)):
            logs.delete_topic(info.name)
            try:
                logs.create_topic(info.name, info.partitions, info.configs)
                return
            except TopicExists:  # a client that was told of no topic was faster
                if not left:
                    raise

    def _add_partitions(self, change: Change) -> None:
        added = change.fault.partitions or 1
        self._context.logs.add_partitions(change.topic, self._topic(change).partitions + added)

    def _delete_records(self, change: Change) -> None:
        for log in self._logs(change):
            end, before = log.high_watermark, change.fault.offset
            log.trimming.delete_records(end if before is None else min(before, end))

    def _logs(self, change: Change) -> Iterator[Log]:
        info, partition = self._topic(change), change.thing.partition
        for number in range(info.partitions) if partition is None else [partition]:
            log = self._context.logs.get(info.name, number)
            if log is None:
                raise UnknownTopic(f"There is no partition {info.name}-{number}.")
            yield log
