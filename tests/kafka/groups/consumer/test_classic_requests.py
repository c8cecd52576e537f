"""A classic group becomes a consumer group with the first heartbeat, and classic again when the last consumer has left."""

import attrs
import pytest

from broker.errors import RequestError
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer.consumer_group import ConsumerGroup
from broker.kafka.groups.consumer.values import BecomeClassic, ConsumerGroupLimits, MigrationPolicy, SaveNote
from broker.kafka.groups.group import SaveRows
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.values import GroupSnapshot, JoinAnswer, JoinRequest, JoinResult, MemberSnapshot
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import encode_assignment, encode_subscription, parse_assignment
from tests.kafka.groups.consumer.classic_client import ClassicClient
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, topic_id

SUBSCRIPTION = encode_subscription(["t"], version=1)


def member(member_id: str, *partitions: int, **changed: object) -> MemberSnapshot:
    assignment = encode_assignment({"t": partitions}, version=1)
    made = MemberSnapshot(
        member_id, None, "client", "/127.0.0.1", 10_000, 60_000, (("range", SUBSCRIPTION),), assignment
    )
    return attrs.evolve(made, **changed)


def classic_group(*members: MemberSnapshot, protocol_type: str = "consumer", assignor: str = "range") -> ClassicGroup:
    snapshot = GroupSnapshot(protocol_type, 7, assignor, members[0].member_id if members else None, members)
    return ClassicGroup.restore("group", GroupLimits(), snapshot, 0.0)


def upgrade(driver: GroupDriver, classic: ClassicGroup, limits: ConsumerGroupLimits | None = None) -> None:
    driver.group = ConsumerGroup.from_classic(classic, limits or ConsumerGroupLimits(), driver.topics, driver.now)
    classic.hand_over()


def test_members_keep_partitions_and_hand_over_stepwise() -> None:
    driver = GroupDriver.of(t=4)
    upgrade(driver, classic_group(member("a", 0, 1), member("b", 2, 3)))
    old = [
        ClassicClient(driver, name, generation=7, owned={"t": owned}) for name, owned in (("a", [0, 1]), ("b", [2, 3]))
    ]
    assert [client.heartbeat() for client in old] == [ErrorCode.none] * 2
    new = Client(driver, "c")
    new.beat()
    assert new.count == 0
    assert [client.heartbeat() for client in old] == [ErrorCode.rebalance_in_progress] * 2
    for _ in range(6):
        for client in (*old, new):
            client.beat()
    assert sorted(client.count for client in (*old, new)) == [1, 1, 2]
    assert sum(client.count for client in (*old, new)) == 4


def test_first_save_has_all_rows_and_replaces_classic() -> None:
    driver = GroupDriver.of(t=4)
    upgrade(driver, classic_group(member("a", 0, 1), member("b", 2, 3)))
    Client(driver, "c").beat()
    [first, *others] = driver.all_saves
    assert isinstance(first, SaveRows)
    assert {"", "m/a", "a/a", "m/b", "a/b", "m/c", "a/c"} == set(first.put)
    assert first.then == SaveNote(1, replaces_classic=True)
    assert not any(save.then.replaces_classic for save in others)


def test_parked_classic_joins_are_told_to_join_again() -> None:
    classic = ClassicGroup("group", GroupLimits(initial_rebalance_delay_ms=1000))
    protocols = (("range", SUBSCRIPTION),)
    answers: list[JoinResult] = []
    classic.join(
        JoinRequest(
            "", None, "client", "/127.0.0.1", 10_000, 60_000, "consumer", protocols, "a", member_id_required=False
        ),
        answers.append,
        0.0,
    )
    driver = GroupDriver.of(t=4)
    upgrade(driver, classic)
    [answer] = classic.take_effects()
    assert isinstance(answer, JoinAnswer)
    assert answer.result.error is ErrorCode.rebalance_in_progress
    assert driver.group.member_count == 1


