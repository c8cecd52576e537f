"""Requests to consumer groups whose coordinator assigns the partitions (KIP-848). Part of the ``GroupCoordinator``.

A heartbeat that changes nothing is answered at once. A heartbeat that changes something is answered when that is durable, on the
catalogue writer's thread; a join or a new subscription also waits until its partitions are known. The ``GroupWorker`` computes
assignments of large groups and matches of regular expressions.

Any thread may call any method, inline on a processor: none of them waits.

``check_heartbeat`` is pure. It checks a ConsumerGroupHeartbeat before the group is looked up, with Kafka's messages.

Tests: tests/kafka/groups/consumer/test_heartbeat_checks.py.
"""

from collections.abc import Callable, Sequence
from functools import partial

from broker.errors import RequestError
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer import ConsumerGroup
from broker.kafka.groups.consumer.targets import AssignmentTask
from broker.kafka.groups.consumer.values import (
    LEAVE_FOR_A_WHILE_EPOCH,
    BecomeClassic,
    ConsumerGroupDescription,
    HeartbeatReply,
    HeartbeatRequest,
    HeartbeatResult,
    RegexTask,
    TopicsImage,
    compile_regex,
)
from broker.kafka.groups.coordinated import JOIN_EPOCH, LEAVE_EPOCH
from broker.kafka.groups.group import Group, GroupType
from broker.kafka.groups.group_worker import GroupWorker, Task
from broker.kafka.groups.kinds import classic_limits, consumer_limits
from broker.kafka.groups.registry import GroupEntry, GroupRegistry, Send, send
from broker.kafka.groups.topic_images import TopicImages
from protocol.kafka.errors import ErrorCode

# The first version in which members choose their own ids.
CLIENT_MEMBER_ID_VERSION = 1


