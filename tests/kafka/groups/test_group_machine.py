"""Any order of joins, syncs, heartbeats, leaves, failures, waits, slow or failing saves and restarts keeps the invariants."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.values import JoinResult, SyncResult
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.classic_group_driver import ClassicGroupDriver, Parked

PROTOCOLS = [
    (("range", b"a"),),
    (("range", b"b"),),
    (("range", b"a"), ("sticky", b"a")),
    (("sticky", b"a"), ("range", b"a")),
]
# Most joins are of the first kind, so that groups become stable at all.
protocols = st.sampled_from([PROTOCOLS[2]] * 6 + PROTOCOLS)


class Client:
    """A consumer: the last answers that it got, and the answers that it waits for."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.synced = False
        self.is_leader = False
        self.members: tuple[str, ...] = ()
        self.join: Parked | None = None
        self.sync: Parked | None = None


class GroupMachine(RuleBasedStateMachine):
    """Dynamic and static members of one group. Hypothesis makes all random choices."""

    def __init__(self) -> None:
        super().__init__()
        self.start(GroupLimits())
        self.clients = [Client(f"dynamic-{n}", None) for n in range(3)]
        self.clients += [Client(f"static-{n}", f"pod-{n}") for n in range(2)]
        self.requests: list[Parked] = []
        self.highest_generation = 0
        # The leader's assignment in each generation, by the name of the member. Reset by a restart, which may forget the last
        # generations and count them again.
        self.assigned: dict[int, dict[str, bytes]] = {}
        self.owners: dict[tuple[int, bytes], str] = {}
        self.leaders: dict[int, str] = {}

    client = st.integers(0, 4)

    def start(self, limits: GroupLimits) -> None:
        self.limits = limits
        self.driver = ClassicGroupDriver(limits)
        self.driver.save_at_once = False

    @initialize(
        max_size=st.sampled_from([3, 100]),
        delay_ms=st.sampled_from([0, 0, 3_000]),
        first=st.lists(client, min_size=0, max_size=5, unique=True),
    )
    def a_group_begins(self, max_size: int, delay_ms: int, first: list[int]) -> None:
        self.start(GroupLimits(max_size, delay_ms))
        for _ in range(6):  # enough rounds for these to become stable
            if first:
                self.clients_go_on(first, PROTOCOLS[2])
            self.driver.wait(delay_ms / 1000)
            self.saves_end_well()

    def known_as(self, client: Client) -> str:
        return client.instance or client.member_id

    # What good clients do -------------------------------------------------------------------------------------------

    @rule(order=st.lists(client, min_size=1, max_size=8), protocols=protocols)
    def clients_go_on(self, order: list[int], protocols: Any) -> None:
        for index in order:
            self.see_answers()
            client = self.clients[index]
            if client.join is not None or client.sync is not None:
                continue
            if client.generation < 0:
                self.a_client_joins(index, protocols, 30_000, client.instance is None)
            elif not client.synced:
                self.a_client_syncs(index, True)
            elif self.driver.heartbeat(client.member_id, client.generation, instance=client.instance):
                self.a_client_joins(index, protocols, 30_000, True)

    @precondition(lambda self: self.driver.saves)
    @rule()
    def saves_end_well(self) -> None:
        while self.driver.saves:
            self.driver.finish_save()

    # What any client may do -------------------------------------------------------------------------------------------

    @rule(index=client, protocols=protocols, session_ms=st.sampled_from([6_000, 30_000]), keep_id=st.booleans())
    def a_client_joins(self, index: int, protocols: Any, session_ms: int, keep_id: bool) -> None:
        client = self.clients[index]
        member_id = client.member_id if keep_id or client.instance is None else ""
        parked = self.driver.join(member_id, instance=client.instance, protocols=protocols, session_ms=session_ms)
        self.requests.append(parked)
        client.join, client.sync = parked, None

    @rule(index=client)
    def a_client_starts_anew(self, index: int) -> None:
        old = self.clients[index]
        self.clients[index] = Client(old.name, old.instance)

    @rule(index=client, names_all=st.booleans())
    def a_client_syncs(self, index: int, names_all: bool) -> None:
        client = self.clients[index]
        assignments: dict[str, bytes] = {}
        if client.is_leader:
            named = client.members if names_all else client.members[1:]
            assignments = {member: f"{n} of {client.generation}".encode() for n, member in enumerate(named)}
        before = len(self.driver.saves)
        parked = self.driver.sync(client.member_id, client.generation, assignments, instance=client.instance)
        if len(self.driver.saves) > before:
            instances = {
                member.member_id: member.group_instance_id or member.member_id for member in self.driver.group.members
            }
            self.assigned[client.generation] = {instances[member_id]: value for member_id, value in assignments.items()}
        self.requests.append(parked)
        client.sync = parked

    @rule(index=client)
    def a_client_sends_a_heartbeat(self, index: int) -> None:
        client = self.clients[index]
        error = self.driver.heartbeat(client.member_id, client.generation, instance=client.instance)
        self.check_generation(client, error)

    @rule(index=client)
    def a_client_commits(self, index: int) -> None:
        client = self.clients[index]
        error = self.driver.commit(client.member_id, client.generation, instance=client.instance)
        if client.generation >= 0:
            self.check_generation(client, error)

    @rule(index=client)
    def a_client_leaves(self, index: int) -> None:
        client = self.clients[index]
        self.driver.leave(client.member_id, instance=client.instance)

    # What happens -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 1.0, 1.0, 1.0, 3.0, 5.9, 30.0, 61.0, 301.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.wait(seconds)

    @rule()
    def a_rebalance_is_demanded(self) -> None:
        group = self.driver.group
        assert bool(len(group.members)) == group.rebalance(self.driver.now)
        self.driver._settle()

    @rule(index=client, everybody=st.booleans())
    def a_session_is_ended(self, index: int, everybody: bool) -> None:
        group, member_id = self.driver.group, self.clients[index].member_id
        has_ended = bool(len(group.members)) if everybody else member_id in group.members
        assert has_ended == group.time_out(None if everybody else member_id, self.driver.now)
        self.driver._settle()
        assert not (everybody and len(group.members))
        assert member_id not in group.members

    @precondition(lambda self: self.driver.saves)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def a_save_ends(self, fails: bool) -> None:
        then = self.driver.saves[0].then
        self.driver.finish_save(ErrorCode.not_coordinator if fails else ErrorCode.none)
        if fails and hasattr(then, "assignments") and self.driver.group.generation == then.generation:
            self.assigned.pop(then.generation, None)

    @rule()
    def the_broker_restarts(self) -> None:
        group = self.driver.group
        group.shut_down()
        self.driver._settle()
        self.see_answers()
        assert all(not request.is_parked for request in self.requests)
        self.driver.saves.clear()  # the machine stopped before they were written
        if self.driver.saved:
            snapshot = self.driver.saved[-1].snapshot
            group = ClassicGroup.restore("g", self.limits, snapshot, self.driver.now)
            for generation in [number for number in self.assigned if number > snapshot.generation]:
                del self.assigned[generation]
        else:
            group = ClassicGroup("g", self.limits)
            self.assigned.clear()
        self.highest_generation = group.generation
        self.owners.clear()
        self.leaders.clear()
        self.driver.group = group

    # What must hold ---------------------------------------------------------------------------------------------------

    def check_generation(self, client: Client, error: ErrorCode) -> None:
        group = self.driver.group
        if error in (ErrorCode.none, ErrorCode.rebalance_in_progress):
            assert client.member_id in group.members
            assert client.generation == group.generation

    @invariant()
    def answers_agree(self) -> None:
        self.see_answers()

    def see_answers(self) -> None:
        for client in self.clients:
            if client.join is not None and client.join.answers:
                self.see_join(client, client.join.result)
                client.join = None
            if client.sync is not None and client.sync.answers:
                self.see_sync(client, client.sync.result)
                client.sync = None

    def see_join(self, client: Client, result: JoinResult) -> None:
        if result.error == ErrorCode.none:
            client.member_id, client.generation = result.member_id, result.generation
            client.synced = False
            client.is_leader = result.leader == result.member_id and not result.skip_assignment
            client.members = tuple(member.member_id for member in result.members)
            if client.is_leader:
                assert client.member_id in client.members
                known = self.known_as(client)
                assert self.leaders.setdefault(result.generation, known) == known, "two leaders of one generation"
        elif result.error == ErrorCode.member_id_required:
            client.member_id = result.member_id
        elif result.error in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            client.member_id, client.generation = "", -1

    def see_sync(self, client: Client, result: SyncResult) -> None:
        if result.error:
            client.generation = -1
            return
        client.synced = True
        known = self.known_as(client)
        assert result.assignment == self.assigned[client.generation].get(known, b"")
        if result.assignment:
            owner = self.owners.setdefault((client.generation, result.assignment), known)
            assert owner == known, "two owners in one generation"

    @invariant()
    def generations_never_decrease(self) -> None:
        assert self.driver.group.generation >= self.highest_generation
        self.highest_generation = self.driver.group.generation

    @invariant()
    def there_is_a_leader_if_there_are_members(self) -> None:
        members = self.driver.group.members
        assert (members.leader in members) if len(members) else members.leader is None

    @invariant()
    def every_request_is_parked_or_answered_once(self) -> None:
        group = self.driver.group
        parked = {id(request) for request in [*group._parked.joins.values(), *group._parked.syncs.values()]}
        assert parked == {id(request) for request in self.requests if request.is_parked}
        assert all(len(request.answers) <= 1 for request in self.requests)
        self.requests = [request for request in self.requests if request.is_parked]

    @invariant()
    def only_members_are_parked_and_only_where_they_may_be(self) -> None:
        group = self.driver.group
        members = {member.member_id for member in group.members}
        assert members >= group._parked.joins.keys() | group._parked.syncs.keys() | group._rebalancer.not_synced
        assert not members & group._pending.ids()
        assert not group._parked.joins or group.state in (
            ClassicGroupState.PREPARING_REBALANCE,
            ClassicGroupState.STABLE,
        )
        assert not group._parked.syncs or group.state is ClassicGroupState.COMPLETING_REBALANCE
        assert not members or group.state is not ClassicGroupState.EMPTY

    @invariant()
    def every_member_has_a_deadline_or_is_parked(self) -> None:
        group = self.driver.group
        for member in group.members:
            parked = member.member_id in group._parked.joins or member.member_id in group._parked.syncs
            assert member.member_id in group._schedule.members or parked
        known = {member.member_id for member in group.members} | group._pending.ids()
        assert known >= set(group._schedule.members._entries)
        assert group.wake <= group._schedule.next()

    @invariant()
    def its_size_is_that_of_its_members(self) -> None:
        group = self.driver.group
        of_members = sum(member.size_bytes + len(member.assignment) for member in group.members)
        assert (group.members.size_bytes, group._pending.size_bytes) == (
            of_members,
            sum(group._pending._sizes.values()),
        )

    @invariant()
    def a_stable_group_has_the_assignment_of_its_leader(self) -> None:
        group = self.driver.group
        if group.state is ClassicGroupState.STABLE:
            expected = self.assigned[group.generation]
            for member in group.members:
                known = member.group_instance_id or member.member_id
                assert member.assignment == expected.get(known, b"")

    def teardown(self) -> None:
        """Once faults stop, every parked request is answered."""
        self.driver.save_at_once = True
        self.driver._settle()
        self.driver.wait(1_000)
        assert [request for request in self.requests if request.is_parked] == []


GroupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestGroupMachine = GroupMachine.TestCase
