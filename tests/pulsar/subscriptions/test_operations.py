"""What operators do: skip, expire, clear, reset, peek."""

from typing import Any

import pytest

from broker.pulsar.dispatch.dispatcher import SubType
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions import operations
from tests.pulsar.entries.messages import message
from tests.pulsar.subscriptions.stage import Stage
from tests.storage.helpers import NOW_MS


def answer(stage: Stage, call: Any, *args: Any) -> Any:
    answers: list[Any] = []
    call(*args, answers.append)
    stage.run()
    (one,) = answers
    return one


def test_skip_counts_what_is_not_acknowledged(stage: Stage) -> None:
    stage.produce(10)
    member = stage.client().subscribe(kind=SubType.Shared)
    member.flow(100)
    stage.run()
    member.ack(1, 2, 5)
    assert None is answer(stage, operations.skip, member.subscription, 3)  # this skips 0, 3 and 4
    assert 6 == member.subscription.cursor.acknowledged_before
    assert 4 == member.subscription.backlog
    assert 4 == member.connected.consumer.unacked
    assert None is answer(stage, operations.skip, member.subscription, 1_000_000)
    assert 0 == member.subscription.backlog


def test_skip_takes_whole_batches(stage: Stage) -> None:
    stage.produce_batch(5)
    stage.produce_batch(5)
    subscription = stage.client().subscribe().subscription
    answer(stage, operations.skip, subscription, 2)
    assert 5 == subscription.cursor.acknowledged_before
    answer(stage, operations.skip, subscription, 0)
    assert 5 == subscription.cursor.acknowledged_before


def test_clear_leaves_only_what_comes_later(stage: Stage) -> None:
    stage.produce(3)
    member = stage.client().subscribe()
    operations.clear(member.subscription)
    stage.produce(1)
    member.flow(10)
    stage.run()
    assert [3] == member.offsets()


def test_old_messages_expire(stage: Stage) -> None:
    for age in (50_000, 40_000, 1_000, 0):
        from tests.pulsar.entries.messages import append_entry

        append_entry(stage.log, message(b"m", publish_time=NOW_MS - age), timestamp=NOW_MS - age)
    subscription = stage.client().subscribe().subscription
    assert 2 == operations.expire(subscription, NOW_MS - 30_000)
    assert 0 == operations.expire(subscription, NOW_MS - 30_000)
    assert (2, 2, 2) == (subscription.cursor.acknowledged_before, subscription.backlog, subscription.expired)


def test_reset_to_time_starts_at_first_message(stage: Stage) -> None:
    from tests.pulsar.entries.messages import append_entry

    for number in range(5):
        append_entry(stage.log, message(b"m"), timestamp=NOW_MS + number * 10)
    client = stage.client()
    member = client.subscribe()
    operations.clear(member.subscription)
    assert None is answer(stage, operations.reset_to_time, member.subscription, NOW_MS + 15)
    assert 2 == member.subscription.cursor.acknowledged_before
    assert not client.state.consumers


def test_reset_into_a_batch_starts_at_the_batch(stage: Stage) -> None:
    stage.produce_batch(5)
    stage.produce_batch(5)
    subscription = stage.client().subscribe().subscription
    assert None is answer(stage, operations.reset_to_offset, subscription, 7)
    assert 5 == subscription.cursor.acknowledged_before


def test_peek_looks_at_the_backlog_without_changing_it(stage: Stage) -> None:
    stage.produce(250)
    member = stage.client().subscribe()
    member.flow(1000)
    stage.run()
    member.ack(0, 2, *range(10, 150))
    for position, offset in ((1, 1), (2, 3), (8, 9), (9, 150), (108, 249)):
        entry = answer(stage, operations.peek, member.subscription, position)
        assert isinstance(entry, Entry) and offset == entry.offset
    assert None is answer(stage, operations.peek, member.subscription, 109)
    assert 108 == member.subscription.backlog


def test_analysis_counts_what_is_not_acknowledged(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.produce(250)
    stage.produce_batch(5)
    member = stage.client().subscribe(kind=SubType.Shared)
    member.flow(1000)
    stage.run()
    member.ack(0, 2, *range(10, 150))
    found = answer(stage, operations.analyze, member.subscription, 0)
    assert operations.BacklogFound(109, 113, 1, 250, False) == found
    assert operations.BacklogFound(31, 35, 220, 250, False) == answer(
        stage, operations.analyze, member.subscription, 220
    )
    monkeypatch.setattr(operations, "ANALYZED_MAX", 20)
    found = answer(stage, operations.analyze, member.subscription, 0)
    assert (20, 20, True) == (found.entries, found.messages, found.aborted)
    operations.clear(member.subscription)
    assert operations.BacklogFound() == answer(stage, operations.analyze, member.subscription, 0)


def test_a_look_reads_so_many_bytes_at_most(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.produce(250)
    subscription = stage.client().subscribe().subscription
    monkeypatch.setattr(operations, "_SCAN_MAX", 100)
    found = answer(stage, operations.analyze, subscription, 0)
    assert (100, True) == (found.entries, found.aborted)  # these are the entries of one read
    assert isinstance(answer(stage, operations.peek, subscription, 100), Entry)
    assert isinstance(answer(stage, operations.peek, subscription, 101), operations.TooFar)


def test_figures(stage: Stage) -> None:
    stage.produce(5)
    member = stage.client().subscribe(kind=SubType.Shared, properties={"a": "b"})
    member.flow(4)
    stage.run()
    member.ack(1)
    found = operations.figures(member.subscription)
    assert ("Shared", 4, 3, 1, {"a": "b"}) == (found.type, found.backlog, found.unacked, found.ranges, found.properties)
    (consumer,) = found.consumers
    assert ("c0", 0, 3, 4) == (consumer.name, consumer.permits, consumer.unacked, consumer.messages_out)
    member.leave()
    assert () == tuple(operations.figures(member.subscription).consumers)


def test_the_active_consumer_is_named(stage: Stage) -> None:
    member = stage.client().subscribe()
    assert "c0" == operations.figures(member.subscription).active_consumer
