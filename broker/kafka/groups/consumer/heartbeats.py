"""Handles a ConsumerGroupHeartbeat: a member joins, continues, changes its subscription, or leaves.

Pure, under the group's lock. A refusal is a RequestError, with Kafka's messages, and has changed nothing.

Tests: tests/kafka/groups/consumer/test_consumer_group.py, tests/kafka/groups/consumer/test_group_static_members.py,
tests/kafka/groups/consumer/test_consumer_machine.py.
"""

from functools import partial

import attrs

from broker.errors import RequestError
from broker.kafka.groups.consumer.members import NOTHING_SUBSCRIBED, ConsumerMember, MemberState, Subscription
from broker.kafka.groups.consumer.membership import Membership
from broker.kafka.groups.consumer.values import (
    LEAVE_FOR_A_WHILE_EPOCH,
    HeartbeatReply,
    HeartbeatRequest,
    HeartbeatResult,
    TopicPartitions,
    TopicsImage,
    as_topic_partitions,
    compile_regex,
)
from broker.kafka.groups.coordinated import JOIN_EPOCH, ParkedRequest, member_row
from broker.kafka.groups.group import Answer
from protocol.kafka.errors import ErrorCode


@attrs.frozen
class _Asked:
    """The parts of a request that a later answer needs. ``is_full``: the answer always has the assignment."""

    owned: TopicPartitions | None
    is_subscription_new: bool
    is_full: bool


