"""Consumer groups of KIP-848 in the coordinator: durable before answered, restarts, changes of topics, of settings and of the
protocol. The decisions of a group are tested in tests/kafka/groups/consumer."""

from typing import Any

import pytest

from broker import expressions
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer import ConsumerGroup
from broker.kafka.groups.consumer.values import ConsumerGroupDescription, HeartbeatRequest, HeartbeatResult
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.offset_coordinator import Committer
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import encode_subscription
from tests.kafka.groups.classic_group_driver import Parked
from tests.kafka.groups.group_harness import DAY_S, NOBODY, GroupHarness

needs_re2 = pytest.mark.skipif(not expressions.available(), reason="google-re2 is not installed")

SESSION_S = 45
SESSION = "consumer.session.timeout.ms"


class Member:
    """An obedient client."""

    def __init__(self, harness: GroupHarness, member_id: str, group: str = "g") -> None:
        self.harness, self.id, self.group, self.epoch = harness, member_id, group, 0
        self.owned: Any = ()

    def ask(self, epoch: int, *, version: int = 1, **how: Any) -> Parked:
        parked = Parked()
        request = HeartbeatRequest(self.id, epoch, **how)
        result = self.harness.groups.consumers.heartbeat(self.group, request, version, parked)
        if result is not None:
            parked(result)
        return parked

    def ask_join(self, *topics: str, **how: Any) -> Parked:
        if topics:
            how["subscribed_topic_names"] = topics
        return self.ask(0, **{"rebalance_timeout_ms": 60_000, "owned": (), **how})

    def join(self, *topics: str, **how: Any) -> "Member":
        parked = self.ask_join(*topics, **how)
        self.harness.write()
        self.take(parked.result)
        return self

    def beat(self, **how: Any) -> HeartbeatResult:
        """Report the owned partitions, and take the assigned."""
        parked = self.ask(self.epoch, **{"owned": self.owned, **how})
        self.harness.write()
        return self.take(parked.result)

    def leave(self) -> Parked:
        return self.ask(-1)

    def take(self, result: HeartbeatResult) -> HeartbeatResult:
        assert not result.error, result
        self.epoch = result.member_epoch
        if result.assignment is not None:
            self.owned = result.assignment
        return result

    @property
    def partitions(self) -> int:
        return sum(len(partitions) for _, partitions in self.owned)


@pytest.fixture
def harness(harness: GroupHarness) -> GroupHarness:
    harness.topic("orders", 6)
    return harness


def settled(*members: Member, rounds: int = 5) -> list[int]:
    """The number of partitions of each in the end; nobody has another's."""
    for _ in range(rounds):
        for member in members:
            member.beat()
    everything = [(topic, each) for member in members for topic, owned in member.owned for each in owned]
    assert len(set(everything)) == len(everything)
    return [member.partitions for member in members]


def described(harness: GroupHarness, group: str = "g") -> ConsumerGroupDescription:
    description = harness.groups.consumers.describe(group)
    assert isinstance(description, ConsumerGroupDescription)
    return description


# Durability ---------------------------------------------------------------------------------------------------------------


def test_join_is_answered_when_it_is_durable(harness: GroupHarness) -> None:
    member = Member(harness, "a")
    parked = member.ask_join("orders")
    assert parked.is_parked
    harness.write()
    assert member.take(parked.result).member_epoch == 1
    assert member.partitions == 6


