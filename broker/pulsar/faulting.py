"""Faults on demand for Pulsar's commands.

``PulsarContext.faults`` is None as long as there is no fault. Otherwise the commands in ``MET`` go to a handler and come here
first: ``Faulting.handle`` asks which fault each meets (``broker.faults``). SENDs that arrived together meet faults one by one.

| kind | the work | the answer |
|---|---|---|
| observe | done | as always |
| delay | done | ``delay_ms`` later; the connection's other commands go on |
| error | not done | is the error |
| error_after | done | is the error |
| lost | done | never sent |
| reset, reset_after | not done; done | none: the connection is closed |
| those of ``CHANGES`` | done, after the change | as always |

The answer of a SEND is its receipt. Receipts leave in order, so those behind a delayed one wait as well. After a lost
receipt, the next one tells the client. ACK, FLOW and REDELIVER_UNACKNOWLEDGED_MESSAGES have no answer that clients wait for, so
they are themselves delayed or lost, and an ACK with an error is dropped (as in Pulsar, only a client that wants to know is told).

``CHANGES`` are commands that Pulsar's brokers send when a topic moves to another broker, for example: the clients connect their
consumers or producers again. A command of a consumer or producer changes that one; any other command, and a fault by hand,
changes all those of the topic, as far as the fault does not say more. After a consumer or producer was closed, its present
command is ignored, as one that was sent before the client could know.

A handler's thread, and whichever answers.

Tests: tests/pulsar/test_faulting.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from broker.errors import BrokerError, ConfigError, Refusal, RequestError
from broker.faults.fault import Entity, Fault, Kind, Passing, Vocabulary
from broker.faults.faults import Taken
from broker.network.service import Handover, Part
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.consumer_calls import find_consumer
from broker.pulsar.context import PulsarContext
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.producers.producer import Owed, Producer, send_error
from broker.pulsar.producers.publishing import owe_error
from broker.pulsar.refusals import InvalidTopicName
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topic_names import DEFAULT_NAMESPACE, PUBLIC_TENANT, TopicName, parse_topic
from broker.pulsar.topics.topic import AnyTopic
from protocol.pulsar.acks import read_ack, read_flow
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandAckResponse, ServerError
from protocol.pulsar.sends import read_send

# ``prepared`` of a command that may meet a fault.
FAULTED: Final = object()
# Without those of logins and keep-alive, and of transactions, which are refused.
MET: Final = frozenset(
    {
        Type.SUBSCRIBE,
        Type.PRODUCER,
        Type.SEND,
        Type.ACK,
        Type.FLOW,
        Type.UNSUBSCRIBE,
        Type.CLOSE_PRODUCER,
        Type.CLOSE_CONSUMER,
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        Type.PARTITIONED_METADATA,
        Type.LOOKUP,
        Type.CONSUMER_STATS,
        Type.SEEK,
        Type.GET_LAST_MESSAGE_ID,
        Type.GET_TOPICS_OF_NAMESPACE,
        Type.GET_SCHEMA,
        Type.GET_OR_CREATE_SCHEMA,
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_CLOSE,
    }
)
_UNANSWERED: Final = frozenset({Type.ACK, Type.FLOW, Type.REDELIVER_UNACKNOWLEDGED_MESSAGES})
# The names of their entities.
_OF_TOPIC: Final = frozenset({"topic", "partition"})
_OF_CONSUMERS: Final = _OF_TOPIC | {"subscription"}
_CONSUMERS_APIS: Final = frozenset(
    {
        Type.SUBSCRIBE,
        Type.ACK,
        Type.FLOW,
        Type.UNSUBSCRIBE,
        Type.CLOSE_CONSUMER,
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        Type.CONSUMER_STATS,
        Type.SEEK,
        Type.GET_LAST_MESSAGE_ID,
    }
)
_NAMESPACES_APIS: Final = frozenset({Type.GET_TOPICS_OF_NAMESPACE, Type.WATCH_TOPIC_LIST, Type.WATCH_TOPIC_LIST_CLOSE})
CHANGES: Final[Mapping[str, Kind]] = {
    "consumer_disconnected": Kind(
        changes=True, thing="topic", parts=frozenset({"partition", "subscription", "client_id"})
    ),
    "producer_closed": Kind(changes=True, thing="topic", parts=frozenset({"partition", "client_id"})),
    "redelivery": Kind(changes=True, thing="topic", parts=frozenset({"partition", "subscription"})),
}
# After these, a client sends only the one message again, or gives it up; after all others it connects its producer again.
_OF_ONE_MESSAGE: Final = (ServerError.ChecksumError, ServerError.NotAllowedError)
_MESSAGE: Final = "A fault on demand."
# An offset before which no log ever is durable.
_NEVER: Final = 2**63


def _names(types: frozenset[Any]) -> frozenset[str]:
    return frozenset(map(BaseCommand.Type.Name, types))


def vocabulary() -> Vocabulary:
    """Each error is of Pulsar's ServerError."""
    errors, with_error = frozenset({"error"}), _names(MET - _UNANSWERED)
    return Vocabulary(
        kinds={
            "observe": Kind(passes=True),
            "delay": Kind(frozenset({"delay_ms"})),
            "error": Kind(errors, apis=with_error | {"ACK"}),
            "error_after": Kind(errors, apis=with_error),
            "lost": Kind(),
            "reset": Kind(),
            "reset_after": Kind(),
            **CHANGES,
        },
        apis=tuple(map(BaseCommand.Type.Name, sorted(MET))),
        errors=tuple(ServerError.keys()),
        names_of=_names_of,
        plain=_with_plain_topic,
    )


