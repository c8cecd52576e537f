"""What JoinGroup, SyncGroup, Heartbeat and LeaveGroup mean to a consumer group: some members still use the classic protocol
(the online upgrade), and are reconciled like the others.

For a classic member, the member epoch is its generation, JoinGroup is what asks for a step, with the partitions that its
subscription says it owns, and SyncGroup only fetches what is assigned to it. Nobody leads. It is told to join again
(REBALANCE_IN_PROGRESS) when the group has gone on, when it has something to give up, and when what it waited for is free.

Pure, under the group's lock. Answers to JoinGroup and SyncGroup come as effects.

Tests: tests/kafka/groups/consumer/test_group_classic_members.py.
"""

from functools import partial

from broker.errors import RequestError
from broker.kafka.groups.consumer.conversion import (
    CONSUMER,
    ClassicSubscription,
    may_become_classic,
    read_subscription,
    write_assignment,
)
from broker.kafka.groups.consumer.member_states import MemberState
from broker.kafka.groups.consumer.members import ClassicMetadata, ConsumerMember
from broker.kafka.groups.consumer.membership import Membership, ParkedRequest
from broker.kafka.groups.consumer.rows import metadata_row
from broker.kafka.groups.consumer.values import TopicsImage
from broker.kafka.groups.values import (
    UNKNOWN_MEMBER,
    JoinAnswer,
    JoinReply,
    JoinRequest,
    JoinResult,
    SyncAnswer,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode


class ClassicRequests:
    def __init__(self, core: Membership) -> None:
        self._core = core

    def join(self, request: JoinRequest, topics: TopicsImage, to: JoinReply, now: float, free_bytes: float) -> bool:
        """True if the group becomes a classic one with it, because a static member of the consumer protocol has come back as a
        classic one, or because that was not possible before."""
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
        """By member id; or by instance id alone, when an operator removes a static member. Members of the consumer protocol
        too."""
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
        said = self._read(request)
        self._check_growth(member, request, said, free_bytes)
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
        is_subscription_new = self._update(member, request, said)
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
            self._answer(member, to, said, is_subscription_new, now)
        else:
            finish = partial(self._finish, member, to, said, is_subscription_new)
            core.parked.park(member.member_id, ParkedRequest(targets.epoch, finish))
        return False

    def _find(self, request: JoinRequest) -> ConsumerMember | None:
        """The member that the request is of, under another member id if it is a static one that comes back; None for a new
        one."""
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
        self, member: ConsumerMember | None, request: JoinRequest, said: ClassicSubscription, free_bytes: float
    ) -> None:
        members = self._core.members
        classic = ClassicMetadata(request.session_timeout_ms, request.protocols)
        growth = ConsumerMember(request.new_member_id, request.group_instance_id, classic=classic).size_bytes
        if member is not None:
            growth -= member.size_bytes
        if not members.has_subscription(said.subscription):
            growth += said.subscription.size_bytes
        if growth > 0 and members.size_bytes + growth > self._core.limits.max_bytes:
            raise RequestError(ErrorCode.group_max_size_reached)
        if growth > max(0, free_bytes):
            raise RequestError(ErrorCode.coordinator_not_available)

    def _update(self, member: ConsumerMember, request: JoinRequest, said: ClassicSubscription) -> bool:
        """Take over what the request says of the member. True if it subscribes to something else than before."""
        members = self._core.members
        subscription = members.intern(said.subscription)
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
                member.rack_id, member.server_assignor = said.rack_id or member.rack_id, None
            member.unchanged = None
            self._core.schedule.revocations.remove(member.member_id)
            self._core.saver.mark(metadata_row(member.member_id))
        return is_subscription_new

    def _finish(
        self,
        member: ConsumerMember,
        to: JoinReply,
        said: ClassicSubscription,
        is_subscription_new: bool,
        error: ErrorCode,
        now: float,
    ) -> None:
        """Answer a join that has waited for the assignment."""
        if error:
            self._core.emit(JoinAnswer(to, JoinResult(error, member.member_id)))
        else:
            self._answer(member, to, said, is_subscription_new, now)

    def _answer(
        self, member: ConsumerMember, to: JoinReply, said: ClassicSubscription, is_subscription_new: bool, now: float
    ) -> None:
        core = self._core
        core.step(member, said.owned, is_subscription_new, now)
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
        """The member is told to join again, and has its rebalance timeout for that."""
        deadline = now + member.rebalance_timeout_ms / 1000
        self._core.schedule.set_if_absent(self._core.schedule.joins, member.member_id, deadline)


def _join_answer(to: JoinReply, result: JoinResult, error: ErrorCode) -> JoinAnswer:
    return JoinAnswer(to, JoinResult(error, result.member_id) if error else result)


def _sync_answer(to: SyncReply, result: SyncResult, error: ErrorCode) -> SyncAnswer:
    return SyncAnswer(to, SyncResult(error) if error else result)