@pytest.mark.parametrize(
    ("limits", "group", "reason"),
    [
        (
            ConsumerGroupLimits(migration_policy=MigrationPolicy.DOWNGRADE),
            classic_group(member("a")),
            "online upgrade is disabled",
        ),
        (
            ConsumerGroupLimits(),
            classic_group(member("a"), protocol_type="connect"),
            "the group does not use the consumer embedded protocol",
        ),
        (
            ConsumerGroupLimits(max_size=1),
            classic_group(member("a"), member("b")),
            "the group size exceeds the consumer group maximum size",
        ),
        (
            ConsumerGroupLimits(),
            classic_group(member("a", protocols=(("range", b"\x00"),))),
            "the embedded consumer protocol is malformed",
        ),
        (
            ConsumerGroupLimits(),
            classic_group(
                member("a", protocols=(("ours", SUBSCRIPTION),), assignment=encode_assignment({}, user_data=b"mine")),
                assignor="ours",
            ),
            "an unsupported custom assignor is in use",
        ),
    ],
)
def test_group_that_cannot_be_upgraded_is_unchanged(
    limits: ConsumerGroupLimits, group: ClassicGroup, reason: str
) -> None:
    before = group.describe()
    with pytest.raises(
        RequestError, match=f"Cannot upgrade classic group group to consumer group because {reason}"
    ) as error:
        ConsumerGroup.from_classic(group, limits, GroupDriver.of(t=1).topics, 0.0)
    assert error.value.code == ErrorCode.group_id_not_found
    assert group.describe() == before
    assert group.take_effects() == []


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_group_of_usual_assignor_upgrades_despite_user_data(assignor: str) -> None:
    driver = GroupDriver.of(t=2)
    assignment = encode_assignment({"t": [0, 1]}, user_data=b"what the member said")
    upgrade(
        driver,
        classic_group(member("a", protocols=((assignor, SUBSCRIPTION),), assignment=assignment), assignor=assignor),
    )
    assert driver.group.member_count == 1


def test_partition_of_two_classic_members_has_one_owner() -> None:
    driver = GroupDriver.of(t=2)
    upgrade(driver, classic_group(member("a", 0, 1, 99), member("b", 1)))
    assert {each.member_id: each.assignment for each in driver.group.describe().members} == {
        "a": {topic_id("t"): frozenset({0, 1})},
        "b": {},
    }


def mixed(driver: GroupDriver) -> tuple[Client, ClassicClient]:
    new, old = Client(driver, "new"), ClassicClient(driver, new_id="old")
    for _ in range(6):
        new.beat()
        old.beat()
    return new, old


@pytest.mark.parametrize("how", ["leave", "LeaveGroup", "session"])
def test_group_becomes_classic_with_only_classic_members(how: str) -> None:
    driver = GroupDriver.of(t=4)
    new, old = mixed(driver)
    generation = driver.group.epoch
    if how == "leave":
        assert new.leave().error is ErrorCode.none
    elif how == "LeaveGroup":
        assert driver.group.classic_leave("new", None, driver.now) is ErrorCode.none
        driver.settle()
    else:
        for _ in range(6):
            driver.pass_time(8.0)
            if driver.classic is None:
                old.beat()
    assert isinstance(driver.classic, BecomeClassic)
    assert driver.group.is_dead
    assert driver.rows == {}
    snapshot = driver.classic.snapshot
    assert (snapshot.protocol_type, snapshot.generation, snapshot.protocol_name) == ("consumer", generation, "range")
    [left] = snapshot.members
    assert left.member_id == "old"
    assert parse_assignment(left.assignment).partitions == old.owned
    classic = ClassicGroup.restore("group", GroupLimits(), snapshot, driver.now)
    assert classic.heartbeat("old", None, old.generation, driver.now) is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize(
    "limits",
    [ConsumerGroupLimits(migration_policy=MigrationPolicy.UPGRADE), ConsumerGroupLimits(classic_max_size=0)],
)
def test_group_stays_consumer_group_if_downgrade_is_forbidden(limits: ConsumerGroupLimits) -> None:
    driver = GroupDriver.of(limits, t=4)
    new, old = mixed(driver)
    new.leave()
    assert driver.classic is None
    for _ in range(4):
        old.beat()
    assert old.count == 4


def test_group_without_members_does_not_become_classic() -> None:
    driver = GroupDriver.of(t=4)
    client = Client(driver, "a")
    client.beat()
    client.leave()
    assert driver.classic is None
    assert driver.group.is_empty


def test_returning_classic_static_member_makes_group_classic() -> None:
    driver = GroupDriver.of(t=4)
    new = Client(driver, "new", instance_id="i")
    new.beat()
    old = ClassicClient(driver, instance_id="i", new_id="old")
    assert old.join().error is ErrorCode.rebalance_in_progress
    assert driver.classic is not None
    assert [each.member_id for each in driver.classic.snapshot.members] == ["old"]


def test_last_consumers_answer_waits_for_durable_classic_group() -> None:
    driver = GroupDriver.of(t=4, is_lazy=True)
    new, _ = mixed(driver)
    driver.work()
    answers: list[object] = []
    driver.heartbeat(attrs.evolve(new.request(), member_epoch=-1), answers.append)
    assert answers == []
    driver.save(ErrorCode.unknown_server_error)
    assert getattr(answers[0], "error", None) is ErrorCode.not_coordinator