def _names_of(api: str) -> frozenset[str]:
    kind = BaseCommand.Type.Value(api)
    if kind in _NAMESPACES_APIS:
        return frozenset()
    return _OF_CONSUMERS if kind in _CONSUMERS_APIS else _OF_TOPIC


def _with_plain_topic(fault: Fault) -> Fault:
    """Clients may write the whole name of a topic; Kafka's names have no slash. Raises ConfigError."""
    if fault.topic is None or "/" not in fault.topic:
        return fault
    try:
        name = parse_topic(fault.topic)
    except InvalidTopicName as error:
        raise ConfigError(str(error)) from None
    if name.partition >= 0:
        raise ConfigError(f"Give the partition by itself: topic={_plain(name)!r}, partition={name.partition}.")
    return attrs.evolve(fault, topic=_plain(name))


def _plain(name: TopicName) -> str:
    """The name of the whole topic as most clients write it: without what they may leave out."""
    is_default = name.persistent and (name.tenant, name.namespace_name) == (PUBLIC_TENANT, DEFAULT_NAMESPACE)
    return name.local if is_default else str(name.whole)


def _entity(name: TopicName, subscription: str | None = None) -> Entity:
    return Entity(_plain(name), None if name.partition < 0 else name.partition, subscription=subscription)


class _Faulted(Call):
    """A command whose answer meets a fault. ``answer``: gets the answer, or None if there is none. ``frame``: one of several."""

    __slots__ = ("_answer", "_frame")

    def __init__(self, call: Call, answer: "Answer", frame: memoryview | None = None) -> None:
        super().__init__(call.context, call.state, call.request, call.outbox)
        self._answer = answer
        self._frame = frame

    @property
    def frame(self) -> memoryview:
        return super().frame if self._frame is None else self._frame

    def send(self, parts: Sequence[Part]) -> None:
        self._once()
        self._answer(parts)

    def done(self) -> None:
        self._once()
        self._answer(None)


# What becomes of an answer, or of None.
Answer = Callable[[Sequence[Part] | None], object]
CarryOut = Callable[[Command, Call], None]


