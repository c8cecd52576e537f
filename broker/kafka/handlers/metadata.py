"""Metadata: which topics and partitions exist, and on which broker. Creates topics that a client asks for, if it may.

Every client asks when it starts and every few minutes, and a thousand topics take milliseconds to encode. So answers are kept
until any topic changes (``LogManager.generation``), for all clients that may see the same topics. Creating a topic waits for the
disk, so the topic maker does it; the request is parked meanwhile, for a bounded time.

A client may ask for topics by name and, from version 12 on, by id. An id is no secret, as in Kafka: a client that may not
describe the topic is told so, but not the topic's name. No topic is created for an id, nor under the names of Kafka's internal
topics: a tool that looks for the offsets of groups there would wait in an empty topic for ever.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs

from broker.errors import Refusal
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import NO_NAMES, authorized_operations, cluster_operations, denied, uncreatable
from broker.kafka.context import KafkaContext, Key
from broker.kafka.error_codes import code_of
from broker.kafka.metering import Metered
from broker.kafka.topic_maker import NAMES_MAX, Failures
from broker.network.service import Handover, Outbox, Part
from broker.network.work import BULK, INLINE_BYTES, INLINE_ENTRIES, REQUEST_ENTRIES_MAX, RESPONSE_MAX_BYTES, Work, once
from broker.runtime.timers import TimerHandle
from broker.security.acl import Operation, ResourceType
from broker.storage.config import TopicInfo, check_name
from broker.storage.refusals import InvalidTopicName, TopicExists
from protocol.errors import ProtocolError
from protocol.frames import with_correlation_id
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import metadata
from protocol.wire import BytesLike

# An answer about more topics or partitions than this is encoded by a handler: it takes more than 1 ms.
_INLINE_TOPICS_MAX = 20
_INLINE_PARTITIONS_MAX = 500
# An answer about more partitions than this takes a handler 20 ms or more: it goes through the bulk lane.
_USUAL_PARTITIONS_MAX = 5_000
# How long (s) a request waits for its topics to be created before the client is told to ask again. They are created all the same.
_WAIT_S = 2.0
# Topics in which Kafka keeps data that is in the catalogue here. They can be created, but not by asking for them.
_KAFKAS_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
# Longer frames are not copied, neither for the cache nor to set a correlation id.
_COPY_MAX_BYTES = 16 * 1024


@attrs.frozen
class _Asked:
    """A request, and the topics that its client may see."""

    request: metadata.MetadataRequest
    generation: int  # of the topics, read before anything was looked up: if a topic changes, the answer is not kept
    names: Collection[str | bytes] | None  # names, or ids of 16 bytes; None: all topics
    topics: Sequence[TopicInfo]  # if all are asked for, the visible ones
    hidden: frozenset[str]  # topics that the client may not describe: they are not looked up
    uncreatable: frozenset[str] = NO_NAMES  # topics that do not exist and that the client may not create

    def is_open(self, name: str) -> bool:
        return name not in self.hidden and name not in self.uncreatable


def _ask(context: KafkaContext, request: KafkaRequest, parsed: metadata.MetadataRequest) -> _Asked:
    generation = context.logs.generation
    connection, describe = request.connection, Operation.DESCRIBE
    if parsed.topics is not None:
        wanted = once(parsed.topics)
        hidden = NO_NAMES
        if context.authorizer is not None:
            names = (name for one in wanted if (name := _name(context, one)) is not None)
            hidden = denied(context, connection, describe, ResourceType.TOPIC, names)
        return _Asked(parsed, generation, wanted, (), hidden)
    topics = context.logs.topics()
    hidden = denied(context, connection, describe, ResourceType.TOPIC, (one.name for one in topics), audited=False)
    visible = [info for info in topics if info.name not in hidden] if hidden else topics
    return _Asked(parsed, generation, None, visible, hidden)


def _name(context: KafkaContext, wanted: str | bytes) -> str | None:
    """The name of a requested topic. None: there is no topic with this id."""
    if isinstance(wanted, str):
        return wanted
    info = context.logs.topics_by_id.get(wanted)
    return None if info is None else info.name


def _find(context: KafkaContext, wanted: str | bytes) -> TopicInfo | None:
    return context.logs.topic(wanted) if isinstance(wanted, str) else context.logs.topics_by_id.get(wanted)


def _key(context: KafkaContext, request: KafkaRequest, hidden: frozenset[str]) -> Key:
    return (request.api_version, context.advertised(request.connection.peer), bytes(request.body), hidden)


def _cached(context: KafkaContext, request: KafkaRequest, asked: _Asked | None = None) -> BytesLike | None:
    """``asked``: set if an authorizer decides which topics the client may see."""
    if asked is None:
        return context.metadata_cache.get(_key(context, request, NO_NAMES), context.logs.generation)
    return context.metadata_cache.get(_key(context, request, asked.hidden), asked.generation)


def _prepare(context: KafkaContext, request: KafkaRequest) -> BytesLike | _Asked | Handover:
    if context.authorizer is None:
        cached = _cached(context, request)
        if cached is not None:
            return cached
    parsed = metadata.parse_request(request.body, request.api_version, 0, INLINE_ENTRIES)
    if parsed.topics is None:
        partitions = len(context.logs.partitions)
        if context.authorizer is not None and partitions <= _INLINE_PARTITIONS_MAX:
            cached = _cached(context, request, _ask(context, request, parsed))
            if cached is not None:
                return cached
        return Handover(BULK if partitions > _USUAL_PARTITIONS_MAX else None)
    asked = _ask(context, request, parsed)
    if context.authorizer is not None:
        cached = _cached(context, request, asked)
        if cached is not None:
            return cached
    assert asked.names is not None
    infos = [_find(context, wanted_topic) for wanted_topic in asked.names if wanted_topic not in asked.hidden]
    partitions = sum(info.partitions for info in infos if info is not None)
    if partitions > _USUAL_PARTITIONS_MAX:
        return Handover(BULK)
    if len(infos) > _INLINE_TOPICS_MAX or None in infos or partitions > _INLINE_PARTITIONS_MAX:
        return Handover()
    return asked


def _handle(
    context: KafkaContext,
    request: KafkaRequest,
    outbox: Outbox,
    prepared: "BytesLike | _Asked | _Waiting | None",
) -> None:
    if type(prepared) is bytes:  # the usual answer
        outbox.send(request, [with_correlation_id(prepared, request.correlation_id)])
        return
    if isinstance(prepared, _Waiting):
        prepared.answer()
        return
    short = len(request.body) <= INLINE_BYTES
    if prepared is None:
        # After a change many clients ask the same at once: requests that waited for a handler find the answer to the first.
        if context.authorizer is None:
            prepared = _cached(context, request) if short else None
        if prepared is None:
            parsed = metadata.parse_request(request.body, request.api_version, 0, REQUEST_ENTRIES_MAX)
            prepared = _ask(context, request, parsed)
            if context.authorizer is not None and short:
                prepared = _cached(context, request, prepared) or prepared
    if not isinstance(prepared, _Asked):
        outbox.send(request, _parts(prepared, request))
        return
    asked, names = prepared, prepared.names
    create = asked.request.allow_auto_topic_creation and context.config.auto_create_topics_enable
    if names is not None and create:
        missing = [
            name
            for name in names
            if isinstance(name, str) and name not in asked.hidden and context.logs.topic(name) is None
        ]
        asked = attrs.evolve(asked, uncreatable=uncreatable(context, request.connection, missing))
        missing = [name for name in missing if asked.is_open(name) and _refusal(context, name) is None]
        if missing:
            if type(outbox) is Metered:
                outbox.mutated(len(missing) * context.config.num_partitions, throttle=True)
            _Waiting(context, request, outbox, asked, names).park(missing)
            return
    frame, complete = _answer(context, request, asked, create)
    if complete and short and asked.generation == context.logs.generation and _is_common(context, asked):
        context.metadata_cache.put(_key(context, request, asked.hidden), asked.generation, frame)
    outbox.send(request, _parts(frame, request))


def _is_common(context: KafkaContext, asked: _Asked) -> bool:
    """The answer is the same for every client that may see the same topics."""
    parsed = asked.request
    return context.authorizer is None or not (
        parsed.include_topic_authorized_operations or parsed.include_cluster_authorized_operations
    )


def _parts(frame: BytesLike, request: KafkaRequest) -> list[Part]:
    """The frame with the request's correlation id. A long frame is shared by all connections to which it is sent."""
    if type(frame) is bytes:
        return [with_correlation_id(frame, request.correlation_id)]
    view = memoryview(frame)
    return [bytes(view[:4]) + request.correlation_id.to_bytes(4, "big", signed=True), view[8:]]


