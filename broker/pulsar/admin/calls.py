"""Functions that all admin calls share: names in paths, rights, statuses of refusals, waiting, and message ids in JSON.

| a call | needs |
|---|---|
| reads a topic, its subscriptions, policies or schemas | DESCRIBE on the TOPIC |
| creates a topic | CREATE on the CLUSTER or on the TOPIC |
| deletes or truncates a topic | DELETE on the TOPIC |
| changes partitions, policies, properties, schemas; unloads, terminates, compacts, trims | ALTER on the TOPIC |
| shows a message by its id, place or time | READ on the TOPIC |
| changes, skips, resets or looks into a subscription | READ on the TOPIC and on the subscription (`broker/pulsar/rights.py`) |
| lists tenants, clusters and brokers | DESCRIBE on the CLUSTER |
| reads a tenant, its namespaces, their policies and permissions | DESCRIBE on the CLUSTER, or to be in its `adminRoles` |
| changes namespaces, their policies and permissions | ALTER on the CLUSTER, or to be in the tenant's `adminRoles` |
| changes tenants | ALTER on the CLUSTER |

Lists of topics omit those that the client may not describe. Rights are checked for a topic's name in Kafka.

Of several nodes, a call about a topic or partition of another node is answered with 307 and its address there. A call about a
partitioned topic as a whole does something with each partition, and ``gathering.py`` asks their nodes for it. Calls about several
topics of several nodes are refused, with the status 501.

If there is a ``pulsar+sasl`` listener, admin calls require authentication, too: by a certificate, a token (``Authorization:
Bearer``) or a password (``Authorization: Basic``), as the first such listener accepts them.

Tests: tests/pulsar/admin/test_topics.py,
tests/pulsar/admin/test_rights.py,
tests/pulsar/admin/test_subscriptions.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from broker.config.setting import InvalidSetting
from broker.errors import Refusal
from broker.network.work import ADMIN
from broker.other_nodes import is_ssl
from broker.pulsar import refusals
from broker.pulsar.context import PulsarContext
from broker.pulsar.entry import Entry
from broker.pulsar.namespaces import AlreadyExists
from broker.pulsar.nonpersistent.topics import NonPersistentTopics
from broker.pulsar.rights import may, may_in, may_subscribe
from broker.pulsar.subscriptions.locating import locate, locate_last, offset_in
from broker.pulsar.topic_names import TopicName, check_namespace, parse_topic
from broker.pulsar.topics.registry import TopicRegistry
from broker.pulsar.topics.topic import Topic
from broker.runtime.threads import Event
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.acl_authorizer import TooManyAcls
from broker.security.acl_rules import InvalidAcl
from broker.storage import refusals as storage
from broker.web.routes import Answer, Call, HttpError, Route
from protocol.pulsar.metadata import MessageId

_STATUSES: Final[Mapping[type[Refusal], int]] = {
    refusals.AuthenticationError: 401,
    refusals.AuthorizationError: 403,
    refusals.TopicNotFound: 404,
    refusals.SubscriptionNotFound: 404,
    refusals.ConsumerNotFound: 404,
    refusals.InvalidTopicName: 412,
    refusals.ConsumerBusy: 412,
    refusals.ProducerBusy: 412,
    refusals.TopicTerminated: 412,
    refusals.MetadataInvalid: 412,
    refusals.IncompatibleSchema: 409,
    refusals.NamespaceFull: 412,
    refusals.NotAllowed: 405,
    refusals.TooManyRequests: 429,
    refusals.ServiceNotReady: 503,
    AlreadyExists: 409,
    storage.UnknownTopic: 404,
    storage.TopicExists: 409,
    storage.InvalidTopicName: 412,
    storage.InvalidPartitionCount: 409,
    storage.OffsetOutOfRange: 412,
    InvalidSetting: 412,
    InvalidAcl: 412,
    TooManyAcls: 429,
}

# How long (s) a call waits for a reader or writer thread, and how often (s) it checks that its client is still connected.
_PATIENCE_S = 10.0
_LOOK_S = 0.25


def route(
    method: str, pattern: str, handler: Callable[[Call], Answer], *, fetches: bool = False, lane: str = ADMIN
) -> Route:
    """A route with a handler that may raise every Refusal of the Pulsar service and of the storage."""

    def handle(call: Call) -> Answer:
        try:
            return handler(call)
        except (HttpError, refusals.Elsewhere):
            raise
        except Refusal as error:
            raise HttpError(status_of(error), error.message or type(error).__name__) from None

    return Route(method, pattern, handle, lane=lane, fetches=fetches)


def status_of(error: Refusal) -> int:
    for kind in type(error).__mro__:
        status = _STATUSES.get(kind)
        if status is not None:
            return status
    return 500


def waited_for(call: Call, start: Callable[[Callable[[Any], None]], object]) -> Any:
    """The result that ``start`` passes to its callback, at once or later on another thread. Raises it if it is an exception, or
    HttpError after ``_PATIENCE_S``."""
    results: list[Any] = []
    event = Event()

    def done(result: Any) -> None:
        results.append(result)
        event.set()

    start(done)
    for _ in range(int(_PATIENCE_S / _LOOK_S)):
        if event.wait(_LOOK_S):
            break
        call.work.checkpoint()
    if not results:
        raise HttpError(503, "This takes too long; try again.")
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


# -- names ----------------------------------------------------------------------------------------------------------------


def topic_name(call: Call, domain: str = "persistent") -> TopicName:
    """The topic of the path. Raises InvalidTopicName."""
    names = call.names
    return parse_topic(f"{names.get('domain', domain)}://{names['tenant']}/{names['namespace']}/{names['topic']}")


def web_urls(context: PulsarContext, call: Call) -> tuple[str, str]:
    """The URL by which the client reached this broker: in the first place without TLS, in the second with TLS; the other is
    empty."""
    host = call.headers.get("host", "")
    return ("", f"https://{host}") if is_ssl(context.config.listeners, call) else (f"http://{host}", "")


def namespace_name(call: Call) -> str:
    """Raises InvalidTopicName."""
    return check_namespace(f"{call.names['tenant']}/{call.names['namespace']}")


def number(value: object, what: str, least: int = 0) -> int:
    """Check a whole number of a JSON document. Raises HttpError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise HttpError(400, f"{what} has to be a whole number of at least {least}.")
    return value


