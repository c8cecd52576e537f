"""Classic members in a consumer group: their requests, and the conversions between classic and consumer groups.

Pure, under the group's lock. Answers to JoinGroup and SyncGroup come as effects.

``ClassicRequests`` handles JoinGroup, SyncGroup, Heartbeat and LeaveGroup of members that still use the classic protocol. They
are reconciled like the others. A classic member's epoch is its generation; JoinGroup asks for a step, with the partitions that
its subscription claims to own, and SyncGroup only fetches its assignment. There is no leader. The member is told to join again
(REBALANCE_IN_PROGRESS) when the group's epoch is newer, when it has partitions to give up, and when partitions that it waited
for are free.

``fill_from_classic`` is the online upgrade of a classic group, with its members: the first heartbeat of a consumer group's
member causes it (``group.consumer.migration.policy`` ``upgrade`` or ``bidirectional``). ``become_classic`` is the online
downgrade, when the last such member has gone and classic members remain (``downgrade`` or ``bidirectional``).

``read_subscription``, ``read_assignment`` and ``write_assignment`` translate the embedded ConsumerProtocol to topic ids and
back. The bytes come from clients: they are read with bounds, and claims of partitions that do not exist are ignored.

Tests: tests/kafka/groups/consumer/test_group_classic_members.py.
"""

from functools import partial
from uuid import UUID

import attrs