def _refusal(context: KafkaContext, name: str) -> int | None:
    """The error code that forbids creating a topic of this name. None: it can be created."""
    if name in _KAFKAS_INTERNAL:
        return ErrorCode.unknown_topic_or_partition
    try:
        context.logs.check_name(name)
    except TopicExists:  # created just now
        return None
    except Refusal as error:
        return code_of(error)
    return None


def _absent(name: str) -> ErrorCode:
    """The error of a topic that does not exist and is not created. Clients do not ask again for an invalid name."""
    try:
        check_name(name)
    except InvalidTopicName:
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition


class _Waiting:
    """A request whose topics are being created. ``give_up`` and ``abandon`` run on the connection's processor."""

    def __init__(
        self,
        context: KafkaContext,
        request: KafkaRequest,
        outbox: Outbox,
        asked: _Asked,
        names: Collection[str | bytes],
    ) -> None:
        self._context = context
        self._request = request
        self._outbox = outbox
        self._asked = asked
        self._names = names
        self._failures: Failures = {}
        self._timer: TimerHandle | None = None
        self._done = False

    def park(self, missing: list[str]) -> None:
        """Called on a handler thread; the connection takes no other request until this one is answered."""
        context, connection = self._context, self._request.connection
        connection.data = self
        self._timer = context.timer.at(context.clock.monotonic() + _WAIT_S, self._ready)
        if not context.topic_maker.make(
            missing[:NAMES_MAX], lambda: not (connection.closed or context.stopping), self._made
        ):
            self._ready()
        if (
            context.stopping or connection.closed or connection.finished
        ):  # requests that waited before that have been told
            self._ready()

    def _made(self, failures: Failures) -> None:
        """Called on the topic maker's thread."""
        self._failures = failures
        self._ready()

    def _ready(self) -> None:
        self._outbox.call(self._request.connection, self.give_up)

    def give_up(self) -> None:
        """Have a handler answer with the topics that exist."""
        if self._done:
            return
        self.abandon()
        request = self._request
        request.connection.data = None
        self._outbox.hand_over(request, Handover(BULK if len(self._names) > INLINE_ENTRIES else None, self))

    def abandon(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()

    def answer(self) -> None:
        """Called on a handler thread. Topics that do not exist yet will be created, at the latest when the client asks again."""
        frame, _ = _answer(self._context, self._request, self._asked, True, self._failures)
        self._outbox.send(self._request, _parts(frame, self._request))


def _with_operations(
    context: KafkaContext, request: KafkaRequest, topic: metadata.TopicMetadata
) -> metadata.TopicMetadata:
    """Also for topics that the client may not see: they are its own rights. Not for an id, which would tell nothing new."""
    if topic.name is None:
        return topic
    operations = authorized_operations(context, request.connection, ResourceType.TOPIC, topic.name)
    return topic._replace(authorized_operations=operations)


def _answer(
    context: KafkaContext,
    request: KafkaRequest,
    asked: _Asked,
    create: bool,
    failures: Mapping[str, int] = MappingProxyType({}),
) -> tuple[BytesLike, bool]:
    """The frame, without the correlation id, and whether it may be kept for equal requests.

    ``create``: topics that do not exist are being created, except those with an error code in ``failures`` or an invalid name.
    Raises ProtocolError if the answer would be too long.
    """
    work = request.work(context)
    parsed = asked.request
    topics = []
    complete = not asked.uncreatable
    if asked.names is None:
        topics = [_topic(context, info, work) for info in asked.topics]
    else:
        for wanted in work.each(asked.names):
            if isinstance(wanted, bytes):
                entry = _by_id(context, request.api_version, asked, wanted, work)
            elif not asked.is_open(wanted):
                entry = metadata.TopicMetadata(ErrorCode.topic_authorization_failed, wanted)
            elif (info := context.logs.topic(wanted)) is not None:
                entry = _topic(context, info, work)
            elif create:
                code = failures.get(wanted) or _refusal(context, wanted) or ErrorCode.leader_not_available
                entry = metadata.TopicMetadata(code, wanted)
            else:
                entry = metadata.TopicMetadata(_absent(wanted), wanted)
            if entry.error:
                complete = complete and entry.error == ErrorCode.topic_authorization_failed
                context.errors.add(API.label, entry.error)
            topics.append(entry)
    if parsed.include_topic_authorized_operations:
        topics = [_with_operations(context, request, topic) for topic in work.each(topics)]
    operations = (
        cluster_operations(context, request.connection)
        if parsed.include_cluster_authorized_operations
        else metadata.OPERATIONS_NOT_ASKED
    )
    size = metadata.response_size(request.api_version, topics)
    if size > RESPONSE_MAX_BYTES:
        raise ProtocolError(f"its answer would have about {size} bytes: more than {RESPONSE_MAX_BYTES}")
    peer = request.connection.peer
    frame = metadata.response(
        request.correlation_id,
        request.api_version,
        brokers=[
            metadata.BrokerInfo(node.node_id, *node.endpoints[peer.listener], node.rack)
            for node in context.brokers(peer)
        ],
        cluster_id=context.cluster_id,
        controller_id=context.controller_id,
        topics=topics,
        cluster_authorized_operations=operations,
    )
    return (bytes(frame) if len(frame) <= _COPY_MAX_BYTES else frame), complete


def _topic(context: KafkaContext, info: TopicInfo, work: Work) -> metadata.TopicMetadata:
    partitions = _Partitions(info.partitions, context, info.name, work)
    return metadata.TopicMetadata(0, info.name, False, partitions, topic_id=info.topic_id.bytes)


def _by_id(context: KafkaContext, version: int, asked: _Asked, topic_id: bytes, work: Work) -> metadata.TopicMetadata:
    """The answer's entry for a topic that is requested by its id."""
    info = context.logs.topics_by_id.get(topic_id)
    if version < metadata.FIRST_BY_TOPIC_ID:
        return metadata.TopicMetadata(ErrorCode.invalid_request, "", topic_id=topic_id)
    if info is None:
        return metadata.TopicMetadata(ErrorCode.unknown_topic_id, None, topic_id=topic_id)
    if not asked.is_open(info.name):
        return metadata.TopicMetadata(ErrorCode.topic_authorization_failed, None, topic_id=topic_id)
    return _topic(context, info, work)


@attrs.frozen
class _Partitions(Collection[metadata.PartitionMetadata]):
    """The partitions of a topic, created singly while the response is written: there may be 100,000.

    An offline partition has its leader in the answer all the same: produce and fetch then tell the client the error,
    whereas "no leader" would make it ask for metadata until it gives up. If its node is not there, nobody could tell: then it has
    no leader until the node is started again.
    """

    count: int
    context: KafkaContext
    topic: str
    work: Work

    def __len__(self) -> int:
        return self.count

    def __contains__(self, partition: object) -> bool:
        return any(partition == each for each in self)

    def __iter__(self) -> Iterator[metadata.PartitionMetadata]:
        context, topic = self.context, self.topic
        for number in self.work.each(range(self.count)):
            leader = context.leader_of(topic, number)
            replicas = (leader.node_id,)
            if leader.is_there:
                yield metadata.PartitionMetadata(0, number, leader.node_id, leader.epoch, replicas, replicas, ())
            else:
                error = ErrorCode.leader_not_available
                yield metadata.PartitionMetadata(error, number, -1, leader.epoch, replicas, (), replicas)


API = Api(
    key=ApiKey.METADATA,
    min_version=0,
    max_version=metadata.MAX_VERSION,
    handle_raw=_handle,
    prepare=_prepare,
)