class Faulting:
    """The faults of a Pulsar listener."""

    def __init__(self, context: PulsarContext, go_on: CarryOut) -> None:
        """``go_on``: handles a command as without faults."""
        self._context = context
        self._go_on = go_on
        self._changes = Changes(context)

    def handle(self, command: Command, call: Call) -> None:
        """Raises ProtocolError."""
        if command.type not in MET:
            self._go_on(command, call)
            return
        for each in _each_send(call) if command.type == Type.SEND else (call,):
            taken = self._met(command, each)
            if taken is None:
                self._go_on(command, each)
            elif taken.fault.kind in CHANGES:
                self._changes.happen(_of(taken), _producer(command, each), _consumer(command, each))
                self._go_on(command, each)
            elif not self._carry_out(taken.fault, command, each):
                return

    # -- which fault ------------------------------------------------------------------------------------------------------

    def _met(self, command: Command, call: Call) -> Taken | None:
        faults = self._context.faults  # the last one may have ended since the command arrived
        if faults is None:
            return None
        entity, client_id = self._about(command, call)
        passing = Passing(
            self._context.clock.time_ms(),
            BaseCommand.Type.Name(command.type),
            client_id,
            str(call.connection.principal),
            (entity,),
            "pulsar",
        )
        return faults.take(passing)

    def _about(self, command: Command, call: Call) -> tuple[Entity, str | None]:
        """What the command is about, and the name of its producer or consumer."""
        body = call.body
        topic = getattr(body, "topic", None)
        if topic is not None:  # PRODUCER and SUBSCRIBE among others
            name = getattr(body, "producer_name", "") or getattr(body, "consumer_name", "") or None
            subscription = getattr(body, "subscription", None)
            try:
                return _entity(parse_topic(topic), subscription), name
            except Refusal:
                return Entity(topic, subscription=subscription), name
        producer, connected = _producer(command, call), _consumer(command, call)
        if producer is not None:
            return _entity(producer.topic.name), producer.name
        if connected is None:
            return Entity(), None
        return _entity(connected.subscription.topic.name, connected.subscription.name), connected.consumer.name

    # -- what becomes of the command ----------------------------------------------------------------------------------------

    def _carry_out(self, fault: Fault, command: Command, call: Call) -> bool:
        """False: the connection is closed."""
        if fault.kind == "reset":
            call.close()
            return False
        if command.type == Type.SEND:
            return self._send(fault, command, call)
        if command.type in _UNANSWERED and fault.kind != "reset_after":
            self._unanswered(fault, command, call)
            return True
        if fault.kind == "error":
            self._go_on(attrs.evolve(command, handle=partial(_refuse, fault)), call)
            return True
        answers: Mapping[str, Answer] = {
            "delay": partial(self._delay, fault, call),
            "error_after": partial(_fail, fault, command, call),
            "lost": partial(_done, call),
            "reset_after": lambda _: call.close(),
        }
        self._go_on(command, _Faulted(call, answers[fault.kind]))
        return True

    def _delay(self, fault: Fault, call: Call, parts: Sequence[Part] | None) -> None:
        """The answer goes as a push, because it must not keep the connection's other commands from being read."""
        call.done()
        if parts is not None:
            self._later(fault, partial(call.state.push, *parts))

    def _later(self, fault: Fault, work: Callable[[], None]) -> float:
        """The time at which the work is done: Clock.monotonic() s."""
        until = self._context.clock.monotonic() + (fault.delay_ms or 0) / 1000
        self._context.timer.at(until, work)
        return until

    def _unanswered(self, fault: Fault, command: Command, call: Call) -> None:
        if fault.kind == "delay":
            again = partial(call.outbox.hand_over, call.request, Handover(command.lane))
            call.state.heard_at = self._later(fault, again)  # nothing is read from the connection before
            return
        if fault.kind == "error":
            ack = read_ack(call.frame)
            if ack.request_id >= 0:
                response = CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
                response.error, response.message = _code(fault), _MESSAGE
                call.state.push(write_command(Type.ACK_RESPONSE, response))
        call.done()

    # -- receipts -------------------------------------------------------------------------------------------------------------

    def _send(self, fault: Fault, command: Command, call: Call) -> bool:
        """False: the connection is closed."""
        send = read_send(call.frame)
        producer = call.state.producers.get(send.producer_id)
        if producer is None or not producer.ready or producer.closed:
            self._go_on(command, call)
            return True
        if fault.kind == "error":
            _close_unless_of_one_message(producer, fault)
            owe_error(call.state, producer, send.sequence_id, RequestError(_code(fault), _MESSAGE))
            call.done()
            return True
        gate = Owed(_NEVER, [(send.sequence_id, 0, 0)])
        call.state.owe(1)
        producer.owe(gate)  # holds back the receipt, which comes behind it
        # Before the next SEND comes, whose receipt would be behind the gate as well.
        answer = partial(self._receipt, fault, producer, gate, call)
        self._go_on(command, _Faulted(call, answer, call.frame))
        return fault.kind != "reset_after"

    def _receipt(self, fault: Fault, producer: Producer, gate: Owed, call: Call, _parts: Sequence[Part] | None) -> None:
        """The SEND behind the gate has been published."""
        if fault.kind == "reset_after":
            call.close()
            return
        if fault.kind == "delay":
            self._later(fault, partial(_open, producer, gate, None))
        elif fault.kind == "lost":
            _open(producer, gate, [])
        else:
            _close_unless_of_one_message(producer, fault)
            sequence_id = gate.receipts[0][0]
            error = send_error(producer.id, sequence_id, RequestError(_code(fault), _MESSAGE))
            _open(producer, gate, [Owed(0, [(sequence_id, 0, 0)], error)])
        call.done()


def _each_send(call: Call) -> Iterator[Call]:
    """The SENDs of a frame, which may be several. The answer to the last is that to the frame."""
    frames, position = call.frame, 0
    while position < len(frames):
        begin, position = position, position + int.from_bytes(frames[position : position + 4]) + 4
        is_last = position >= len(frames)
        yield _Faulted(call, partial(_done, call) if is_last else _nothing, frames[begin:position])


def _done(call: Call, _parts: Sequence[Part] | None) -> None:
    call.done()


def _nothing(_parts: Sequence[Part] | None) -> None:
    pass


