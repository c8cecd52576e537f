"""Single steps of a member, in the order of the cases of Kafka's CurrentAssignmentBuilder."""

from uuid import UUID

import pytest

from broker.kafka.groups.consumer.members import ConsumerMember, MemberState
from broker.kafka.groups.consumer.reconciler import Ownership, Step, Target, reconcile
from broker.kafka.groups.consumer.values import Assignment, TopicPartitions

T, U = UUID(int=1), UUID(int=2)
S = MemberState


def some(**partitions: set[int]) -> dict[UUID, frozenset[int]]:
    return {{"t": T, "u": U}[name]: frozenset(each) for name, each in partitions.items()}


def told(**partitions: set[int]) -> TopicPartitions:
    return tuple((topic_id, tuple(sorted(each))) for topic_id, each in some(**partitions).items())


def step(
    member: ConsumerMember,
    target: Assignment,
    *,
    epoch: int = 5,
    owned: TopicPartitions | None = None,
    others: Assignment | None = None,
    subscribed: tuple[UUID, ...] = (T, U),
    is_subscription_new: bool = False,
) -> Step | None:
    ownership = Ownership()
    ownership.take(member, member.assigned)
    ownership.take(member, member.revoking)
    ownership.take(ConsumerMember("other"), others or {})
    return reconcile(member, Target(epoch, target, subscribed.__contains__), ownership, owned, is_subscription_new)


def test_stable_member_at_the_epoch_is_unchanged() -> None:
    assert step(ConsumerMember("m", epoch=5, assigned=some(t={0})), some(t={0})) is None


def test_new_member_gets_free_partitions() -> None:
    assert step(ConsumerMember("m"), some(t={0, 1})) == Step(S.STABLE, 5, some(t={0, 1}), {})


def test_member_waits_for_partitions_of_others() -> None:
    result = step(ConsumerMember("m"), some(t={0, 1}, u={0}), others=some(t={1}, u={0}))
    assert result == Step(S.UNRELEASED_PARTITIONS, 5, some(t={0}), {})


def test_waiting_member_gets_released_partitions() -> None:
    member = ConsumerMember("m", epoch=5, state=S.UNRELEASED_PARTITIONS, assigned=some(t={0}))
    assert step(member, some(t={0, 1}, u={0}), others=some(u={0})) == Step(
        S.UNRELEASED_PARTITIONS, 5, some(t={0, 1}), {}
    )
    assert step(member, some(t={0, 1}, u={0})) == Step(S.STABLE, 5, some(t={0, 1}, u={0}), {})


def test_member_gives_up_first_and_stays_in_epoch() -> None:
    member = ConsumerMember("m", epoch=4, assigned=some(t={0, 1}))
    assert step(member, some(t={1, 2})) == Step(S.UNREVOKED_PARTITIONS, 4, some(t={1}), some(t={0}))


def test_member_that_confirms_revocation_gets_its_target() -> None:
    member = ConsumerMember("m", epoch=4, assigned=some(t={0, 1}))
    assert step(member, some(t={1, 2}), owned=told(t={1})) == Step(S.STABLE, 5, some(t={1, 2}), {})


@pytest.mark.parametrize("owned", [None, told(t={0, 1}), told(t={0})])
def test_member_without_revocation_is_unchanged(owned: TopicPartitions | None) -> None:
    member = ConsumerMember("m", epoch=4, state=S.UNREVOKED_PARTITIONS, assigned=some(t={1}), revoking=some(t={0}))
    assert step(member, some(t={1, 2}), owned=owned) is None


@pytest.mark.parametrize("owned", [(), told(t={1}), told(u={0}), told(t={1, 7})])
def test_member_after_revocation_goes_to_newest_target(owned: TopicPartitions) -> None:
    member = ConsumerMember("m", epoch=4, state=S.UNREVOKED_PARTITIONS, assigned=some(t={1}), revoking=some(t={0}))
    assert step(member, some(t={1, 2}), epoch=9, owned=owned) == Step(S.STABLE, 9, some(t={1, 2}), {})


def test_member_gets_back_revoked_partitions_at_once() -> None:
    member = ConsumerMember("m", epoch=4, state=S.UNREVOKED_PARTITIONS, assigned=some(t={1}), revoking=some(t={0}))
    assert step(member, some(t={0, 1}), owned=told(t={1})) == Step(S.STABLE, 5, some(t={0, 1}), {})


def test_unsubscribed_topic_is_not_part_of_target() -> None:
    member = ConsumerMember("m", epoch=4, assigned=some(t={0}, u={0}))
    assert step(member, some(t={0}, u={0}), subscribed=(T,)) == Step(
        S.UNREVOKED_PARTITIONS, 4, some(t={0}), some(u={0})
    )


def test_new_subscription_removes_topics_before_the_next_target() -> None:
    member = ConsumerMember("m", epoch=5, assigned=some(t={0}, u={0}))
    result = step(member, some(t={0}, u={0}), subscribed=(T,), is_subscription_new=True)
    assert result == Step(S.UNREVOKED_PARTITIONS, 5, some(t={0}), some(u={0}))
    result = step(member, some(t={0}, u={0}), subscribed=(T,), is_subscription_new=True, owned=told(t={0}))
    assert result == Step(S.STABLE, 5, some(t={0}), {})
    assert step(member, some(t={0}, u={0}), is_subscription_new=True) is None


def test_new_subscription_extends_the_revocation() -> None:
    member = ConsumerMember(
        "m", epoch=4, state=S.UNREVOKED_PARTITIONS, assigned=some(u={0, 1}), revoking=some(t={0}, u={2})
    )
    result = step(member, some(u={0, 1}), subscribed=(T,), is_subscription_new=True)
    assert result == Step(S.UNREVOKED_PARTITIONS, 4, {}, some(t={0}, u={0, 1, 2}))


def test_member_in_unknown_state_gives_up_non_targets() -> None:
    member = ConsumerMember("m", epoch=4, state=S.UNKNOWN, assigned=some(t={0}))
    assert step(member, some(u={0})) == Step(S.UNREVOKED_PARTITIONS, 4, {}, some(t={0}))
    assert step(member, some(t={0})) == Step(S.STABLE, 5, some(t={0}), {})
