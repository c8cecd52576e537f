"""Faults that change the broker's state: what each of them does, by the code that does the same in production.

| kind | what it changes | by |
|---|---|---|
| rebalance | the group: all rejoin, or (KIP-848) give their partitions up and get them anew | a change of members |
| session_expired | the group: ``member_id``, or the member of the request, or all are removed | the end of a session |
| offsets_rewound | the group: all are removed; commits go back to ``offset`` or the first record | that, and OffsetCommit |
| producer_fenced | the transactional id: its epoch is raised, and an open transaction aborted | InitProducerId |
| transaction_timed_out | the transactional id: its open transaction is aborted | the transaction's timeout |
| topic_deleted | the topic | DeleteTopics |
| topic_recreated | the topic: deleted, and made with the same partitions and settings | DeleteTopics and CreateTopics |
| partitions_added | the topic: ``partitions`` more, or 1 | CreatePartitions |
| records_deleted | the partition, or all: its records before ``offset``, or all | DeleteRecords |

``happen`` waits for disks, so it runs on a handler of the lane of admin requests or on a thread of the embedder; never on a
processor. What others complete is awaited by callback.

Tests: tests/kafka/faulting/test_changes.py.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from broker.errors import BrokerError
from broker.faults.fault import Entity, Fault, Kind
from broker.kafka.context import KafkaContext
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import CommittedOffset, Offsets
from broker.runtime.threads import Event
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.storage.refusals import TopicExists
from protocol.kafka.errors import ErrorCode

# Called once, when it has happened or could not.
Done = Callable[[BrokerError | None], None]

_OF_GROUPS: Final = Kind(changes=True, thing="group")
_OF_PRODUCERS: Final = Kind(changes=True, thing="transactional_id")
_OF_TOPICS: Final = Kind(changes=True, thing="topic")

KINDS: Final[Mapping[str, Kind]] = {
    "rebalance": _OF_GROUPS,
    "session_expired": attrs.evolve(_OF_GROUPS, may=frozenset({"member_id"})),
    "offsets_rewound": attrs.evolve(_OF_GROUPS, may=frozenset({"offset"}), parts=frozenset({"topic", "partition"})),
    "producer_fenced": _OF_PRODUCERS,
    "transaction_timed_out": _OF_PRODUCERS,
    "topic_deleted": _OF_TOPICS,
    "topic_recreated": _OF_TOPICS,
    "partitions_added": attrs.evolve(_OF_TOPICS, may=frozenset({"partitions"})),
    "records_deleted": attrs.evolve(_OF_TOPICS, may=frozenset({"offset"}), parts=frozenset({"partition"})),
}
# How often a topic is made again that a client makes in the same moment, and members are removed that join.
_TRIES: Final = 20
# How soon (s) a transaction is tried again that is being changed, and for how long.
_AGAIN_S: Final = 0.02
_BUSY_S: Final = 30.0
# How long (s) somebody waits for what he has triggered.
_WAIT_S: Final = 60.0


@attrs.frozen
class Change:
    """A fault and the thing to which it happens. ``members``: of the group that the request names."""

    fault: Fault
    thing: Entity
    members: tuple[str, ...] = ()

    @property
    def topic(self) -> str:
        assert self.thing.topic is not None
        return self.thing.topic

    @property
    def group(self) -> str:
        assert self.thing.group is not None
        return self.thing.group


def changes_of(fault: Fault, entities: Iterable[Entity], body: Any = None) -> list[Change]:
    """What the fault does to the things that a request is about; fields of the fault take the place of those that the request
    does not name. Each thing is changed once. ``body``: of the request, as ``control.parse_request`` returns it."""
    kind = KINDS[fault.kind]
    fields = {kind.thing, *kind.parts}

    def thing(entity: Entity) -> Entity:
        given = {field: getattr(fault, field) for field in Entity._fields if getattr(fault, field) is not None}
        return Entity(**{field: value for field, value in (entity._asdict() | given).items() if field in fields})

    members = () if body is None else tuple(dict.fromkeys(_members_in(dataclasses.asdict(body))))
    return [Change(fault, each, members) for each in dict.fromkeys(map(thing, entities))]


def _members_in(values: Mapping[str, Any]) -> Iterator[str]:
    """LeaveGroup names several, and OffsetFetch may name one for each group."""
    if values.get("member_id"):
        yield values["member_id"]
    for value in values.values():
        for element in value if isinstance(value, tuple) else ():
            if isinstance(element, dict):
                yield from _members_in(element)


class Changes:
    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        self._by_kind: Mapping[str, Callable[[Change, Done], None]] = {
            "rebalance": self._at_once(self._rebalance),
            "session_expired": self._at_once(self._end_sessions),
            "offsets_rewound": self._rewind,
            "producer_fenced": partial(self._end_transaction, context.transactions.fence),
            "transaction_timed_out": partial(self._end_transaction, context.transactions.time_out),
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

    # -- groups -------------------------------------------------------------------------------------------------------

    def _rebalance(self, change: Change) -> None:
        self._check_group(change, self._context.groups.rebalance(change.group))

    def _end_sessions(self, change: Change) -> None:
        wanted = change.fault.member_id
        members: Sequence[str | None] = change.members if wanted is None else [wanted]
        errors = [self._context.groups.time_out(change.group, each) for each in members or [None]]
        if ErrorCode.none not in errors:
            self._check_group(change, errors[0])

    def _check_group(self, change: Change, error: ErrorCode | int) -> None:
        failure = self._group_error(change, error)
        if failure is not None:
            raise failure

    @staticmethod
    def _group_error(change: Change, error: ErrorCode | int) -> BrokerError | None:
        group = repr(change.group)
        if error == ErrorCode.group_id_not_found:
            return BrokerError(f"There is no group {group}.")
        if error == ErrorCode.unknown_member_id:
            named = change.fault.member_id or ", ".join(change.members)
            return BrokerError(f"The group {group} has no {f'member {named}' if named else 'members'}.")
        return BrokerError(f"The group {group} was not changed: {ErrorCode(error).name.upper()}.") if error else None

    def _rewind(self, change: Change, done: Done) -> None:
        """Without its members, because a member would commit where it is before it gives its partitions up."""
        offsets = self._earlier_offsets(change)
        if not offsets:
            where = "" if change.fault.offset is None else f" beyond {change.fault.offset}"
            raise BrokerError(f"The group {change.group!r} has committed no offset{where} that could go back.")
        groups = self._context.groups

        def attempt(left: int) -> None:
            groups.time_out(change.group, None)
            groups.offsets.commit(change.group, Committer("", None, -1), offsets, partial(answered, left))

        def answered(left: int, errors: Mapping[tuple[str, int], ErrorCode]) -> None:
            error = next(filter(None, errors.values()), ErrorCode.none)
            if error is ErrorCode.unknown_member_id and left:  # somebody has joined in between
                attempt(left - 1)
            else:
                done(self._group_error(change, error))

        attempt(_TRIES)

    def _earlier_offsets(self, change: Change) -> Offsets:
        """The committed offsets that are later than those to which they go back, as they become."""
        context, thing = self._context, change.thing
        self._check_group(change, ErrorCode.group_id_not_found if context.groups.type_of(change.group) is None else 0)
        error, topics = context.groups.offsets.fetch(change.group, None)
        self._check_group(change, error)
        now_ms = context.clock.time_ms()
        offsets: Offsets = {}
        for topic, partitions in topics:
            for number, committed in partitions:
                log = context.logs.get(topic, number)
                wanted = (thing.topic or topic, number if thing.partition is None else thing.partition)
                if log is None or committed is None or (topic, number) != wanted:
                    continue
                offset = max(change.fault.offset or 0, log.log_start_offset)
                if offset < committed.offset:
                    offsets[topic, number] = CommittedOffset(offset, -1, "", now_ms)
        return offsets

    # -- transactions -------------------------------------------------------------------------------------------------

    def _end_transaction(
        self, end: Callable[[str, Callable[[ErrorCode], None]], None], change: Change, done: Done
    ) -> None:
        context, name = self._context, change.thing.transactional_id
        assert name is not None
        given_up = context.clock.monotonic() + _BUSY_S

        def ended(error: ErrorCode) -> None:
            now = context.clock.monotonic()
            if error is ErrorCode.concurrent_transactions and now < given_up:
                # Another change of it is being made. The timer's thread must not wait for the disk, as a new producer id may.
                context.timer.at(now + _AGAIN_S, partial(context.groups.writer.call_soon, partial(end, name, ended)))
            else:
                done(_transaction_error(name, error))

        end(name, ended)

    # -- topics -------------------------------------------------------------------------------------------------------

    def _topic(self, change: Change) -> TopicInfo:
        return self._context.logs.require_topic(change.topic)

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
            yield self._context.logs.require(info.name, number)


def _transaction_error(transactional_id: str, error: ErrorCode) -> BrokerError | None:
    if error is ErrorCode.invalid_producer_id_mapping:
        return BrokerError(f"There is no transactional id {transactional_id!r}.")
    if error is ErrorCode.invalid_txn_state:
        return BrokerError(f"The transactional id {transactional_id!r} has no open transaction.")
    return BrokerError(f"{transactional_id!r} was not changed: {error.name.upper()}.") if error else None
