"""Admin calls about subscriptions (list, create, delete, skip, expire, reset, analyze), and calls that show messages.

A call about a partitioned topic applies to each partition, except for calls with positions, which belong to a single partition. A
call is answered when the cursor is durable. A message is shown with its payload as the body and its metadata as headers.
"""

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from broker.network.work import INSPECTION
from broker.pulsar.admin.calls import (
    check_together,
    each_part,
    entry_at,
    json_object,
    loaded,
    message_id_json,
    namespace_name,
    number,
    offset_of,
    parse_message_id,
    require_creation,
    require_subscription,
    require_tenant,
    require_topic,
    route,
    topic_name,
    waited_for,
)
from broker.pulsar.context import PulsarContext
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.refusals import ConsumerBusy, MetadataInvalid, SubscriptionNotFound
from broker.pulsar.subscriptions import operations
from broker.pulsar.subscriptions.locating import offset_at
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topic_names import TopicName
from broker.pulsar.topics.topic import Topic
from broker.runtime.disk import FileRegion
from broker.security.acl import Operation
from broker.web.routes import NO_CONTENT, UNPROCESSABLE, Answer, Call, HttpError, Route, json_answer
from protocol.errors import ProtocolError
from protocol.pulsar.metadata import LATEST, is_encrypted, read_stored_metadata
from protocol.pulsar.payload import decompressed, is_readable
from protocol.pulsar.pulsar_pb2 import CompressionType
from protocol.wire import BytesLike

_MAGIC = b"\x0e\x01"
_SIZE = struct.Struct(">I")
# Properties of a message that become headers, and characters of a header's value.
_PEEKED_PROPERTIES_MAX = 50
_VALUE_MAX = 512
# The last millisecond of the year 9999: clients choose the times.
_TIME_MAX_MS: Final = 253_402_300_799_999


def peeked(topic: Topic, entry: Entry) -> Answer:
    """The entry as an answer, decompressed unless it is encrypted or a chunk. Reads the disk if the entry is not in memory.
    Raises HttpError."""
    data = entry.data
    content = data.file.pread(data.size, data.offset) if isinstance(data, FileRegion) else bytes(data)
    start = 6 if content[:2] == _MAGIC else 0  # the magic number and the checksum
    (size,) = _SIZE.unpack_from(content, start)
    metadata = read_stored_metadata(content[start + 4 : start + 4 + size])
    payload: BytesLike = content[start + 4 + size :]
    if is_readable(metadata):
        try:
            payload = decompressed(metadata, payload)
        except ProtocolError as error:
            raise HttpError(UNPROCESSABLE, f"The message cannot be decompressed: {error}") from None
    headers = [
        ("Message-ID", f"{topic.ledger}:{entry.offset}"),
        *((f"PROPERTY-{pair.key}", pair.value) for pair in metadata.properties[:_PEEKED_PROPERTIES_MAX]),
        ("Is-Encrypted", "true" if is_encrypted(metadata) else "false"),
        ("producer-name", metadata.producer_name),
        ("sequence-id", str(metadata.sequence_id)),
        ("compression", CompressionType.Name(metadata.compression)),
        ("uncompressed-size", str(metadata.uncompressed_size)),
    ]
    for name, time_ms in (
        ("publish-time", metadata.publish_time),
        ("event-time", metadata.event_time),
        ("deliver-at-time", metadata.deliver_at_time),
    ):
        if 0 < time_ms <= _TIME_MAX_MS:
            headers.append((name, _date(time_ms)))
    if metadata.HasField("num_messages_in_batch"):
        headers += [
            ("num-batch-message", str(metadata.num_messages_in_batch)),
            ("batch-size", str(len(payload))),
        ]
    if metadata.HasField("partition_key"):
        headers.append(("partition-key", metadata.partition_key))
    if metadata.partition_key_b64_encoded:
        headers.append(("partition-key-b64-encoded", "true"))
    if metadata.null_value:
        headers.append(("null-value", "true"))
    # Java's client recognizes the headers of properties only in exactly this letter case.
    legal = tuple((_name(f"X-Pulsar-{name}"), _value(value)) for name, value in headers)
    return Answer(200, bytes(payload), "application/octet-stream", legal)