def test_unchanged_heartbeat_is_answered_at_once_without_write(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    transactions = harness.database.transactions
    parked = member.ask(member.epoch)
    assert not parked.is_parked and parked.result.assignment is None
    harness.write()
    assert harness.database.transactions == transactions


def test_join_that_cannot_be_written_may_be_repeated(harness: GroupHarness) -> None:
    harness.database.full = True
    member = Member(harness, "a")
    parked = member.ask_join("orders")
    harness.write()
    assert parked.result.error == ErrorCode.not_coordinator
    harness.database.full = False
    member.join("orders")
    assert member.partitions == 6
    harness.restart(clean=False)
    assert member.beat().member_epoch == member.epoch


@pytest.mark.parametrize("clean", [True, False])
def test_members_live_on_after_a_restart(harness: GroupHarness, clean: bool) -> None:
    members = [Member(harness, name).join("orders") for name in "abc"]
    assert settled(*members) == [2, 2, 2]
    before = {member.id: (member.epoch, member.owned) for member in members}
    harness.restart(clean=clean)
    assert described(harness).state == "Stable"
    for member in members:
        assert not member.ask(member.epoch).result.error
    assert settled(*members) == [2, 2, 2]
    assert {member.id: (member.epoch, member.owned) for member in members} == before


def test_lost_unanswered_changes_give_nobody_too_much(harness: GroupHarness) -> None:
    first = Member(harness, "a").join("orders")
    second = Member(harness, "b")
    second.ask_join("orders")
    harness.restart(clean=False)  # the writer had not begun
    assert [member.member_id for member in described(harness).members] == ["a"]
    assert not first.ask(first.epoch).result.error
    second.join("orders")
    assert settled(first, second) == [3, 3]


def test_silent_member_is_fenced_also_after_restart(harness: GroupHarness) -> None:
    members = [Member(harness, name).join("orders") for name in "ab"]
    assert settled(*members) == [3, 3]
    harness.restart(clean=False)
    harness.wait(SESSION_S - 1)
    members[0].beat()
    harness.wait(2)
    assert members[1].ask(members[1].epoch).result.error == ErrorCode.unknown_member_id
    assert settled(members[0]) == [6]


def test_five_hundred_joins_are_few_transactions(harness: GroupHarness) -> None:
    harness.topic("many", 1000)
    members = [Member(harness, f"m{number}") for number in range(500)]
    before = harness.database.transactions
    waiting = [member.ask_join("many") for member in members]
    harness.write()
    harness.wait(1)  # they are answered in parts
    assert harness.database.transactions - before < 30
    for member, parked in zip(members, waiting, strict=True):
        member.take(parked.result)
    assert settled(*members, rounds=4) == [2] * 500


# Errors -------------------------------------------------------------------------------------------------------------------


def test_member_of_missing_group_is_told_so(harness: GroupHarness) -> None:
    result = Member(harness, "a", "none").ask(3).result
    assert (result.error, result.message) == (ErrorCode.group_id_not_found, "Group none not found.")
    assert "none" not in harness.groups.names()


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.invalid_request),
        ({"owned": None}, ErrorCode.invalid_request),
        ({"server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
    ],
)
def test_refused_join_leaves_no_group_behind(harness: GroupHarness, how: dict[str, Any], error: ErrorCode) -> None:
    parked = Member(harness, "a").ask_join("orders", **how)
    harness.write()
    assert parked.error == error
    assert parked.result.message
    assert list(harness.groups.names()) == []


def test_join_without_free_memory_is_refused(new_harness: Any) -> None:
    harness = new_harness(coordinator_max_bytes=1024 * 1024)
    harness.topic("orders", 6)
    errors = []
    for number in range(300):
        parked = Member(harness, "a", f"g{number}").ask_join("orders")
        harness.write()
        errors.append(parked.error)
    assert errors[0] == ErrorCode.none and errors[-1] == ErrorCode.coordinator_not_available
    assert len(harness.groups.names()) == errors.count(ErrorCode.none)
    assert harness.groups.memory.used_bytes <= 1024 * 1024