def json_object(call: Call) -> dict[str, Any]:
    """The body; an empty one is an empty object. Raises HttpError."""
    value = call.json() if call.body.strip() else {}
    if not isinstance(value, dict):
        raise HttpError(400, "The body has to be a JSON object.")
    return value


# -- topics -----------------------------------------------------------------------------------------------------------------


def require_existing(context: PulsarContext, name: TopicName) -> None:
    """Raises TopicNotFound."""
    if context.topics.partitions(name) is None:
        raise refusals.TopicNotFound(f"Topic {name} not found")


def loaded(context: PulsarContext, name: TopicName) -> Topic:
    """Load a topic that is not partitioned, or a partition. Raises TopicNotFound, NotAllowed."""
    if (context.topics.partitions(name) or 0) > 0:
        raise refusals.NotAllowed(f"{name} is a partitioned topic: name one of its partitions.")
    return context.topics.get_or_create(name, create=False)


def parts_of(context: PulsarContext, name: TopicName) -> list[TopicName]:
    """The partitions of a partitioned topic; any other topic itself. Raises TopicNotFound."""
    partitions = context.topics.partitions(name)
    if partitions is None:
        raise refusals.TopicNotFound(f"Topic {name} not found")
    return [name.of_partition(number) for number in range(partitions)] if partitions else [name]


def each_part(context: PulsarContext, name: TopicName) -> list[TopicName]:
    """As ``parts_of``, for a call that does something with each. Raises TopicNotFound, and what ``check_together`` raises."""
    parts = parts_of(context, name)
    check_together(context, parts)
    return parts


class Scattered(HttpError):
    """The topics are on several nodes. ``parts``: of a partitioned topic that the call names; none if it is about others."""

    def __init__(self, parts: Sequence[TopicName] = ()) -> None:
        super().__init__(501, "These topics are on several nodes: ask for one topic, or one partition, at a time.")
        self.parts = parts


def check_together(context: PulsarContext, parts: Sequence[TopicName]) -> None:
    """Call it before anything is done to one of several topics: this node has to have all of them. Raises Elsewhere if another
    node has, Scattered if they are on several nodes."""
    nodes = context.logs.nodes
    if nodes is None:
        return
    owners = {nodes.place_of_owner(*context.of_domain(part).partition_of(part)): part for part in parts}
    if len(owners) > 1:
        raise Scattered(parts if {part.whole for part in parts} == {parts[0].whole} else ())
    for part in owners.values():
        context.of_domain(part).check_here(part)


def visible(context: PulsarContext, call: Call, topics: TopicRegistry | NonPersistentTopics) -> Iterable[TopicName]:
    """The topics of the path's namespace that the client may describe. Raises TopicNotFound."""
    namespace = namespace_name(call)
    context.namespaces.require(namespace)
    for name in call.work.each(topics.topics(namespace)):
        if may_describe(context, call, name):
            yield name


