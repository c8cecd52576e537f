"""Admin calls about compaction: begin it, and how the last one went.

Tests: tests/pulsar/admin/test_compaction.py.
"""

from broker.network.routes import NO_CONTENT, Answer, Call, HttpError, Route, json_answer
from broker.pulsar.admin.calls import loaded, require_topic, route, topic_name
from broker.pulsar.compaction.compactions import State
from broker.pulsar.context import PulsarContext
from broker.pulsar.topics.topic import Topic
from broker.security.acl import Operation

_PATH = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/compaction"

_FAR = (State.SUCCESS, State.NOT_RUN, State.RUNNING, State.ERROR)


class Compaction:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [route("PUT", _PATH, self.begin), route("GET", _PATH, self.status)]

    def begin(self, call: Call) -> Answer:
        """Of all partitions, if it is a partitioned topic."""
        requested = [self._context.upkeep.compact(topic) for topic in self._topics(call, Operation.ALTER)]
        if not any(requested):
            raise HttpError(409, "Compaction already in progress")
        return NO_CONTENT

    def status(self, call: Call) -> Answer:
        """Of a partitioned topic, the one that is furthest from a success."""
        topics = self._topics(call, Operation.DESCRIBE)
        statuses = [self._context.compactions.status(topic.log) for topic in topics]
        status = max(statuses, key=lambda one: _FAR.index(one.state))
        return json_answer({"status": status.state.value, "lastError": status.error})

    def _topics(self, call: Call, operation: Operation) -> list[Topic]:
        name = topic_name(call)
        require_topic(self._context, call, operation, name)
        partitions = self._context.topics.partitions(name) or 0
        if name.partition < 0 and partitions:
            parts = [name.of_partition(number) for number in range(partitions)]
            return [loaded(self._context, part) for part in call.work.each(parts)]
        return [loaded(self._context, name)]
