"""Joining and making subscriptions: who is refused, and that a refusal leaves nothing behind."""

import pytest

from broker.pulsar.dispatch.dispatcher import DispatchSettings, KeySharedPolicy, SubType
from broker.pulsar.dispatch.rate_limit import DispatchRate
from broker.pulsar.refusals import ConsumerAssignError, ConsumerBusy, NotAllowed, ServiceNotReady
from broker.pulsar.subscriptions.subscriptions import Bounds, Busy, Missing
from tests.pulsar.subscriptions.stage import Stage


def test_an_exclusive_subscription_has_one_consumer(stage: Stage) -> None:
    holder = stage.client().subscribe()
    with pytest.raises(Busy) as refused:
        stage.client().subscribe()
    assert holder.connected is refused.value.holder
    holder.leave()
    stage.client().subscribe()


def test_a_topic_has_so_many_subscriptions(stage: Stage) -> None:
    stage.limits.of_all = Bounds(subscriptions_of_topic=2)
    for name in "ab":
        stage.client().subscribe(name)
    with pytest.raises(NotAllowed):
        stage.client().subscribe("c")
    assert ["a", "b"] == list(stage.topic.subscriptions)


def test_consumers_are_limited_per_subscription_and_topic(stage: Stage) -> None:
    stage.limits.of_all = Bounds(consumers_of_subscription=2, consumers_of_topic=3)
    for _ in range(2):
        stage.client().subscribe("a", kind=SubType.Shared)
    with pytest.raises(ConsumerBusy, match="Subscription reached"):
        stage.client().subscribe("a", kind=SubType.Shared)
    stage.client().subscribe("b", kind=SubType.Shared)
    with pytest.raises(ConsumerBusy, match="Topic reached"):
        stage.client().subscribe("c", kind=SubType.Shared)
    assert ["a", "b"] == list(stage.topic.subscriptions)


def test_a_name_is_durable_or_not(stage: Stage) -> None:
    stage.client().subscribe("a", kind=SubType.Shared)
    with pytest.raises(NotAllowed):
        stage.client().subscribe("a", kind=SubType.Shared, durable=False)


def test_consumers_agree_on_how_keys_are_shared(stage: Stage) -> None:
    kind = SubType.Key_Shared
    client = stage.client()
    client.subscribe(kind=kind, policy=KeySharedPolicy())
    with pytest.raises(ConsumerBusy, match="policy"):
        client.subscribe(kind=kind, policy=KeySharedPolicy(out_of_order=True))
    client.disconnect()
    client = stage.client()
    client.subscribe(kind=kind, policy=KeySharedPolicy(sticky=True), ranges=((0, 100),))
    with pytest.raises(ConsumerAssignError):
        client.subscribe(kind=kind, policy=KeySharedPolicy(sticky=True), ranges=((100, 200),))
    client.subscribe(kind=kind, policy=KeySharedPolicy(sticky=True), ranges=((101, 200),))


def test_deleted_subscription_needs_start_to_be_recreated(stage: Stage) -> None:
    with pytest.raises(Missing):
        stage.client().subscribe(start=None)
    assert {} == stage.topic.subscriptions


def test_topic_being_unloaded_accepts_no_consumers(stage: Stage) -> None:
    stage.topic.closed = True
    with pytest.raises(ServiceNotReady):
        stage.client().subscribe()
    with pytest.raises(ServiceNotReady):
        stage.client().subscribe(start=None)


def test_a_subscription_can_be_made_without_a_consumer(stage: Stage) -> None:
    stage.produce(2)
    answers: list[object] = []
    stage.subscriptions.create(stage.topic, "s", 1, answers.append, {"a": "b"})
    stage.subscriptions.create(stage.topic, "s", 0, answers.append)
    stage.run()
    assert ([None, None], ["s"]) == (answers, stage.stored)
    member = stage.client().subscribe(start=None)
    member.flow(10)
    stage.run()
    assert [1] == member.offsets()
    assert {"a": "b"} == member.subscription.properties


def test_the_type_stays_while_somebody_is_connected(stage: Stage) -> None:
    stage.produce(4)
    first = stage.client().subscribe(kind=SubType.Shared)
    first.flow(2)
    stage.run()
    assert [0, 1] == first.offsets()
    first.leave()
    second = stage.client().subscribe(kind=SubType.Shared)
    second.flow(10)
    stage.run()
    assert [0, 1, 2, 3] == second.offsets()


def test_subscriptions_may_share_a_rate(stage: Stage) -> None:
    stage.produce(20)
    rate = DispatchRate()
    rate.set(4)
    stage.limits.rates = [rate]
    stage.limits.dispatch = DispatchSettings(read_entries_max=2)
    members = [stage.client().subscribe(name) for name in "ab"]
    for member in members:
        member.flow(100)
    stage.run()
    assert 4 <= sum(len(member.offsets()) for member in members) <= 6
    rate.set(0)
    stage.wait(2_000)
    assert all(20 == member.connected.messages_out for member in members)


def test_consumers_that_never_acknowledge_are_blocked(stage: Stage) -> None:
    stage.produce(30)
    stage.limits.dispatch = DispatchSettings(unacked_max_per_consumer=10, read_entries_max=5)
    member = stage.client().subscribe(kind=SubType.Shared)
    member.flow(2**31 - 1)
    stage.run()
    assert list(range(10)) == member.offsets()
    assert member.connected.consumer.blocked
    member.ack(*range(10))
    stage.run()
    assert list(range(10, 20)) == member.offsets()


def test_readers_are_not_blocked_by_unacknowledged_messages(stage: Stage) -> None:
    stage.produce(30)
    stage.limits.dispatch = DispatchSettings(unacked_max_per_consumer=10)
    member = stage.client().subscribe(kind=SubType.Shared, durable=False)
    member.flow(100)
    stage.run()
    assert list(range(30)) == member.offsets()


def test_excess_consumers_of_closed_connection_leave_on_waker(stage: Stage) -> None:
    stage.produce(1)
    member = stage.client().subscribe()
    member.flow(1)
    member.connected.disconnected_later()
    assert member.subscription.has_consumers
    stage.run()
    assert not member.subscription.has_consumers