def test_stopping_broker_refuses_heartbeats_and_answers_waiting_ones(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    waiting = Member(harness, "b").ask_join("orders")
    harness.groups.close()
    assert waiting.error in (ErrorCode.none, ErrorCode.not_coordinator)
    assert member.ask(member.epoch).error == ErrorCode.coordinator_not_available


# Topics -------------------------------------------------------------------------------------------------------------------


def test_new_partitions_reach_the_members(harness: GroupHarness) -> None:
    members = [Member(harness, name).join("orders") for name in "ab"]
    assert settled(*members) == [3, 3]
    harness.topic("orders", 8)
    assert described(harness).group_epoch > members[0].epoch, "without a heartbeat"
    assert settled(*members) == [4, 4]


def test_later_created_topic_reaches_its_waiting_subscribers(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("later")
    assert member.partitions == 0
    harness.topic("later", 3)
    assert settled(member) == [3]


def test_deleted_topic_leaves_its_members_with_its_offsets(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    harness.commit("g", {("orders", 0): 5}, Committer("a", None, member.epoch, True))
    harness.write()
    harness.delete_topic("orders")
    assert settled(member) == [0]
    assert harness.committed("g") == {}
    harness.topic("orders", 2)
    assert settled(member) == [2]


def test_topics_that_nobody_reads_disturb_no_group(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    transactions = harness.database.transactions
    for number in range(20):
        harness.topic(f"other-{number}", 3)
    assert described(harness).group_epoch == member.epoch
    assert harness.database.transactions == transactions


@needs_re2
def test_regular_expression_gets_later_created_topics(harness: GroupHarness) -> None:
    harness.topic("payments-eu", 2)
    member = Member(harness, "a").join(subscribed_topic_regex="payments-.*")
    assert member.partitions == 2
    harness.topic("payments-us", 3)
    harness.topic("other", 3)
    harness.wait(5)
    assert settled(member) == [5]
    harness.delete_topic("payments-eu")
    harness.wait(5)
    assert settled(member) == [3]


@needs_re2
def test_regular_expression_gets_only_describable_topics(harness: GroupHarness) -> None:
    harness.topic("payments-eu", 2)
    harness.topic("payments-secret", 4)
    asked: list[object] = []

    def visible(context: object, names: frozenset[str]) -> frozenset[str]:
        asked.append(context)
        return names - {"payments-secret"}

    harness.groups.consumers.visible = visible
    member = Member(harness, "a").join(subscribed_topic_regex="payments-.*", context="someone")
    assert member.partitions == 2
    assert asked == ["someone"]


@needs_re2
def test_members_keep_matches_while_rights_are_unknown(harness: GroupHarness) -> None:
    harness.topic("payments-eu", 2)
    member = Member(harness, "a").join(subscribed_topic_regex="payments-.*", context="someone")
    assert settled(member) == [2]
    harness.restart()
    harness.groups.consumers.visible = lambda context, names: None if context is None else names
    harness.topic("payments-us", 2)
    harness.wait(3)
    assert settled(member) == [2]
    member.beat(context="someone")
    harness.wait(3)
    assert settled(member) == [4]


# Settings -----------------------------------------------------------------------------------------------------------------


def test_group_may_have_own_session_timeout_and_interval(harness: GroupHarness) -> None:
    harness.groups.configs.alter("g", lambda own, default: {SESSION: "60000", "consumer.heartbeat.interval.ms": "6000"})
    members = [Member(harness, name).join("orders") for name in "ab"]
    assert members[0].beat().heartbeat_interval_ms == 6_000
    harness.wait(50)
    assert settled(*members) == [3, 3]
    harness.groups.configs.alter("g", lambda own, default: {SESSION: None, "consumer.heartbeat.interval.ms": "7000"})
    assert members[0].beat().heartbeat_interval_ms == 7_000
    members[1].beat()
    harness.wait(50)
    assert members[0].ask(members[0].epoch).error == ErrorCode.unknown_member_id


def test_group_keeps_its_settings_after_a_restart(harness: GroupHarness) -> None:
    harness.groups.configs.alter("g", lambda own, default: {SESSION: "60000"})
    member = Member(harness, "a").join("orders")
    harness.restart()
    harness.wait(50)
    assert not member.ask(member.epoch).error


# Offsets ------------------------------------------------------------------------------------------------------------------


def commit(harness: GroupHarness, member_id: str, epoch: int, *, knows_epochs: bool = True) -> ErrorCode:
    answer = harness.commit("g", {("orders", 0): 5}, Committer(member_id, None, epoch, knows_epochs))
    harness.write()
    return answer.error


def test_member_commits_with_its_epoch(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    assert commit(harness, "a", member.epoch) == ErrorCode.none
    assert commit(harness, "a", member.epoch + 1) == ErrorCode.stale_member_epoch
    assert commit(harness, "b", member.epoch) == ErrorCode.unknown_member_id
    assert commit(harness, "", -1) == ErrorCode.unknown_member_id
    assert harness.committed("g") == {("orders", 0): 5}


def test_member_commits_only_with_epoch_aware_versions(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    assert commit(harness, "a", member.epoch, knows_epochs=False) == ErrorCode.unsupported_version
    assert commit(harness, "a", member.epoch + 1, knows_epochs=False) == ErrorCode.unsupported_version


def test_commit_for_missing_group_is_refused_by_version(harness: GroupHarness) -> None:
    assert commit(harness, "a", 3) == ErrorCode.group_id_not_found
    assert commit(harness, "a", 3, knows_epochs=False) == ErrorCode.illegal_generation
    assert commit(harness, "", -1) == ErrorCode.none


def test_operator_commits_while_the_group_is_empty(harness: GroupHarness) -> None:
    Member(harness, "a").join("orders").leave()
    harness.write()
    answer = harness.commit("g", {("orders", 1): 9}, NOBODY)
    harness.write()
    assert answer.error == ErrorCode.none


def test_offsets_are_fetched_in_current_epoch_or_anonymously(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    check = harness.groups.offsets.check_fetch
    assert check("g", None, -1) == check("g", "", -1) == check("none", "a", 3) == ErrorCode.none
    assert check("g", "a", member.epoch) == ErrorCode.none
    assert check("g", "a", member.epoch - 1) == ErrorCode.stale_member_epoch
    assert check("g", "b", member.epoch) == ErrorCode.unknown_member_id
    harness.commit("offsets-only", {("orders", 1): 9})
    assert check("offsets-only", "a", 3) == ErrorCode.none


def test_member_commits_in_transaction_with_its_epoch(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    check = harness.groups.offsets.check_in_transaction
    assert check("g", Committer("a", None, member.epoch)) == ErrorCode.none
    assert check("g", Committer("a", None, member.epoch + 1)) == ErrorCode.illegal_generation
    assert check("g", Committer("b", None, member.epoch)) == ErrorCode.unknown_member_id
    assert check("g", NOBODY) == ErrorCode.unknown_member_id
    member.leave()
    assert check("g", NOBODY) == ErrorCode.none
    assert check("none", NOBODY) == ErrorCode.none


def test_offsets_of_subscribed_topics_stay_and_never_expire(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    harness.topic("payments", 1)
    harness.commit("g", {("orders", 0): 5, ("payments", 0): 6}, Committer("a", None, member.epoch, True))
    harness.write()
    answers: list[Any] = []
    harness.groups.offsets.delete("g", [("orders", 0), ("payments", 0)], lambda *answer: answers.append(answer))
    harness.write()
    _, errors = answers.pop()
    assert errors == {("orders", 0): ErrorCode.group_subscribed_to_topic, ("payments", 0): ErrorCode.none}
    for _ in range(8 * 24 * 3600 // 40):
        harness.clock.now += 40
        member.ask(member.epoch)
    harness.groups.expiration.sweep()
    assert harness.committed("g") == {("orders", 0): 5}


# Administration -----------------------------------------------------------------------------------------------------------


def test_empty_group_is_deleted_without_leftovers(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    answers: list[dict[str, ErrorCode]] = []
    harness.groups.delete(["g"], answers.append)
    assert answers.pop() == {"g": ErrorCode.non_empty_group}
    member.leave()
    harness.groups.delete(["g"], answers.append)
    harness.write()
    assert answers.pop() == {"g": ErrorCode.none}
    assert list(harness.catalogue.load_documents("group-rows")) == []
    assert harness.groups.memory.used_bytes == 0


def test_groups_are_listed_by_type_and_state(harness: GroupHarness) -> None:
    Member(harness, "a", "consumers").join("orders")
    harness.stable("classics")

    def names(*, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> set[str]:
        _, groups = harness.groups.list(states, types)
        return {group.group_id for group in groups}

    assert names() == {"consumers", "classics"}
    assert names(types=("Consumer",)) == {"consumers"}
    assert names(types=("classic ",)) == {"classics"}
    assert names(types=("share", "nothing")) == set()
    assert names(states=("stable",), types=("CONSUMER", "classic")) == {"consumers", "classics"}
    assert names(states=("Empty",)) == set()


def test_consumer_group_is_dead_to_classic_describe(harness: GroupHarness) -> None:
    Member(harness, "a").join("orders")
    _, description = harness.groups.describe("g")
    assert description.state.value == "Dead"
    assert harness.groups.type_of("g") is GroupType.CONSUMER


def test_only_consumer_groups_are_described(harness: GroupHarness) -> None:
    harness.stable("classics")
    assert harness.groups.consumers.describe("classics") == ErrorCode.group_id_not_found
    assert harness.groups.consumers.describe("none") == ErrorCode.group_id_not_found


# Changes of the protocol --------------------------------------------------------------------------------------------------


def classic(harness: GroupHarness, **how: Any) -> str:
    """A classic group with one member; its member id."""
    protocols = (("range", bytes(encode_subscription(["orders"]))),)
    parked = harness.join("g", **{"protocols": protocols, "member_id_required": False, **how})
    harness.write()
    harness.sync("g", parked.member_id, 1, {parked.member_id: b""})
    harness.write()
    assert isinstance(parked.member_id, str)
    return parked.member_id


def test_empty_classic_group_becomes_consumer_and_keeps_offsets(harness: GroupHarness) -> None:
    harness.commit("g", {("orders", 0): 5})
    harness.write()
    Member(harness, "a").join("orders")
    assert harness.groups.type_of("g") is GroupType.CONSUMER
    harness.restart(clean=False)
    assert harness.groups.type_of("g") is GroupType.CONSUMER
    assert harness.committed("g") == {("orders", 0): 5}


def test_empty_consumer_group_becomes_classic_and_keeps_offsets(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    commit(harness, "a", member.epoch)
    member.leave()
    harness.write()
    classic(harness)
    assert harness.groups.type_of("g") is GroupType.CLASSIC
    harness.restart(clean=False)
    assert harness.groups.type_of("g") is GroupType.CLASSIC
    assert harness.committed("g") == {("orders", 0): 5}
    assert list(harness.catalogue.load_documents("group-rows")) == []


def test_classic_group_with_members_is_upgraded_and_downgraded(harness: GroupHarness) -> None:
    old = classic(harness)
    new = Member(harness, "new").join("orders")
    assert harness.groups.type_of("g") is GroupType.CONSUMER
    assert {member.member_type for member in described(harness).members} == {0, 1}
    error = harness.groups.heartbeat("g", old, None, 1)
    assert error == ErrorCode.rebalance_in_progress
    harness.restart(clean=False)
    assert harness.groups.type_of("g") is GroupType.CONSUMER
    assert harness.groups.heartbeat("g", old, None, 1) == ErrorCode.rebalance_in_progress
    new.leave()
    harness.write()
    assert harness.groups.type_of("g") is GroupType.CLASSIC
    harness.restart(clean=False)
    assert harness.groups.type_of("g") is GroupType.CLASSIC
    entry = harness.groups._registry.get("g")
    assert entry is not None and isinstance(entry.group, ClassicGroup)
    assert [member.member_id for member in entry.group.members] == [old]
    assert list(harness.catalogue.load_documents("group-rows")) == []


def test_operator_removes_last_member_of_newer_protocol(harness: GroupHarness) -> None:
    old = classic(harness)
    Member(harness, "new").join("orders", instance_id="i")
    error, errors = harness.groups.leave("g", [("", "i"), (old, None), ("none", None)])
    assert (error, errors) == (ErrorCode.none, [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_member_id])
    harness.write()
    assert harness.groups.figures("g").members == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_classic_group_is_not_upgraded_where_forbidden(new_harness: Any, policy: str) -> None:
    harness = new_harness(group_consumer_migration_policy=policy)
    harness.topic("orders", 2)
    member = classic(harness)
    result = Member(harness, "new").ask_join("orders").result
    assert result.error == ErrorCode.group_id_not_found
    assert "online upgrade is disabled" in result.message and "set group.protocol to classic" in result.message
    assert harness.groups.heartbeat("g", member, None, 1) == ErrorCode.none


def test_group_of_other_protocol_type_is_not_upgraded(harness: GroupHarness) -> None:
    classic(harness, protocol_type="connect")
    result = Member(harness, "new").ask_join("orders").result
    assert result.error == ErrorCode.group_id_not_found
    assert harness.groups.type_of("g") is GroupType.CLASSIC
    assert Member(harness, "new").ask(3).error == ErrorCode.group_id_not_found


@pytest.mark.parametrize(
    ("max_size", "how", "error"),
    [
        (3, {"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
        (2, {}, ErrorCode.group_max_size_reached),
    ],
)
def test_refused_join_converts_no_group_with_members(
    new_harness: Any, max_size: int, how: dict[str, Any], error: ErrorCode
) -> None:
    harness = new_harness(group_consumer_max_size=max_size)
    harness.topic("orders", 2)
    classic(harness)
    waiting = harness.join("g", member_id_required=False)  # until the first one joins again
    assert Member(harness, "new").ask_join("orders", **how).error == error
    harness.write()
    assert harness.groups.type_of("g") is GroupType.CLASSIC
    assert waiting.is_parked
    harness.restart(clean=False)
    assert harness.groups.type_of("g") is GroupType.CLASSIC


def test_refused_join_converts_no_empty_group(harness: GroupHarness) -> None:
    harness.commit("g", {("orders", 0): 5})
    harness.write()
    refused = Member(harness, "new").ask_join("orders", subscribed_topic_regex="(")
    assert refused.error == ErrorCode.invalid_regular_expression
    assert harness.groups.type_of("g") is GroupType.CLASSIC
    assert harness.committed("g") == {("orders", 0): 5}


def test_failed_upgrade_is_written_with_the_next_change(harness: GroupHarness) -> None:
    old = classic(harness)
    harness.database.full = True
    member = Member(harness, "new")
    parked = member.ask_join("orders")
    harness.write()
    assert parked.error == ErrorCode.not_coordinator
    harness.database.full = False
    member.join("orders")
    harness.restart(clean=False)
    assert harness.groups.type_of("g") is GroupType.CONSUMER
    assert list(harness.catalogue.load_groups()) == []
    assert harness.groups.heartbeat("g", old, None, 1) == ErrorCode.rebalance_in_progress


def test_failed_downgrade_is_written_with_the_next_change(harness: GroupHarness) -> None:
    old = classic(harness)
    new = Member(harness, "new").join("orders")
    harness.database.full = True
    new.leave()
    harness.write()
    harness.database.full = False
    assert harness.groups.type_of("g") is GroupType.CLASSIC
    harness.groups.leave("g", [(old, None)])
    harness.write()
    assert list(harness.catalogue.load_documents("group-rows")) == []
    harness.restart(clean=False)
    assert harness.groups.type_of("g") is GroupType.CLASSIC


def test_rebalances_are_counted(harness: GroupHarness) -> None:
    for name in "ab":
        Member(harness, name).join("orders")
    figures = harness.groups.figures("g")
    assert figures is not None
    assert (figures.rebalances, figures.generation, figures.members) == (2, 2, 2)


def test_empty_group_without_offsets_goes(harness: GroupHarness) -> None:
    Member(harness, "a").join("orders").leave()
    harness.write()
    harness.wait(DAY_S)
    assert list(harness.groups.names()) == []
    assert list(harness.catalogue.load_documents("group-rows")) == []


def test_group_with_unreadable_rows_is_made_anew(harness: GroupHarness) -> None:
    member = Member(harness, "a").join("orders")
    rows = dict(harness.catalogue.load_documents("group-rows"))
    damaged = next(key for key in rows if key.endswith("m/a"))
    harness.catalogue.alter_documents([("group-rows", damaged, b"{")])
    harness.restart(clean=False)
    assert list(harness.groups.names()) == []
    assert member.ask(member.epoch).error == ErrorCode.group_id_not_found
    member.join("orders")
    assert member.partitions == 6
    harness.restart(clean=False)
    entry = harness.groups._registry.get("g")
    assert entry is not None and isinstance(entry.group, ConsumerGroup)