class Heartbeats:
    def __init__(self, core: Membership) -> None:
        self._core = core

    def changes_nothing(
        self, member: ConsumerMember, request: HeartbeatRequest, topics: TopicsImage, now: float
    ) -> bool:
        """Whether the member is at its target, reports no change, and its last answer is durable: nearly every heartbeat."""
        core = self._core
        return (
            member.unchanged is not None
            and request.member_epoch == member.epoch == core.targets.epoch
            and request.owned is None
            and request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None
            and request.server_assignor is None
            and request.rebalance_timeout_ms == -1
            and request.rack_id is None
            and (request.instance_id is None or request.instance_id == member.instance_id)
            and request.client_host == member.client_host
            and request.client_id == member.client_id
            and topics.generation <= core.targets.topics.generation
            and core.saver.is_durable(member.saved_in)
            and now < core.schedule.other
        )

    def heartbeat(
        self, request: HeartbeatRequest, topics: TopicsImage, to: HeartbeatReply, now: float, free_bytes: float
    ) -> HeartbeatResult | None:
        """The answer if it is known and durable; None if it comes as an effect."""
        core, targets = self._core, self._core.targets
        targets.see_topics(topics)
        member = self._find(request)
        subscription = self._subscription(member, request)
        self._check_growth(member, request, subscription, free_bytes)
        if subscription.regex and subscription.regex not in core.members.regexes:
            compile_regex(subscription.regex)
        # Nothing is refused from here on.
        if member is None:
            member = _new_member(request)
            core.add(member)
        elif member.member_id != request.member_id:
            core.replace(member, request.member_id, now)
        is_subscription_new = self._update(member, request, subscription)
        if subscription.regex:
            targets.resolutions.context = request.context
        core.expect_heartbeat(member, now)
        if is_subscription_new or targets.epoch == 0:
            targets.bump()
        if core.parked.supersede(member.member_id, now):
            is_subscription_new = True
        targets.resolve_regexes(now)
        is_current = targets.ensure()
        asked = _Asked(request.owned, is_subscription_new, _is_full(request))
        if not is_current and (request.member_epoch == JOIN_EPOCH or is_subscription_new):
            core.parked.park(member.member_id, ParkedRequest(partial(self._finish, member, to, asked), targets.epoch))
            return None
        return self._answer(member, to, asked, now)

    def leave(self, request: HeartbeatRequest, to: HeartbeatReply, now: float) -> None:
        """The answer comes as an effect."""
        core = self._core
        member = core.members.get(request.member_id)
        if request.instance_id is not None:
            static = self._static(request)
            if static is not member:
                raise _fenced_instance(request, static)
        if member is None:
            raise self._unknown(request)
        result = HeartbeatResult(ErrorCode.none, None, member.member_id, request.member_epoch)
        if request.member_epoch == LEAVE_FOR_A_WHILE_EPOCH:
            core.leave_for_a_while(member, now)
        else:
            core.remove(member, ErrorCode.unknown_member_id, now)
        core.saver.answer(None, partial(_answer, to, result))

    # The member -----------------------------------------------------------------------------------------------------

    def _find(self, request: HeartbeatRequest) -> ConsumerMember | None:
        """The member of the request, under another member id if it is a returning static member; None for a new member."""
        members = self._core.members
        member = members.get(request.member_id)
        is_join = request.member_epoch == JOIN_EPOCH
        if request.instance_id is not None:
            static = members.static(request.instance_id) if is_join else self._static(request)
            if static is not None and static is not member:
                self._check_replacement(static, member, request)
            member = static or member
        if member is None:
            if not is_join:
                raise self._unknown(request)
            self._check_size()
        elif not is_join:
            _check_epoch(member, request)
        return member

    def _static(self, request: HeartbeatRequest) -> ConsumerMember:
        assert request.instance_id is not None
        static = self._core.members.static(request.instance_id)
        if static is None:
            raise RequestError(ErrorCode.unknown_member_id, f"Instance id {request.instance_id[:200]} is unknown.")
        return static

    def _unknown(self, request: HeartbeatRequest) -> RequestError:
        return RequestError(
            ErrorCode.unknown_member_id,
            f"Member {request.member_id[:200]} is not a member of group {self._core.group_id}.",
        )

    def _check_replacement(
        self, static: ConsumerMember, named: ConsumerMember | None, request: HeartbeatRequest
    ) -> None:
        """The instance id belongs to another member id than the request's. A client of the consumer protocol has to leave
        before another client takes its place; a classic client cannot say whether it comes back."""
        if request.member_epoch != JOIN_EPOCH:
            raise _fenced_instance(request, static)
        has_left = static.classic is not None or static.epoch == LEAVE_FOR_A_WHILE_EPOCH
        if named is not None or not has_left:
            raise RequestError(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id[:200]} with instance id {request.instance_id} "
                f"cannot join the group because the instance id is owned by {static.member_id} member.",
            )

    def _check_size(self) -> None:
        max_size = self._core.limits.max_size
        if len(self._core.members) >= max_size:
            raise RequestError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {max_size} members.",
            )

    def _check_growth(
        self, member: ConsumerMember | None, request: HeartbeatRequest, subscription: Subscription, free_bytes: float
    ) -> None:
        """Refuse a member that is too large for the group, or for the broker."""
        members = self._core.members
        growth = _new_member(request).size_bytes if member is None else _growth(member, request)
        if subscription not in members.subscriptions:
            growth += subscription.size_bytes
        max_bytes = self._core.limits.max_bytes
        if growth and members.size_bytes + growth > max_bytes:
            raise RequestError(
                ErrorCode.group_max_size_reached,
                f"The members of the group may take up to {max_bytes} bytes of memory.",
            )
        if growth > max(0, free_bytes):
            raise RequestError(ErrorCode.coordinator_not_available, "The broker has no memory left for groups.")

    # Its subscription and other fields ------------------------------------------------------------------------------

    def _subscription(self, member: ConsumerMember | None, request: HeartbeatRequest) -> Subscription:
        """The member's subscription from now on."""
        names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
        before = NOTHING_SUBSCRIBED if member is None else member.subscription
        if names is None and regex is None:
            return before
        after = Subscription(
            before.names if names is None else frozenset(names), before.regex if regex is None else regex
        )
        return self._core.members.subscriptions.intern(after)

    def _update(self, member: ConsumerMember, request: HeartbeatRequest, subscription: Subscription) -> bool:
        """Apply the request to the member. Returns whether its subscription has changed."""
        rack = member.rack_id if request.rack_id is None else request.rack_id
        instance = member.instance_id if request.instance_id is None else request.instance_id
        timeout = member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        assignor = member.server_assignor if request.server_assignor is None else request.server_assignor
        is_subscription_new = subscription is not member.subscription and subscription != member.subscription
        if (
            not is_subscription_new
            and member.classic is None
            and rack == member.rack_id
            and instance == member.instance_id
            and timeout == member.rebalance_timeout_ms
            and assignor == member.server_assignor
            and request.client_id == member.client_id
            and request.client_host == member.client_host
        ):
            return False
        with self._core.members.changing(member):
            member.rack_id, member.instance_id = rack, instance
            member.rebalance_timeout_ms, member.server_assignor = timeout, assignor
            member.client_id, member.client_host = request.client_id, request.client_host
            member.subscription, member.classic = subscription, None
        self._core.schedule.joins.remove(member.member_id)
        self._core.schedule.syncs.remove(member.member_id)
        self._core.saver.mark(member_row(member.member_id))
        return is_subscription_new

    # Answers --------------------------------------------------------------------------------------------------------

    def _finish(self, member: ConsumerMember, to: HeartbeatReply, asked: _Asked, error: ErrorCode, now: float) -> None:
        """Answer a request that has waited for the assignment."""
        result = HeartbeatResult(error) if error else self._answer(member, to, asked, now)
        if result is not None:
            self._core.emit(Answer(to, result))

    def _answer(self, member: ConsumerMember, to: HeartbeatReply, asked: _Asked, now: float) -> HeartbeatResult | None:
        core = self._core
        is_told = core.step(member, asked.owned, asked.is_subscription_new, now) or asked.is_full
        # Its client may not know: librdkafka, when an answer comes too late, asks for it no more, and all others would wait.
        is_told |= member.state is MemberState.UNREVOKED_PARTITIONS
        result = HeartbeatResult(
            ErrorCode.none,
            None,
            member.member_id,
            member.epoch,
            core.limits.heartbeat_interval_ms,
            as_topic_partitions(member.assigned) if is_told else None,
        )
        if member.is_reconciled_to(core.targets.assignment_epoch):
            member.unchanged = attrs.evolve(result, assignment=None) if is_told else result
        if core.saver.is_durable(member.saved_in):
            return result
        core.saver.answer(member.saved_in, partial(_answer, to, result))
        return None