def check_heartbeat(
    group_id: str, request: HeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> HeartbeatResult | None:
    """The refusal; None if the request is valid."""
    message = _invalid(group_id, request, version)
    if message is not None:
        return HeartbeatResult(ErrorCode.invalid_request, message)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        return HeartbeatResult(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor[:100]} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    return None


def _invalid(group_id: str, request: HeartbeatRequest, version: int) -> str | None:
    epoch = request.member_epoch
    needs_member_id = version >= CLIENT_MEMBER_ID_VERSION or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    if needs_member_id and not request.member_id:
        return "MemberId can't be empty."
    if not group_id:
        return "GroupId can't be empty."
    if request.instance_id == "":
        return "InstanceId can't be empty."
    if request.rack_id == "":
        return "RackId can't be empty."
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        if request.owned is None or request.owned:
            return "TopicPartitions must be empty when (re-)joining."
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif epoch == LEAVE_FOR_A_WHILE_EPOCH:
        if request.instance_id is None:
            return "InstanceId can't be null."
    elif epoch < LEAVE_FOR_A_WHILE_EPOCH:
        return "MemberEpoch is invalid."
    return None


# The topics among these that the ``context`` of a request may describe. None: unknown now.
Visible = Callable[[object, frozenset[str]], frozenset[str] | None]
_TAKE_TURNS = "Let its members leave first, or set group.protocol to classic in this client, as it is in theirs."


class ConsumerCoordinator:
    def __init__(
        self, registry: GroupRegistry, topics: TopicImages, worker: GroupWorker, configs: GroupConfigs
    ) -> None:
        self.visible: Visible = lambda context, names: names
        self._registry = registry
        self._topics = topics
        self._worker = worker
        self._configs = configs
        self._assignors = registry.config.group_consumer_assignors
        registry.carry_out[AssignmentTask] = self._compute
        registry.carry_out[RegexTask] = self._match
        registry.carry_out[BecomeClassic] = self._become_classic
        topics.on_change.append(self._topics_changed)
        configs.on_change.append(self._configs_changed)

    @property
    def topics(self) -> TopicsImage:
        """The present topics as groups see them."""
        return self._topics.now

    def heartbeat(
        self, group_id: str, request: HeartbeatRequest, version: int, reply: HeartbeatReply
    ) -> HeartbeatResult | None:
        """The answer if it is known now; otherwise None, and ``reply`` gets it, now or later."""
        registry = self._registry
        if not registry.is_active:
            return HeartbeatResult(ErrorCode.coordinator_not_available)
        refusal = check_heartbeat(group_id, request, version, self._assignors)
        if refusal is not None:
            return refusal
        is_join = request.member_epoch == JOIN_EPOCH
        asks = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        topics = self._topics.current() if asks else self._topics.now
        while True:
            entry = registry.get(group_id)
            if entry is None:
                error = registry.refusal(group_id)
                if error:
                    return HeartbeatResult(error)
                if not is_join:
                    return HeartbeatResult(ErrorCode.group_id_not_found, f"Group {group_id[:200]} not found.")
                if not registry.has_memory_for_group(group_id):
                    return HeartbeatResult(ErrorCode.coordinator_not_available, "No memory is left for groups.")
                entry = registry.get_or_create(group_id, GroupType.CONSUMER)
            with entry.lock:
                if entry.is_removed:
                    continue
                group = entry.group
                now = registry.clock.monotonic()
                last: Sequence[Send] = ()
                if not isinstance(group, ConsumerGroup):
                    if not is_join:
                        return HeartbeatResult(ErrorCode.group_id_not_found, _not_a_consumer_group(group_id))
                    try:
                        if request.subscribed_topic_regex:
                            compile_regex(request.subscribed_topic_regex)  # cheaper than looking at all members
                        group = self._successor(group, now)
                    except RequestError as error:
                        return HeartbeatResult(ErrorCode(error.code), error.message)
                result = group.heartbeat(request, topics, reply, now, registry.memory.free_bytes)
                if group is not entry.group:
                    if result is not None and result.error:
                        return result  # a refused member converts nothing
                    last = self._succeed(entry, group)
                answers = registry.settle(entry)
                if is_join:
                    registry.drop_if_unused(entry)
            send(last)
            send(answers)
            return result

    def describe(self, group_id: str) -> ConsumerGroupDescription | ErrorCode:
        error = self._registry.refusal(group_id)
        entry = self._registry.get(group_id)
        if error or entry is None:
            return error or ErrorCode.group_id_not_found
        with entry.lock:
            group = entry.group
            return group.describe() if isinstance(group, ConsumerGroup) else ErrorCode.group_id_not_found

    # Changes of the protocol ------------------------------------------------------------------------------------------

    def _successor(self, group: Group, now: float) -> ConsumerGroup:
        """The consumer group that replaces a group of another kind when a client of the newer protocol joins: with its members
        if it has any (the online upgrade). The old group is unchanged. Raises RequestError if it cannot be converted."""
        registry = self._registry
        if registry.may_admit(group, GroupType.CONSUMER):
            made = registry.make(group.group_id, GroupType.CONSUMER)
            assert isinstance(made, ConsumerGroup)
            return made
        if not isinstance(group, ClassicGroup) or group.is_dead:
            raise RequestError(ErrorCode.group_id_not_found, _not_a_consumer_group(group.group_id))
        limits = consumer_limits(registry.config, self._configs, group.group_id)
        try:
            return ConsumerGroup.from_classic(group, limits, self._topics.now, now)
        except RequestError as error:
            raise RequestError(error.code, f"{error.message} {_TAKE_TURNS}") from error

    def _succeed(self, entry: GroupEntry, group: ConsumerGroup) -> Sequence[Send]:
        """Replace the old group by the new. Returns the answers that the old group still owes."""
        if isinstance(entry.group, ClassicGroup):
            entry.group.hand_over()
        return self._registry.replace(entry, group)

    def _become_classic(self, entry: GroupEntry, effect: BecomeClassic) -> Sequence[Send]:
        """Only members of the classic protocol are left (the online downgrade)."""
        registry, before = self._registry, entry.group
        now = registry.clock.monotonic()
        group = ClassicGroup.restore(before.group_id, classic_limits(registry.config), effect.snapshot, now)
        answers = registry.replace(entry, group)
        registry.save(entry, effect, before)
        group.rebalance(now)
        return answers

    # Work without the group's lock ------------------------------------------------------------------------------------

    def _compute(self, entry: GroupEntry, task: AssignmentTask) -> Sequence[Send]:
        def run() -> bool:
            task.run()
            return True

        group = entry.group
        assert isinstance(group, ConsumerGroup)
        done = partial(self._registry.step, entry, group, lambda now: group.assignment_computed(task, now))
        self._worker.submit(Task(group.group_id, task.cost, run, done))
        return ()

    def _match(self, entry: GroupEntry, task: RegexTask) -> Sequence[Send]:
        group = entry.group
        assert isinstance(group, ConsumerGroup)

        def done() -> None:
            self._hide(task)
            self._registry.step(entry, group, lambda now: group.regexes_resolved(task, now))

        cost = len(task.patterns) * len(task.topics.by_name)
        self._worker.submit(Task(group.group_id, cost, task.run_slice, done))
        return ()

    def _hide(self, task: RegexTask) -> None:
        """Remove topics from the matches that the member may not describe."""
        if task.matches is None:
            return
        visible = self.visible(task.context, frozenset().union(*task.matches.values()))
        if visible is None:
            task.matches = None
        else:
            task.matches = {pattern: names & visible for pattern, names in task.matches.items()}

    # Changes of topics and settings -----------------------------------------------------------------------------------

    def _topics_changed(self, names: frozenset[str]) -> None:
        """Runs on the catalogue writer's thread. Heartbeats see new topics anyway; this only makes it sooner."""

        def change(group: Group, now: float) -> bool:
            if not isinstance(group, ConsumerGroup) or not group.may_read(names):
                return False
            group.topics_changed(self._topics.now, now)
            return True

        self._registry.tell(self._registry.entries(GroupType.CONSUMER), change)

    def _configs_changed(self, group_id: str) -> None:
        entry = self._registry.get(group_id)
        if entry is None:
            return
        with entry.lock:
            group = entry.group
            if isinstance(group, ConsumerGroup):
                group.set_limits(consumer_limits(self._registry.config, self._configs, group_id))


def _not_a_consumer_group(group_id: str) -> str:
    return f"Group {group_id[:200]} is not a consumer group: it has members of another protocol. {_TAKE_TURNS}"
