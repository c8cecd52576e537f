"""Admin calls about topics: list, create, delete, partitions, properties, unload, truncate, trim, terminate, compaction, and the
last message's id."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain

import attrs

from broker.errors import StorageError
from broker.pulsar.admin.calls import (
    check_together,
    each_part,
    json_object,
    last_entry,
    loaded,
    message_id_json,
    name_to_create,
    number,
    partitions_to_create,
    parts_of,
    require_creation,
    require_existing,
    require_topic,
    route,
    routes_of_topics,
    topic_name,
    visible,
    waited_for,
)
from broker.pulsar.admin.non_persistent import NonPersistent
from broker.pulsar.admin.policy_values import parse_properties
from broker.pulsar.admin.subscriptions import move
from broker.pulsar.compaction.compactions import State
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import ConsumerBusy, NotAllowed
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topic_names import TopicName, kafka_name
from broker.pulsar.topics.topic import TopicRecord
from broker.security.acl import Operation
from broker.storage.refusals import TopicExists
from broker.web.routes import NO_CONTENT, Answer, Call, HttpError, Route, json_answer

# Names in an answer: about 20 MB.
NAMES_MAX = 250_000
_FROM_WORST = (State.ERROR, State.RUNNING, State.NOT_RUN, State.SUCCESS)

BASE = "/admin/v2/persistent/{tenant}/{namespace}"
TOPIC = BASE + "/{topic}"


class Topics:
    def __init__(self, context: PulsarContext, passing: NonPersistent) -> None:
        self._context = context
        self._passing = passing

    def routes(self) -> list[Route]:
        return [
            *routes_of_topics(BASE, self),
            route("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics", self.list_by_mode),
            route("POST", TOPIC + "/terminate", self.terminate),
            route("POST", TOPIC + "/terminate/partitions", self.terminate_partitions),
            route("PUT", TOPIC + "/compaction", self.compact),
            route("GET", TOPIC + "/compaction", self.compaction_status),
            route("GET", TOPIC + "/lastMessageId", self.last_message_id),
            route("POST", TOPIC + "/createMissedPartitions", self.create_missed),
            route("DELETE", TOPIC + "/truncate", self.truncate),
            route("POST", TOPIC + "/trim", self.trim),
            route("GET", TOPIC + "/properties", self.properties),
            route("PUT", TOPIC + "/properties", self.add_properties),
            route("DELETE", TOPIC + "/properties", self.remove_property),
        ]

    # -- lists ----------------------------------------------------------------------------------------------------------

    def names(self, call: Call) -> Answer:
        return _names(call, self._visible(call))

    def list_partitioned(self, call: Call) -> Answer:
        return _names(call, dict.fromkeys(name.whole for name in self._visible(call) if name.partition >= 0))

    def list_by_mode(self, call: Call) -> Answer:
        """Clients that subscribe by a regular expression use this call."""
        mode = call.query.get("mode", "PERSISTENT").upper()
        persistent = self._visible(call) if mode != "NON_PERSISTENT" else ()
        return _names(call, chain(persistent, self._passing.visible(call) if mode != "PERSISTENT" else ()))

    def _visible(self, call: Call) -> Iterable[TopicName]:
        return visible(self._context, call, self._context.topics)

    # -- creating and deleting ----------------------------------------------------------------------------------------

    def create(self, call: Call) -> Answer:
        name = name_to_create(self._context, call)
        if self._context.topics.partitions(name) is not None or self._context.topics.partitions(name.whole) is not None:
            raise TopicExists("This topic already exists")
        self._context.topics.create(name, parse_properties(json_object(call)))
        return NO_CONTENT

    def create_partitioned(self, call: Call) -> Answer:
        name = name_to_create(self._context, call)
        total, properties = partitions_to_create(call, name)
        if self._context.topics.partitions(name) is not None:
            raise TopicExists("This topic already exists")
        self._context.topics.create_partitioned(name, total, parse_properties({} if properties is None else properties))
        return NO_CONTENT

    def add_partitions(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        total = number(call.json(), "The number of partitions", 1)
        present = self._context.topics.partitions(name)
        if not present:
            require_existing(self._context, name)
            raise HttpError(409, "Topic is not partitioned topic")
        self._context.topics.check_room(name.namespace, max(0, total - present))
        self._context.logs.add_partitions(kafka_name(name.whole), total)
        return NO_CONTENT

    def create_missed(self, call: Call) -> Answer:
        """Does nothing: a partitioned topic is always created with all of its partitions."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        if not self._context.topics.partitions(name):
            raise HttpError(404, f"Partitioned topic {name} does not exist")
        return NO_CONTENT

    def partitions(self, call: Call) -> Answer:
        """With checkAllowAutoCreation, which clients set, a topic that does not exist has 0 partitions, or is created with those
        of the policy."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        self._context.topics.check_namespace(name)
        partitions = self._context.topics.partitions(name)
        if partitions is None:
            if not call.flag("checkAllowAutoCreation"):
                require_existing(self._context, name)
            partitions = 0
            if self._context.topics.creates_partitioned(name):
                require_creation(self._context, call, name)
                partitions = self._context.topics.create_on_demand(name)
        return json_answer({"partitions": partitions, "deleted": False})

    def delete(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DELETE, name)
        if name.partition >= 0 and self._context.topics.partitions(name.whole):
            raise NotAllowed("A partition cannot be deleted by itself; delete the partitioned topic.")
        if self._context.topics.partitions(name):
            raise HttpError(409, "Partitioned topic: delete it with /partitions.")
        self.remove(name, call.flag("force"))
        return NO_CONTENT

    def delete_partitioned(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DELETE, name)
        if not self._context.topics.partitions(name):
            raise HttpError(404, "Partitioned topic does not exist")
        self.remove(name, call.flag("force"))
        return NO_CONTENT

    def remove(self, name: TopicName, force: bool) -> None:
        """Delete a topic with all its partitions. Raises TopicNotFound; ConsumerBusy if it is in use, unless ``force`` is set."""
        topics = self._context.topics
        parts = parts_of(self._context, name)
        if not force:
            check_together(self._context, parts)  # only the node of a partition knows who uses it
            if any(topic.in_use for topic in map(topics.get, parts) if topic is not None):
                raise ConsumerBusy("Topic has active producers/subscriptions")
        place = topics.place(parts[0])
        if place is not None:
            self._context.logs.delete_topic(place.info.name)

    # -- other ----------------------------------------------------------------------------------------------------------

    def unload(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        for part in call.work.each(each_part(self._context, name)):
            topic = self._context.topics.get(part)
            if topic is not None:
                self._context.topics.unload(topic)
        return NO_CONTENT

    def truncate(self, call: Call) -> Answer:
        """Delete all present messages of the topic, and move all subscriptions to its end."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.DELETE, name)
        for part in each_part(self._context, name):
            call.work.checkpoint()
            topic = loaded(self._context, part)
            if not topic.log.config.delete:
                raise NotAllowed(f"cleanup.policy of {topic.log.topic} does not include delete.")
            end = topic.reader.end
            with topic.lock:
                subscriptions = list(topic.subscriptions.values())
            for subscription in call.work.each(subscriptions):
                assert isinstance(subscription, Subscription)
                move(call, subscription, end)
            topic.log.trimming.delete_records(end)
        return NO_CONTENT

    def trim(self, call: Call) -> Answer:
        """Apply the retention now."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        for part in each_part(self._context, name):
            call.work.checkpoint()
            place = self._context.topics.place(part)
            log = None if place is None else self._context.logs.get(place.info.name, place.partition)
            if log is not None:
                waited_for(call, partial(self._context.logs.housekeeper.trim_soon, log))
        return NO_CONTENT

    def terminate(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        if self._context.topics.partitions(name):
            raise NotAllowed("Termination of a partitioned topic is not allowed: use /terminate/partitions.")
        if name.partition >= 0 and self._context.topics.partitions(name.whole):
            raise NotAllowed("Termination of a partition by itself is not possible: terminate the partitioned topic.")
        return json_answer(self._terminate(call, name))

    def terminate_partitions(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        if not self._context.topics.partitions(name):
            raise HttpError(409, "Topic is not a partitioned topic")
        parts = each_part(self._context, name)
        return json_answer({part.partition: self._terminate(call, part) for part in call.work.each(parts)})

    def _terminate(self, call: Call, name: TopicName) -> dict[str, int]:
        topic = loaded(self._context, name)
        error = waited_for(call, lambda done: self._context.topics.terminate(topic, done))
        if isinstance(error, StorageError):
            raise error
        last = last_entry(call, topic)
        return message_id_json(topic, -1 if last is None else last.offset)

    def compact(self, call: Call) -> Answer:
        """Request a compaction. Its progress is shown by GET."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        logs = [loaded(self._context, part).log for part in call.work.each(each_part(self._context, name))]
        begun = [self._context.compactions.request(log) for log in logs]
        if not any(begun):
            raise HttpError(409, "Compaction already in progress")
        self._context.upkeep.wakeup()
        return NO_CONTENT

    def compaction_status(self, call: Call) -> Answer:
        """The status of a partitioned topic is that of its partition furthest from success."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        statuses = [
            self._context.compactions.status(loaded(self._context, part).log)
            for part in call.work.each(each_part(self._context, name))
        ]
        worst = min(statuses, key=lambda status: _FROM_WORST.index(status.state))
        return json_answer({"status": str(worst.state), "lastError": worst.error})

    def last_message_id(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        topic = loaded(self._context, name)
        last = last_entry(call, topic)
        if last is None:
            return json_answer({"ledgerId": -1, "entryId": -1, "partitionIndex": topic.partition, "batchIndex": -1})
        return json_answer(message_id_json(topic, last.offset, last.messages - 1 if last.messages > 1 else -1))

    def properties(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        require_existing(self._context, name)
        record = self._context.topics.record(name)
        return json_answer({} if record is None else dict(record.properties))

    def add_properties(self, call: Call) -> Answer:
        """Add the properties of the body to the present properties."""
        name = topic_name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        added = parse_properties(call.json())
        self._change_properties(call, name, lambda before: parse_properties({**before, **added}))
        return NO_CONTENT

    def remove_property(self, call: Call) -> Answer:
        name, key = topic_name(call), call.query.get("key")
        require_topic(self._context, call, Operation.ALTER, name)
        if not key:
            raise HttpError(400, "Name the property in the parameter key.")
        self._change_properties(
            call, name, lambda before: {other: value for other, value in before.items() if other != key}
        )
        return NO_CONTENT

    def _change_properties(
        self, call: Call, name: TopicName, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """All partitions share the properties."""
        topic = loaded(self._context, parts_of(self._context, name)[0])

        def changed(record: TopicRecord) -> TopicRecord:
            return attrs.evolve(record, properties=change(record.properties))

        waited_for(call, partial(self._context.topics.change, topic, changed))
        nodes = self._context.logs.nodes
        if nodes is not None:
            nodes.settle()


def _names(call: Call, names: Iterable[TopicName]) -> Answer:
    texts: list[str] = []
    for name in names:
        if len(texts) == NAMES_MAX:
            raise HttpError(413, f"The namespace has more than {NAMES_MAX} topics, too many for one answer.")
        texts.append(str(name))
    return json_answer(texts)