def _new_member(request: HeartbeatRequest) -> ConsumerMember:
    return ConsumerMember(
        request.member_id, request.instance_id, request.rack_id, request.client_id, request.client_host
    )


def _is_full(request: HeartbeatRequest) -> bool:
    """Whether the member has sent all fields, because it joins, or does not know the outcome of its last request."""
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1 and request.owned is not None and has_subscription
    )


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """The epoch has to be the member's; or the previous epoch, if the client has only partitions that the member should have:
    then the answer with the new epoch was lost."""
    received = request.member_epoch
    if received == member.epoch:
        return
    if received < member.epoch and received == member.previous_epoch and _is_subset(request.owned, member):
        return
    word = "greater" if received > member.epoch else "smaller"
    raise RequestError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {word} member epoch ({received}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_subset(owned: TopicPartitions | None, member: ConsumerMember) -> bool:
    if owned is None:
        return False
    return all(member.assigned.get(topic_id, frozenset()).issuperset(partitions) for topic_id, partitions in owned)


def _fenced_instance(request: HeartbeatRequest, static: ConsumerMember) -> RequestError:
    return RequestError(
        ErrorCode.fenced_instance_id,
        f"Static member {request.member_id[:200]} with instance id {request.instance_id} "
        f"was fenced by member {static.member_id}.",
    )


def _answer(to: HeartbeatReply, result: HeartbeatResult, error: ErrorCode) -> Answer:
    return Answer(to, HeartbeatResult(error) if error else result)


def _growth(member: ConsumerMember, request: HeartbeatRequest) -> int:
    """The growth of the member's texts."""
    growth = 2 * (len(request.member_id) - len(member.member_id))
    growth += len(request.client_id) - len(member.client_id) + len(request.client_host) - len(member.client_host)
    if request.rack_id is not None:
        growth += len(request.rack_id) - len(member.rack_id or "")
    if request.instance_id is not None:
        growth += 2 * (len(request.instance_id) - len(member.instance_id or ""))
    return max(0, growth)