from broker.errors import RequestError
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer.members import ClassicMetadata, ConsumerMember, MemberState, Subscription
from broker.kafka.groups.consumer.membership import Membership
from broker.kafka.groups.consumer.values import Assignment, BecomeClassic, TopicPartitions, TopicsImage
from broker.kafka.groups.coordinated import GROUP_ROW, ParkedRequest, member_row
from broker.kafka.groups.values import (
    UNKNOWN_MEMBER,
    GroupSnapshot,
    JoinAnswer,
    JoinReply,
    JoinRequest,
    JoinResult,
    MemberSnapshot,
    Protocols,
    SyncAnswer,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import (
    NEWEST_VERSION,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)

# The protocol type of consumers.
CONSUMER = "consumer"
# Earlier versions have no owned partitions, and their clients give everything up before they join.
_FIRST_WITH_OWNED = 1


@attrs.frozen
class ClassicSubscription:
    """``owned``: the partitions that the client still has."""

    subscription: Subscription
    owned: TopicPartitions
    rack_id: str | None


def read_subscription(protocols: Protocols, topics: TopicsImage) -> ClassicSubscription:
    """All protocols of a consumer have the same subscription. Raises ProtocolError."""
    parsed = parse_subscription(protocols[0][1])
    owned = _with_ids(parsed.owned, topics) if parsed.version >= _FIRST_WITH_OWNED else {}
    return ClassicSubscription(
        Subscription(frozenset(parsed.topics)),
        tuple((topic_id, tuple(partitions)) for topic_id, partitions in owned.items()),
        parsed.rack or None,
    )


def read_assignment(data: bytes, topics: TopicsImage) -> tuple[Assignment, bool]:
    """The leader's assignment to a member, and whether it contains user data. Raises ProtocolError."""
    parsed = parse_assignment(data)
    return _with_ids(parsed.partitions, topics), bool(parsed.user_data)


def write_assignment(assigned: Assignment, protocols: Protocols, topics: TopicsImage) -> bytes:
    """In the version that the member has joined with. Deleted topics are left out."""
    named = {
        topics.name_of[topic_id]: sorted(partitions)
        for topic_id, partitions in assigned.items()
        if topic_id in topics.name_of
    }
    return encode_assignment(named, version=_version(protocols))


def _version(protocols: Protocols) -> int:
    version = int.from_bytes(protocols[0][1][:2], "big", signed=True) if protocols else 0
    return min(max(version, 0), NEWEST_VERSION)


def _with_ids(partitions: dict[str, list[int]], topics: TopicsImage) -> dict[UUID, frozenset[int]]:
    by_id = {}
    for name, numbers in partitions.items():
        info = topics.by_name.get(name)
        if info is not None:
            known = frozenset(number for number in numbers if 0 <= number < info.partitions)
            if known:
                by_id[info.topic_id] = known
    return by_id


# The assignors of Kafka's clients, whose assignments have no user data of interest. librdkafka returns a member's user data for
# cooperative-sticky. Kafka takes any user data for a custom assignor's, and refuses such groups.
_USUAL_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


def fill_from_classic(core: Membership, classic: ClassicGroup, topics: TopicsImage, now: float) -> None:
    """Put the members of a classic group into an empty membership.

    Each has its last assignment, with the generation as its epoch. Partitions that it owned when it joined, and that were not
    assigned to it again, it has to give up first: its client may not have received the new assignment yet. Raises RequestError
    if the group cannot be upgraded."""
    _check_upgrade(core, classic)
    taken: set[tuple[UUID, int]] = set()
    members: list[ConsumerMember] = []
    had: list[Assignment] = []
    for each in classic.members:
        protocols = tuple(sorted(each.protocols, key=lambda protocol: protocol[0] != classic.protocol_name))
        try:
            claim = read_subscription(protocols, topics)
            assigned, has_user_data = read_assignment(each.assignment, topics)
        except ProtocolError as error:
            raise _no_upgrade(core, "the embedded consumer protocol is malformed") from error
        if has_user_data and classic.protocol_name not in _USUAL_ASSIGNORS:
            raise _no_upgrade(
                core,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade",
            )
        members.append(
            ConsumerMember(
                each.member_id,
                each.group_instance_id,
                claim.rack_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                core.members.subscriptions.intern(claim.subscription),
                None,
                ClassicMetadata(each.session_timeout_ms, protocols),
                classic.generation,
                classic.generation,
                assigned=_not_taken(assigned, taken),
            )
        )
        had.append({topic_id: frozenset(partitions) for topic_id, partitions in claim.owned})
    for member, owned in zip(members, had, strict=True):
        member.revoking = _not_taken(owned, taken)
        if member.revoking:
            member.state = MemberState.UNREVOKED_PARTITIONS
        core.add(member)
        core.ownership.take(member, member.assigned)
        core.ownership.take(member, member.revoking)
        core.targets.assignments[member.member_id] = member.assigned
        core.expect_heartbeat(member, now)
    core.targets.restore(classic.generation, classic.generation, "")
    core.saver.mark(GROUP_ROW)
    core.saver.replace_classic()


def may_become_classic(core: Membership) -> bool:
    """Whether only classic members remain, and a classic group may have so many. After a restart the topics, whose names the
    classic group needs, are unknown at first: then it is converted when the next member joins."""
    members = core.members
    return (
        0 < len(members) == members.classic
        and core.targets.topics.generation >= 0
        and core.limits.migration_policy.downgrades
        and len(members) <= core.limits.classic_max_size
    )


def become_classic(core: Membership, now: float) -> BecomeClassic:
    """The group's last effect. Its generation is the assignment epoch: most members have it, and none is ahead of it."""
    core.parked.refuse_all(ErrorCode.rebalance_in_progress, now)
    members = []
    for member in core.members:
        assert member.classic is not None
        protocols = member.classic.protocols
        members.append(
            MemberSnapshot(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                protocols,
                write_assignment(member.assigned, protocols, core.targets.topics),
            )
        )
    name = next(name for name, _ in members[0].protocols if all(name in dict(each.protocols) for each in members))
    generation = core.targets.assignment_epoch
    snapshot = GroupSnapshot(CONSUMER, generation, name, None, tuple(members))
    return BecomeClassic(snapshot, core.stored_rows(), core.saver.next_note())


def _check_upgrade(core: Membership, classic: ClassicGroup) -> None:
    if not core.limits.migration_policy.upgrades:
        raise _no_upgrade(core, "online upgrade is disabled")
    if classic.protocol_type != CONSUMER:
        raise _no_upgrade(core, "the group does not use the consumer embedded protocol")
    if len(classic.members) > core.limits.max_size:
        raise _no_upgrade(core, "the group size exceeds the consumer group maximum size")


def _no_upgrade(core: Membership, reason: str) -> RequestError:
    return RequestError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade classic group {core.group_id} to consumer group because {reason}.",
    )


def _not_taken(assigned: Assignment, taken: set[tuple[UUID, int]]) -> Assignment:
    """Clients assign in a classic group, and may give a partition to two members. The first keeps it."""
    free_of: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in assigned.items():
        free = frozenset(each for each in partitions if (topic_id, each) not in taken)
        if free:
            free_of[topic_id] = free
            taken.update((topic_id, each) for each in free)
    return free_of