def routes_of_topics(base: str, calls: Any) -> list[Route]:
    """The routes that both domains have. ``calls`` has their handlers."""
    topic = base + "/{topic}"
    return [
        route("GET", base, calls.names),
        route("GET", base + "/partitioned", calls.list_partitioned),
        route("PUT", topic, calls.create),
        route("DELETE", topic, calls.delete),
        route("GET", topic + "/partitions", calls.partitions),
        route("PUT", topic + "/partitions", calls.create_partitioned),
        route("POST", topic + "/partitions", calls.add_partitions),
        route("DELETE", topic + "/partitions", calls.delete_partitioned),
        route("PUT", topic + "/unload", calls.unload),
    ]


# -- rights -----------------------------------------------------------------------------------------------------------------


def require_topic(
    context: PulsarContext, call: Call, operation: Operation, name: TopicName, *, granted: bool = False
) -> None:
    """``granted``: the client has the right for the whole namespace; an ACL that denies it takes precedence all the same. Raises
    AuthorizationError."""
    if context.authorizer is not None and not may(
        context, call, operation, ResourceType.TOPIC, context.kafka_name(name), granted=granted
    ):
        raise refusals.AuthorizationError(f"Not authorized to {operation.name.lower()} {name}")


def may_describe(context: PulsarContext, call: Call, name: TopicName) -> bool:
    return context.authorizer is None or may(
        context, call, Operation.DESCRIBE, ResourceType.TOPIC, context.kafka_name(name), audited=False
    )


def require_creation(context: PulsarContext, call: Call, name: TopicName) -> None:
    """Raises AuthorizationError."""
    if not may(context, call, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
        require_topic(context, call, Operation.CREATE, name)


def name_to_create(context: PulsarContext, call: Call, domain: str = "persistent") -> TopicName:
    """The topic of the path. Checks that its namespace exists and that the client may create the topic there."""
    name = topic_name(call, domain)
    require_creation(context, call, name)
    context.topics.check_namespace(name)
    return name


def partitions_to_create(call: Call, name: TopicName) -> tuple[int, object]:
    """The body of a call that creates a partitioned topic: the number of partitions, and the properties or None."""
    if name.partition >= 0:
        raise HttpError(412, "A partitioned topic cannot have the name of a partition.")
    value = call.json()
    partitions, properties = (
        (value.get("partitions"), value.get("properties")) if isinstance(value, dict) else (value, None)
    )
    total = number(partitions, "The number of partitions")
    if total == 0:
        raise HttpError(406, "The number of partitions should be more than 0")
    return total, properties


def require_subscription(
    context: PulsarContext, call: Call, name: TopicName, subscription: str, *, granted: bool = False
) -> None:
    """``granted`` as in ``require_topic``. Raises AuthorizationError."""
    require_topic(context, call, Operation.READ, name, granted=granted)
    if context.authorizer is not None and not may_subscribe(
        context, call, context.kafka_name(name), subscription, granted=granted
    ):
        raise refusals.AuthorizationError(f"Not authorized to use the subscription {subscription[:300]}")


def require_tenant(context: PulsarContext, call: Call, operation: Operation) -> None:
    """For a call about namespaces of the path's tenant. Raises AuthorizationError."""
    tenant = call.names["tenant"]
    if not may_in(context, call, operation, tenant):
        raise refusals.AuthorizationError(f"Not authorized to {operation.name.lower()} the tenant {tenant[:300]}")


def require_cluster(context: PulsarContext, call: Call, operation: Operation) -> None:
    """Raises AuthorizationError."""
    if not may(context, call, operation, ResourceType.CLUSTER, CLUSTER_NAME):
        raise refusals.AuthorizationError(f"Not authorized to {operation.name.lower()} the cluster")


def message_id_json(topic: Topic, entry: int, batch_index: int = -1) -> dict[str, int]:
    return {"ledgerId": topic.ledger, "entryId": entry, "partitionIndex": topic.partition, "batchIndex": batch_index}


def parse_message_id(value: Any) -> MessageId:
    """An object such as ``{"ledgerId": 1, "entryId": 2}``. Raises HttpError."""
    if not isinstance(value, dict):
        raise HttpError(400, "A message id is an object with ledgerId and entryId.")
    return MessageId(number(value.get("ledgerId"), "ledgerId", -1), number(value.get("entryId"), "entryId", -1))


def offset_of(topic: Topic, message_id: MessageId) -> int:
    """The offset of the id; for an id of another generation of the topic, the start or the end."""
    return offset_in(topic, message_id.ledger_id, message_id.entry_id)


def entry_at(call: Call, topic: Topic, offset: int) -> Entry | None:
    """The entry that covers the offset, or the first entry after it; None at the end."""
    entry: Entry | None = waited_for(call, lambda done: locate(topic, offset, done))
    return entry


def last_entry(call: Call, topic: Topic) -> Entry | None:
    entry: Entry | None = waited_for(call, lambda done: locate_last(topic, done))
    return entry