def _open(producer: Producer, gate: Owed, instead: Sequence[Owed] | None) -> None:
    """Let receipts leave again. ``instead``: what is owed in place of the receipt behind the gate, which is the last one. None:
    this receipt."""
    with producer.lock:
        queue = producer.owed
        if all(each is not gate for each in queue):  # the producer has failed, and nothing is owed any more
            return
        paid = 1
        if instead is not None:
            while queue[-1] is not gate:
                paid += len(queue.pop().receipts)
            queue.extend(instead)
            paid -= len(instead)
        queue.remove(gate)
    producer.on_paid(paid)
    producer.pay()


def _close_unless_of_one_message(producer: Producer, fault: Fault) -> None:
    if _code(fault) not in _OF_ONE_MESSAGE:
        producer.closed = True  # its further SENDs are ignored, as after an error of the broker's own


def _producer(command: Command, call: Call) -> Producer | None:
    """That of the command, if it is there."""
    if command.type == Type.SEND:
        return call.state.producers.get(read_send(call.frame).producer_id)
    return call.state.producers.get(call.body.producer_id) if command.type == Type.CLOSE_PRODUCER else None


def _consumer(command: Command, call: Call) -> ConnectedConsumer | None:
    """That of the command, if it is there."""
    if command.type not in _CONSUMERS_APIS:
        return None
    if command.type == Type.ACK:
        return find_consumer(call, read_ack(call.frame).consumer_id)
    return find_consumer(call, read_flow(call.frame)[0] if command.type == Type.FLOW else call.body.consumer_id)


def _code(fault: Fault) -> int:
    return int(ServerError.Value(fault.error or "UnknownError"))


def _refuse(fault: Fault, _call: Call) -> None:
    raise RequestError(_code(fault), _MESSAGE)


def _fail(fault: Fault, command: Command, call: Call, _parts: Sequence[Part] | None) -> None:
    error = RequestError(_code(fault), _MESSAGE)
    if command.on_error is not None:
        command.on_error(call, error)
    else:
        call.fail(error)


def _of(taken: Taken) -> Fault:
    """The fault with the topic, partition and subscription of the command, where it does not name them itself."""
    fault, entity = taken.fault, taken.entities[0]
    return attrs.evolve(
        fault,
        topic=fault.topic or entity.topic,
        partition=entity.partition if fault.partition is None else fault.partition,
        subscription=fault.subscription or entity.subscription,
    )


class Changes:
    """The faults in ``CHANGES``. Any thread; nothing blocks."""

    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def trigger(self, fault: Fault) -> None:
        """Raises BrokerError if there is nothing to change."""
        if not self.happen(fault):
            raise BrokerError(f"There is nothing to which this could happen: {fault.as_json()}.")

    def happen(self, fault: Fault, producer: Producer | None = None, connected: ConnectedConsumer | None = None) -> int:
        """``producer``, ``connected``: that of the command. Returns how many producers, consumers or subscriptions there were."""
        if fault.kind == "producer_closed":
            producers = list(self._producers(fault)) if producer is None else [producer]
            for each in producers:
                each.close()
                each.leave()
            return len(producers)
        if fault.kind == "consumer_disconnected":
            consumers = list(self._consumers(fault)) if connected is None else [connected]
            for one in consumers:
                one.close()
                one.subscription.leave(one)
            return len(consumers)
        subscriptions = list(self._subscriptions(fault))
        for subscription in subscriptions:
            for one in list(subscription.connected):
                subscription.redeliver(one, None, None)
        return len(subscriptions)

    def _topics(self, fault: Fault) -> Iterator[AnyTopic]:
        topics: list[AnyTopic] = [*self._context.topics.loaded(), *self._context.nonpersistent.loaded()]
        for topic in topics:
            entity = _entity(topic.name)
            if entity.topic == fault.topic and fault.partition in (None, entity.partition):
                yield topic

    def _producers(self, fault: Fault) -> Iterator[Producer]:
        for topic in self._topics(fault):
            with topic.lock:
                producers = list(topic.producers)
            for producer in producers:
                assert isinstance(producer, Producer)
                if fault.client_id in (None, producer.name):
                    yield producer

    def _subscriptions(self, fault: Fault) -> Iterator[Subscription | NonPersistentSubscription]:
        for topic in self._topics(fault):
            for subscription in list(topic.subscriptions.values()):
                assert isinstance(subscription, Subscription | NonPersistentSubscription)
                if fault.subscription in (None, subscription.name):
                    yield subscription

    def _consumers(self, fault: Fault) -> Iterator[ConnectedConsumer]:
        for subscription in self._subscriptions(fault):
            for connected in list(subscription.connected):
                if fault.client_id in (None, connected.consumer.name):
                    yield connected