class ClassicRequests:
    def __init__(self, core: Membership) -> None:
        self._core = core

    def join(self, request: JoinRequest, topics: TopicsImage, to: JoinReply, now: float, free_bytes: float) -> bool:
        """True if the join makes the group classic, because a static member of the consumer protocol has come back as a classic
        member, or because the conversion was not possible before."""
        try:
            return self._join(request, topics, to, now, free_bytes)
        except RequestError as refusal:
            self._core.emit(JoinAnswer(to, JoinResult(ErrorCode(refusal.code), request.member_id)))
            return False

    def sync(self, request: SyncRequest, to: SyncReply, now: float) -> None:
        core = self._core
        try:
            member = self._check(request.member_id, request.group_instance_id, request.generation)
            self._check_protocol(member, request)
            if core.targets.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._expect_join(member, now)
                raise RequestError(ErrorCode.rebalance_in_progress)
        except RequestError as refusal:
            core.emit(SyncAnswer(to, SyncResult(ErrorCode(refusal.code))))
            return
        assert member.classic is not None
        core.schedule.syncs.remove(member.member_id)
        core.expect_heartbeat(member, now)
        protocols = member.classic.protocols
        assignment = write_assignment(member.assigned, protocols, core.targets.topics)
        result = SyncResult(ErrorCode.none, CONSUMER, protocols[0][0], assignment)
        core.saver.answer(member.saved_in, partial(_sync_answer, to, result))

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        try:
            member = self._check(member_id, instance_id, generation)
        except RequestError as refusal:
            return ErrorCode(refusal.code)
        self._core.expect_heartbeat(member, now)
        has_to_join = (
            member.epoch < self._core.targets.epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not self._core.awaits_release(member))
        )
        if not has_to_join:
            return ErrorCode.none
        self._expect_join(member, now)
        return ErrorCode.rebalance_in_progress

    def leave(self, member_id: str, instance_id: str | None, now: float) -> ErrorCode:
        """By member id; or by instance id alone, when an operator removes a static member. Also for members of the consumer
        protocol."""
        members = self._core.members
        member = members.get(member_id)
        if instance_id is not None:
            static = members.static(instance_id)
            if static is None:
                return ErrorCode.unknown_member_id
            if member_id not in (UNKNOWN_MEMBER, static.member_id):
                return ErrorCode.fenced_instance_id
            member = static
        if member is None:
            return ErrorCode.unknown_member_id
        self._core.remove(member, ErrorCode.unknown_member_id, now)
        return ErrorCode.none

    # Joining ----------------------------------------------------------------------------------------------------------

    def _join(self, request: JoinRequest, topics: TopicsImage, to: JoinReply, now: float, free_bytes: float) -> bool:
        core, targets = self._core, self._core.targets
        targets.see_topics(topics)
        member = self._find(request)
        claim = self._read(request)
        self._check_growth(member, request, claim, free_bytes)
        if request.member_id == UNKNOWN_MEMBER and request.group_instance_id is None and request.member_id_required:
            core.emit(JoinAnswer(to, JoinResult(ErrorCode.member_id_required, request.new_member_id)))
            return False
        # Nothing is refused from here on.
        member_id = request.member_id or request.new_member_id
        if member is None:
            member = ConsumerMember(member_id, request.group_instance_id)
            core.add(member)
        elif member.member_id != member_id:
            core.replace(member, member_id, now)
        is_subscription_new = self._update(member, request, claim)
        core.expect_heartbeat(member, now)
        core.schedule.joins.remove(member.member_id)
        if is_subscription_new or targets.epoch == 0:
            targets.bump()
        if core.parked.supersede(member.member_id, now):
            is_subscription_new = True
        targets.resolve_regexes(now)
        if may_become_classic(core):
            core.saver.answer(None, partial(_join_answer, to, JoinResult(ErrorCode.rebalance_in_progress, member_id)))
            return True
        if targets.ensure():
            self._answer(member, to, claim, is_subscription_new, now)
        else:
            finish = partial(self._finish, member, to, claim, is_subscription_new)
            core.parked.park(member.member_id, ParkedRequest(finish, targets.epoch))
        return False

    def _find(self, request: JoinRequest) -> ConsumerMember | None:
        """The member of the request, under another member id if it is a returning static member; None for a new member."""
        core, members = self._core, self._core.members
        if request.protocol_type != CONSUMER or not request.protocols:
            raise RequestError(ErrorCode.inconsistent_group_protocol)
        if not members.supports_one_of(request.protocols):
            raise RequestError(ErrorCode.inconsistent_group_protocol)
        member = members.get(request.member_id)
        if request.group_instance_id is not None:
            static = members.static(request.group_instance_id)
            if request.member_id != UNKNOWN_MEMBER:
                if static is None:
                    raise RequestError(ErrorCode.unknown_member_id)
                if static is not member:
                    raise RequestError(ErrorCode.fenced_instance_id)
            member = static
        if member is None and len(members) >= core.limits.max_size:
            raise RequestError(ErrorCode.group_max_size_reached)
        return member

    def _read(self, request: JoinRequest) -> ClassicSubscription:
        try:
            return read_subscription(request.protocols, self._core.targets.topics)
        except ProtocolError as error:
            raise RequestError(ErrorCode.inconsistent_group_protocol) from error

    def _check_growth(
        self, member: ConsumerMember | None, request: JoinRequest, claim: ClassicSubscription, free_bytes: float
    ) -> None:
        members = self._core.members
        classic = ClassicMetadata(request.session_timeout_ms, request.protocols)
        growth = ConsumerMember(request.new_member_id, request.group_instance_id, classic=classic).size_bytes
        if member is not None:
            growth -= member.size_bytes
        if claim.subscription not in members.subscriptions:
            growth += claim.subscription.size_bytes
        if growth > 0 and members.size_bytes + growth > self._core.limits.max_bytes:
            raise RequestError(ErrorCode.group_max_size_reached)
        if growth > max(0, free_bytes):
            raise RequestError(ErrorCode.coordinator_not_available)

    def _update(self, member: ConsumerMember, request: JoinRequest, claim: ClassicSubscription) -> bool:
        """Apply the request to the member. Returns whether its subscription has changed."""
        members = self._core.members
        subscription = members.subscriptions.intern(claim.subscription)
        classic = ClassicMetadata(request.session_timeout_ms, request.protocols)
        before = (
            member.subscription,
            member.classic,
            member.rebalance_timeout_ms,
            member.client_id,
            member.client_host,
        )
        is_subscription_new = subscription != member.subscription
        if before != (subscription, classic, request.rebalance_timeout_ms, request.client_id, request.client_host):
            with members.changing(member):
                member.subscription, member.classic = subscription, classic
                member.rebalance_timeout_ms = request.rebalance_timeout_ms
                member.client_id, member.client_host = request.client_id, request.client_host
                member.rack_id, member.server_assignor = claim.rack_id or member.rack_id, None
            member.unchanged = None
            self._core.schedule.revocations.remove(member.member_id)
            self._core.saver.mark(member_row(member.member_id))
        return is_subscription_new

    def _finish(
        self,
        member: ConsumerMember,
        to: JoinReply,
        claim: ClassicSubscription,
        is_subscription_new: bool,
        error: ErrorCode,
        now: float,
    ) -> None:
        """Answer a join that has waited for the assignment."""
        if error:
            self._core.emit(JoinAnswer(to, JoinResult(error, member.member_id)))
        else:
            self._answer(member, to, claim, is_subscription_new, now)

    def _answer(
        self, member: ConsumerMember, to: JoinReply, claim: ClassicSubscription, is_subscription_new: bool, now: float
    ) -> None:
        core = self._core
        core.step(member, claim.owned, is_subscription_new, now)
        assert member.classic is not None
        core.schedule.set(core.schedule.syncs, member.member_id, now + member.rebalance_timeout_ms / 1000)
        name = member.classic.protocols[0][0]
        result = JoinResult(ErrorCode.none, member.member_id, member.epoch, CONSUMER, name)
        core.saver.answer(member.saved_in, partial(_join_answer, to, result))

    # Checks -----------------------------------------------------------------------------------------------------------

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
        members = self._core.members
        member = members.get(member_id)
        if instance_id is not None:
            static = members.static(instance_id)
            if static is not None and static is not member:
                raise RequestError(ErrorCode.fenced_instance_id)
            member = static
        if member is None or member.classic is None:
            raise RequestError(ErrorCode.unknown_member_id)
        if generation != member.epoch:
            raise RequestError(ErrorCode.illegal_generation)
        return member

    def _check_protocol(self, member: ConsumerMember, request: SyncRequest) -> None:
        assert member.classic is not None
        name = member.classic.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
            raise RequestError(ErrorCode.inconsistent_group_protocol)

    def _expect_join(self, member: ConsumerMember, now: float) -> None:
        """The member is told to join again, within its rebalance timeout."""
        deadline = now + member.rebalance_timeout_ms / 1000
        self._core.schedule.set_if_absent(self._core.schedule.joins, member.member_id, deadline)


def _join_answer(to: JoinReply, result: JoinResult, error: ErrorCode) -> JoinAnswer:
    return JoinAnswer(to, JoinResult(error, result.member_id) if error else result)


def _sync_answer(to: SyncReply, result: SyncResult, error: ErrorCode) -> SyncAnswer:
    return SyncAnswer(to, SyncResult(error) if error else result)