def _date(time_ms: int) -> str:
    """The time as Java's client reads it."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _name(text: str) -> str:
    """A legal header name: clients choose the names of properties."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in text)[
        :200
    ]


def _value(text: str) -> str:
    return "".join(letter if " " < letter < "\x7f" else "?" for letter in text[:_VALUE_MAX])


TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
ONE = TOPIC + "/subscription/{subscription}"

# The furthest message that can be peeked at, because all messages before it are read.
POSITION_MAX = 100_000
# Bytes of a subscription's name, and of its properties as JSON.
_NAME_MAX = 1024
_PROPERTIES_MAX = 16 * 1024


class Subscriptions:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            route("GET", TOPIC + "/subscriptions", self.names),
            route("PUT", ONE, self.create),
            route("DELETE", ONE, self.delete),
            route("POST", ONE + "/skip/{count}", self.skip),
            route("POST", ONE + "/skip_all", self.skip_all),
            route("POST", ONE + "/expireMessages/{seconds}", self.expire),
            route("POST", ONE + "/expireMessages", self.expire_until),
            route("POST", TOPIC + "/all_subscription/expireMessages/{seconds}", self.expire_all),
            route("POST", ONE + "/resetcursor/{timestamp}", self.reset_to_time),
            route("POST", ONE + "/resetcursor", self.reset_to_id),
            route("POST", ONE + "/analyzeBacklog", self.analyze, lane=INSPECTION),
            route("GET", ONE + "/position/{position}", self.peek, fetches=True, lane=INSPECTION),
            *(
                route("POST", base + path, call)
                for base in (NAMESPACE, NAMESPACE + "/{bundle}")  # there is only one bundle
                for path, call in (
                    ("/clearBacklog", self.clear_namespace),
                    ("/clearBacklog/{subscription}", self.clear_namespace),
                    ("/unsubscribe/{subscription}", self.unsubscribe_namespace),
                )
            ),
            route("GET", TOPIC + "/messageid/{timestamp}", self.message_id_at),
            route("GET", TOPIC + "/ledger/{ledger}/entry/{entry}", self.entry, fetches=True, lane=INSPECTION),
            route("GET", TOPIC + "/examinemessage", self.examine, fetches=True, lane=INSPECTION),
            route("GET", ONE + "/properties", self.properties),
            route("PUT", ONE + "/properties", self.set_properties),
        ]

    def names(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        names: dict[str, None] = {}
        for part in call.work.each(each_part(self._context, name)):
            names.update(dict.fromkeys(self._names(part)))
        return json_answer([*names])

    def _names(self, name: TopicName) -> list[str]:
        """The names of a topic's subscriptions. Does not load the topic."""
        topic = self._context.topics.get(name)
        if topic is not None and not topic.closed:
            return [*topic.subscriptions]
        place = self._context.topics.place(name)
        return [] if place is None else self._context.subscriptions.store.names(place.info.topic_id, place.partition)

    # -- creating and deleting ----------------------------------------------------------------------------------------

    def create(self, call: Call) -> Answer:
        """The subscription starts at the end unless the body names a message."""
        name, subscription = self._named(call)
        if not 0 < len(subscription.encode("utf-8", "surrogatepass")) <= _NAME_MAX:
            raise MetadataInvalid(f"The name of a subscription has 1 to {_NAME_MAX} bytes.")
        body = json_object(call)
        message_id = parse_message_id(body) if "ledgerId" in body else LATEST
        context = self._context
        context.topics.check_namespace(name)
        if context.topics.partitions(name) is None:
            require_creation(context, call, name)  # the same right as for a client that subscribes
            context.topics.get_or_create(name)
        made: list[Subscription] = []
        for part in call.work.each(each_part(context, name)):
            topic = loaded(context, part)
            start = offset_of(topic, message_id)
            with topic.lock:
                if subscription in topic.subscriptions:
                    continue
                made.append(context.subscriptions.make(topic, subscription, start))
                made[-1].saving.changed()
        if not made:
            raise HttpError(409, "Subscription already exists for topic")
        for each in made:
            _save(call, each)
        return NO_CONTENT

    def delete(self, call: Call) -> Answer:
        subscriptions = self._found(call)
        if not call.flag("force") and any(subscription.connected for subscription in subscriptions):
            raise ConsumerBusy("Subscription has active connected consumers")
        for subscription in subscriptions:
            error = waited_for(call, partial(self._context.subscriptions.remove, subscription))
            if error is not None:
                raise error
        return NO_CONTENT

    # -- going forward ------------------------------------------------------------------------------------------------

    def skip(self, call: Call) -> Answer:
        subscriptions, count = self._found(call), number(_path_number(call, "count"), "The number of messages", 1)
        for subscription in subscriptions:
            _done(call, partial(operations.skip, subscription, count))
            _save(call, subscription)
        return NO_CONTENT

    def skip_all(self, call: Call) -> Answer:
        for subscription in self._found(call):
            operations.clear(subscription)
            _save(call, subscription)
        return NO_CONTENT

    def expire(self, call: Call) -> Answer:
        """Acknowledge messages older than so many seconds."""
        until_ms = self._context.clock.time_ms() - 1000 * number(_path_number(call, "seconds"), "The time")
        for subscription in self._found(call):
            operations.expire(subscription, until_ms)
            _save(call, subscription)
        return NO_CONTENT

    def expire_until(self, call: Call) -> Answer:
        (subscription,) = self._found(call, single=True)
        move(call, subscription, offset_of(subscription.topic, parse_message_id(json_object(call))))
        return NO_CONTENT

    def expire_all(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.READ, name)  # first, so as not to reveal whether the topic exists
        until_ms = self._context.clock.time_ms() - 1000 * number(_path_number(call, "seconds"), "The time")
        for part in call.work.each(each_part(self._context, name)):
            topic = loaded(self._context, part)
            for subscription in call.work.each([*topic.subscriptions.values()]):
                assert isinstance(subscription, Subscription)
                require_subscription(self._context, call, name, subscription.name)
                operations.expire(subscription, until_ms)
                _save(call, subscription)
        return NO_CONTENT

    def clear_namespace(self, call: Call) -> Answer:
        """Clear the backlog of all subscriptions, or of those with a name, in all topics of a namespace."""
        namespace, named = namespace_name(call), call.names.get("subscription")
        require_tenant(self._context, call, Operation.ALTER)
        self._context.namespaces.require(namespace)
        check_together(self._context, self._context.topics.topics(namespace))
        for part in call.work.each(self._context.topics.topics(namespace)):
            for name in self._names(part):
                if named in (None, name):
                    require_subscription(self._context, call, part, name, granted=True)
                    call.work.checkpoint()
                    subscription = self._context.subscriptions.find(loaded(self._context, part), name)
                    if subscription is not None:
                        operations.clear(subscription)
                        _save(call, subscription)
        return NO_CONTENT

    def unsubscribe_namespace(self, call: Call) -> Answer:
        """Delete the subscriptions of this name in all topics of a namespace. Raises ConsumerBusy before any is deleted."""
        namespace, named = namespace_name(call), call.names["subscription"]
        require_tenant(self._context, call, Operation.ALTER)
        self._context.namespaces.require(namespace)
        check_together(
            self._context, [*self._context.topics.topics(namespace), *self._context.nonpersistent.topics(namespace)]
        )
        subscriptions = []
        for part in call.work.each(self._context.topics.topics(namespace)):
            if named in self._names(part):
                require_subscription(self._context, call, part, named, granted=True)
                call.work.checkpoint()
                subscription = self._context.subscriptions.find(loaded(self._context, part), named)
                subscriptions += [] if subscription is None else [subscription]
        passing = self._context.nonpersistent
        topics = [topic for topic in passing.loaded() if topic.name.namespace == namespace]
        named_so = [topic.subscriptions.get(named) for topic in topics]
        unkept = [subscription for subscription in named_so if isinstance(subscription, NonPersistentSubscription)]
        for other in unkept:
            require_subscription(self._context, call, other.topic.name, named, granted=True)
        if any(subscription.has_consumers for subscription in subscriptions) or any(
            subscription.has_consumers for subscription in unkept
        ):
            raise ConsumerBusy("Subscription has active connected consumers")
        for subscription in call.work.each(subscriptions):
            _done(call, partial(self._context.subscriptions.remove, subscription))
        for other in unkept:
            passing.unsubscribe(other)
        return NO_CONTENT

    # -- going anywhere -----------------------------------------------------------------------------------------------

    def reset_to_time(self, call: Call) -> Answer:
        time_ms = number(_path_number(call, "timestamp"), "The time")
        for subscription in self._found(call):
            _done(call, partial(operations.reset_to_time, subscription, time_ms))
        return NO_CONTENT

    def reset_to_id(self, call: Call) -> Answer:
        """Reset the cursor to the named message or, with ``isExcluded``, to the next."""
        (subscription,) = self._found(call, single=True)
        body, topic = json_object(call), subscription.topic
        message_id = parse_message_id(body)
        offset = offset_of(topic, message_id)
        if body.get("isExcluded") is True:
            entry = entry_at(call, topic, offset)
            if entry is not None and entry.offset <= offset:
                offset = entry.offset + entry.messages
        _done(call, partial(operations.reset_to_offset, subscription, offset))
        return NO_CONTENT

    def peek(self, call: Call) -> Answer:
        """The n-th unacknowledged message, from 1."""
        (subscription,) = self._found(call, single=True)
        position = number(_path_number(call, "position"), "The position", 1)
        if position > POSITION_MAX:
            raise HttpError(400, f"The position is at most {POSITION_MAX}.")
        entry: Entry | None = waited_for(call, partial(operations.peek, subscription, position))
        if entry is None:
            raise HttpError(404, "Message not found")
        return peeked(subscription.topic, entry)

    def message_id_at(self, call: Call) -> Answer:
        """The id of the first message of this time (ms) or later; at the end, the id of the next message."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.READ, name)
        topic = loaded(self._context, name)
        offset = offset_at(topic, number(_path_number(call, "timestamp"), "The time"))
        entry = entry_at(call, topic, offset)
        return json_answer(message_id_json(topic, offset if entry is None else entry.offset))

    def entry(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.READ, name)
        topic = loaded(self._context, name)
        ledger, offset = _path_number(call, "ledger"), _path_number(call, "entry")
        entry = entry_at(call, topic, offset) if ledger == topic.ledger and offset < topic.reader.end else None
        if entry is None or entry.offset > offset:
            raise HttpError(404, "Message not found")
        return peeked(topic, entry)

    def examine(self, call: Call) -> Answer:
        """The message at a place, from 1, counted from the first or the last message; for a message of a batch, the batch. Pulsar
        counts entries, which makes no difference without batches."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.READ, name)
        topic = loaded(self._context, name)
        origin, text = call.query.get("initialPosition") or "latest", call.query.get("messagePosition") or "1"
        place = max(1, parse_number(text.removeprefix("-"), "messagePosition") * (-1 if text[:1] == "-" else 1))
        start, end = topic.log.log_start_offset, topic.reader.end
        if origin not in ("earliest", "latest"):
            raise HttpError(400, "initialPosition is earliest or latest.")
        if start >= end:
            raise HttpError(412, "Could not examine messages due to the total message is zero")
        offset = start + place - 1 if origin == "earliest" else max(start, end - place)
        entry = entry_at(call, topic, offset) if offset < end else None
        if entry is None:
            raise HttpError(404, "Message not found")
        return peeked(topic, entry)

    def analyze(self, call: Call) -> Answer:
        """Count the backlog, from the message in the body if there is one. ``aborted``: there may be more than was counted."""
        (subscription,) = self._found(call, single=True)
        topic, body = subscription.topic, json_object(call)
        start = offset_of(topic, parse_message_id(body)) if "ledgerId" in body else 0
        backlog: operations.BacklogFound = waited_for(call, partial(operations.analyze, subscription, start))
        counted = {"entries": backlog.entries, "messages": backlog.messages}
        for unit, count in (("Entries", backlog.entries), ("Messages", backlog.messages)):
            counted |= {f"filterAccepted{unit}": count, f"filterRejected{unit}": 0, f"filterRescheduled{unit}": 0}
        ids = {"firstMessageId": backlog.first, "lastMessageId": backlog.last}
        shown = {name: f"{topic.ledger}:{offset}" for name, offset in ids.items() if offset >= 0}
        return json_answer({**counted, "markerMessages": 0, "aborted": backlog.aborted, **shown})

    # -- properties ---------------------------------------------------------------------------------------------------

    def properties(self, call: Call) -> Answer:
        return json_answer(dict(self._found(call)[0].properties))

    def set_properties(self, call: Call) -> Answer:
        subscriptions, body = self._found(call), json_object(call)
        if not all(isinstance(value, str) for value in body.values()):
            raise HttpError(400, "Properties are texts.")
        if sum(len(key) + len(value) for key, value in body.items()) > _PROPERTIES_MAX:
            raise HttpError(400, f"The properties have more than {_PROPERTIES_MAX} characters.")
        for subscription in subscriptions:
            with subscription.lock:
                subscription.cursor.set_properties(body)
                subscription.saving.changed()
            _save(call, subscription)
        return NO_CONTENT

    # -- finding --------------------------------------------------------------------------------------------------------

    def _named(self, call: Call) -> tuple[TopicName, str]:
        name, subscription = topic_name(call), call.names["subscription"]
        require_subscription(self._context, call, name, subscription)
        return name, subscription

    def _found(self, call: Call, *, single: bool = False) -> list[Subscription]:
        """The subscription of each partition. ``single``: the topic must not be partitioned. Raises SubscriptionNotFound."""
        name, subscription = self._named(call)
        parts = [name] if single else each_part(self._context, name)
        subscriptions = []
        for part in call.work.each(parts):
            if subscription in self._names(part):
                each = self._context.subscriptions.find(loaded(self._context, part), subscription)
                if each is not None:
                    subscriptions.append(each)
            elif single:
                loaded(self._context, part)  # TopicNotFound and NotAllowed take precedence
        if not subscriptions:
            raise SubscriptionNotFound(f"Subscription {subscription[:300]} not found")
        return subscriptions


def _path_number(call: Call, name: str) -> int:
    return parse_number(call.names[name], f"{name} in the path")


def parse_number(text: str, what: str) -> int:
    """Parse a number in the path or the query. Raises HttpError."""
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise HttpError(400, f"{what} has to be a whole number.")
    return int(text)


def move(call: Call, subscription: Subscription, offset: int) -> None:
    """Acknowledge everything before the offset."""
    subscription.acknowledgements.add_until(None, min(offset, subscription.topic.reader.end))
    _save(call, subscription)


def _save(call: Call, subscription: Subscription) -> None:
    """Wait until the cursor is durable. Raises StorageError."""
    _done(call, subscription.saving.save)


def _done(call: Call, start: Callable[[Callable[[Any], None]], object]) -> None:
    """Wait for the end of an operation. Raises its error."""
    error = waited_for(call, start)
    if error is not None:
        raise error
