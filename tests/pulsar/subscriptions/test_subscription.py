"""A subscription between its dispatcher, the log, the connections and the catalogue, step by step."""

import pytest

from broker.pulsar.dispatch.dispatcher import KeySharedPolicy, SubType
from broker.pulsar.refusals import ConsumerBusy
from broker.pulsar.subscriptions.cursor import Cursor
from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.pulsar.entries.messages import message
from tests.pulsar.subscriptions.stage import LEDGER, Stage

KINDS = [SubType.Exclusive, SubType.Shared]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_come_as_there_are_permits(stage: Stage, kind: int) -> None:
    stage.produce(10)
    member = stage.client().subscribe(kind=kind)
    assert [] == member.offsets()
    member.flow(3)
    stage.run()
    assert [0, 1, 2] == member.offsets()
    member.flow(20)
    stage.run()
    assert list(range(3, 10)) == member.offsets()
    stage.produce(2)
    assert [10, 11] == member.offsets()  # the appending thread has delivered them


def test_entry_between_end_check_and_wait_is_seen(stage: Stage) -> None:
    member = stage.client().subscribe()
    tail = stage.topic.tail
    add = tail.add

    def append_before_it_waits(waiting: object) -> None:
        tail.add = add  # type: ignore[method-assign]
        stage.append(message(b"m"))
        add(waiting)  # type: ignore[arg-type]

    tail.add = append_before_it_waits  # type: ignore[method-assign,assignment]
    member.flow(10)
    stage.run()
    assert [0] == member.offsets()


def test_waiting_subscription_resumes_for_replacing_consumer(stage: Stage) -> None:
    client = stage.client()
    member = client.subscribe()
    member.flow(10)
    client.disconnect()
    stage.produce(1)
    other = stage.client().subscribe()
    stage.produce(1)
    assert [] == other.offsets()
    other.flow(10)
    stage.run()
    assert [0, 1] == other.offsets()


def test_many_waiting_subscriptions_are_served_off_appending_thread(stage: Stage) -> None:
    members = [stage.client().subscribe(f"s{number}") for number in range(40)]
    for member in members:
        member.flow(10)
    stage.produce(1)
    assert [] == [one for member in members for one in member.offsets()]
    stage.run()
    assert [[0]] * 40 == [member.offsets() for member in members]


def test_what_others_append_to_the_log_is_noticed(stage: Stage) -> None:
    from tests.pulsar.entries.messages import append_entry

    member = stage.client().subscribe()
    member.flow(10)
    append_entry(stage.log, message(b"m"))  # as the end of a transaction or a producer of Kafka's appends
    stage.run()
    assert [0] == member.offsets()
    append_entry(stage.log, message(b"m"))
    stage.run()
    assert [1] == member.offsets()


def test_log_watch_ends_without_waiting_subscriptions(stage: Stage) -> None:
    client = stage.client()
    client.subscribe().flow(10)
    client.disconnect()
    assert stage.log.watchers.callbacks
    from tests.pulsar.entries.messages import append_entry

    append_entry(stage.log, message(b"m"))
    assert not stage.log.watchers.callbacks


def test_a_long_backlog_is_read_in_turns(stage: Stage) -> None:
    stage.produce(1500)
    member = stage.client().subscribe()
    member.flow(1500)
    assert 400 == len(member.offsets())  # these are four batches; the waker's thread reads the rest
    stage.run()
    assert 1100 == len(member.offsets())


def test_redelivered_entries_are_read_in_turns(stage: Stage) -> None:
    stage.produce(1000)
    first = stage.client().subscribe(kind=SubType.Shared)
    first.flow(1000)
    stage.run()
    assert 1000 == len(first.offsets())
    second = stage.client().subscribe(kind=SubType.Shared)
    first.leave()
    second.flow(1000)
    assert len(second.offsets()) <= 400  # the waker's thread reads the rest
    stage.run()
    assert second.connected.messages_out == 1000


def test_consumer_not_reading_socket_gets_one_slice(stage: Stage) -> None:
    stage.produce(100, size=20_000)
    client = stage.client()
    member = client.subscribe()
    client.link.reads = False
    member.flow(1000)
    stage.run()
    assert 100 == len(member.offsets())  # this is a batch, 2 MB
    stage.produce(100, size=20_000)
    stage.run()
    assert [] == member.offsets()
    assert member.connected.paused and not client.link.writable
    client.drained()
    stage.run()
    assert 100 == len(member.offsets())


def test_pause_ends_if_output_drained_before_processor_noticed(stage: Stage) -> None:
    stage.produce(50, size=20_000)
    client = stage.client()
    client.outbox.later = True
    member = client.subscribe()
    member.flow(1000)
    assert member.connected.paused
    client.outbox.run()  # the queue is empty when the processor is asked to report that
    assert client.link.writable
    stage.run()
    client.outbox.run()
    assert not member.connected.paused
    stage.produce(1)
    client.outbox.run()
    assert 51 == len(member.offsets())


def test_consumers_of_stalled_connection_share_memory_bound(stage: Stage) -> None:
    client = stage.client()
    members = [client.subscribe(f"s{number}") for number in range(30)]
    for member in members:
        member.flow(1000)
    client.link.reads = client.link.writable = False
    client.link.bytes_queued = 1
    stage.produce(50)
    stage.run()
    assert [] == client.link.frames
    client.drained()
    stage.run()
    assert [50] * 30 == [len(member.offsets()) for member in members]


def test_read_completing_after_consumer_left_is_harmless(stage: Stage) -> None:
    """Pulsar's #26174, #6966: whatever is in flight when consumers come and go, the last one is served."""
    stage.produce(5)
    stage.cache.max_bytes = 0
    stage.start()
    for _ in range(3):
        client = stage.client()
        client.subscribe().flow(100)
        assert stage.subscriptions.find(stage.topic, "s") is not None
        client.disconnect()
    member = stage.client().subscribe()
    member.flow(100)
    stage.run()
    assert [0, 1, 2, 3, 4] == member.offsets()
    stage.produce(1)
    stage.run()
    assert [5] == member.offsets()


def test_redelivery_during_read_neither_loses_nor_repeats(stage: Stage) -> None:
    stage.produce(5)
    stage._cache_bytes = 0
    stage.start()
    member = stage.client().subscribe()
    member.flow(3)
    stage.run()
    assert [0, 1, 2] == member.offsets()
    member.flow(100)  # a read of 3 and 4 is under way
    member.subscription.redeliver(member.connected, None, None)
    stage.run()
    assert [0, 1, 2, 3, 4] == member.offsets()
    stage.produce(1)
    stage.run()
    assert [5] == member.offsets()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_acknowledged_does_not_come_again(stage: Stage, kind: int) -> None:
    stage.produce(6)
    client = stage.client()
    member = client.subscribe(kind=kind)
    member.flow(10)
    stage.run()
    assert [0, 1, 2, 3, 4, 5] == member.offsets()
    assert None is member.ack(1, 3, 4)
    client.disconnect()
    other = stage.client().subscribe(kind=kind)
    other.flow(10)
    stage.run()
    assert [0, 2, 5] == other.offsets()


def test_retention_moves_the_cursor(stage: Stage) -> None:
    stage.produce(10)
    client = stage.client()
    member = client.subscribe()
    member.flow(2)
    stage.run()
    assert [0, 1] == member.offsets()
    stage.log.trimming.delete_records(6)
    member.flow(10)
    stage.run()
    assert 6 == member.subscription.cursor.acknowledged_before
    assert [6, 7, 8, 9] == [one for one in member.offsets() if one >= 6]
    assert 4 == member.subscription.backlog


def test_subscription_of_deleted_messages_waits_for_new_ones(stage: Stage) -> None:
    stage.produce(10)
    stage.log.trimming.delete_records(10)
    member = stage.client().subscribe()
    member.flow(10)
    stage.run()
    assert [] == member.offsets()
    stage.produce(1)
    stage.run()
    assert [10] == member.offsets()
    assert 1 == member.subscription.backlog


def test_unreadable_log_is_read_again(stage: Stage) -> None:
    stage.produce(3)
    stage._cache_bytes = 0
    stage.start()
    member = stage.client().subscribe()
    reader = stage.topic.reader
    read_later = reader.read_later

    class Failing:
        def __getattr__(self, name: str) -> object:
            return getattr(reader, name)

        def read_later(self, offset: int, entries: int, size: int, done: object, wanted: object) -> None:
            from broker.errors import StorageError

            done(StorageError("disk"))  # type: ignore[operator]

    stage.topic.reader = Failing()  # type: ignore[assignment]
    assert read_later is not None
    member.subscription.lock = _Reentrant()  # type: ignore[assignment]
    member.flow(10)
    stage.run()
    assert [] == member.offsets()
    stage.topic.reader = reader
    stage.wait(60_000)
    assert [0, 1, 2] == member.offsets()


@pytest.mark.parametrize("durable", [True, False])
def test_consumer_churn_leaves_one_pending_read(stage: Stage, durable: bool) -> None:
    stage.produce(3)
    stage._cache_bytes = 0
    stage.start()
    read: list[int] = []
    scan = stage.topic.reader._scan

    class Counting:
        def read(self, offset: int, *rest: int) -> object:
            read.append(offset)
            return scan.read(offset, *rest)

    stage.topic.reader._scan = Counting()  # type: ignore[assignment]
    for _ in range(100):
        member = stage.client().subscribe(durable=durable)
        member.flow(10)
        member.leave()
    last = stage.client().subscribe(durable=durable)
    last.flow(10)
    stage.run()
    assert [0, 1, 2] == last.offsets()
    assert 1 == len(read)  # the other reads are no longer wanted


@pytest.mark.parametrize("kinds", [(SubType.Shared, SubType.Key_Shared), (SubType.Key_Shared, SubType.Shared)])
def test_read_for_previous_consumer_type_is_discarded(stage: Stage, kinds: tuple[int, int]) -> None:
    """The dispatchers count their reads from the same number."""
    stage.produce(6)
    stage._cache_bytes = 0
    stage.start()
    policy = KeySharedPolicy(False, False)
    before = stage.client().subscribe(kind=kinds[0], start=4, policy=policy)
    before.flow(10)
    before.leave()
    before.subscription.reset(0)
    after = stage.client().subscribe(kind=kinds[1], policy=policy)
    after.flow(10)
    stage.run()
    assert list(range(6)) == after.offsets()


class _Reentrant:
    """The failing reader above completes on the caller's stack."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_seek_closes_the_consumers_and_starts_over(stage: Stage) -> None:
    stage.produce(5)
    client = stage.client()
    member = client.subscribe()
    member.flow(10)
    stage.run()
    member.ack(0, 1, 2, 3, 4)
    subscription = member.subscription
    subscription.reset(2)
    assert [BaseCommand.Type.CLOSE_CONSUMER] == [kind for kind, _ in client.commands()]
    assert not client.state.consumers
    member.offsets()
    again = client.subscribe()
    again.flow(10)
    stage.run()
    assert [2, 3, 4] == again.offsets()
    assert 3 == subscription.backlog


def test_reader_position_is_kept_briefly_after_seek(stage: Stage) -> None:
    stage.produce(5)
    client = stage.client()
    member = client.subscribe(durable=False)
    member.subscription.reset(3)
    again = client.subscribe(durable=False, start=None)
    again.flow(10)
    stage.run()
    assert [3, 4] == again.offsets()
    stage.wait(100_000)
    assert {"s"} == set(stage.topic.subscriptions)
    again.subscription.reset(0)
    stage.wait(100_000)
    assert {} == stage.topic.subscriptions


def test_nondurable_subscription_ends_with_its_last_consumer(stage: Stage) -> None:
    client = stage.client()
    client.subscribe(durable=False)
    client.disconnect()
    stage.wait(10_000)
    assert {} == stage.topic.subscriptions
    assert [] == stage.stored


def test_unloading_closes_consumers_and_keeps_acknowledgements(stage: Stage) -> None:
    stage.produce(5)
    client = stage.client()
    member = client.subscribe()
    member.flow(10)
    stage.run()
    member.ack(0, 1, 4)
    member.subscription.close()
    assert [BaseCommand.Type.CLOSE_CONSUMER] == [kind for kind, _ in client.commands()]
    with pytest.raises(Exception, match="closed"):
        client.subscribe()
    stage.topic = stage.load(stage.log)
    again = stage.client().subscribe(start=None)
    again.flow(10)
    stage.run()
    assert [2, 3] == again.offsets()


def test_cpp_clients_are_not_told_end_of_topic(stage: Stage) -> None:
    """They would close the connection."""
    stage.produce(1)
    clients = [stage.client("Pulsar-CPP-v4.2.0"), stage.client("Pulsar-Java-v4")]
    members = [client.subscribe(f"s{number}") for number, client in enumerate(clients)]
    for member in members:
        member.flow(10)
    stage.run()
    from broker.pulsar.topics.topic import TopicRecord

    stage.topic.record = TopicRecord(LEDGER, terminated=True)
    for member in members:
        member.ack(0)
    assert [] == clients[0].commands()
    assert [BaseCommand.Type.REACHED_END_OF_TOPIC] == [kind for kind, _ in clients[1].commands()]


def test_failover_tells_who_is_served_and_moves_on(stage: Stage) -> None:
    stage.produce(3)
    first, second = stage.client(), stage.client()
    members = [
        first.subscribe(kind=SubType.Failover, consumer_name="a"),
        second.subscribe(kind=SubType.Failover, consumer_name="b"),
    ]
    for member in members:
        member.flow(10)
    stage.wait(1_000)
    told = {name: [one.is_active for _, one in client.commands()] for name, client in (("a", first), ("b", second))}
    served = [member.offsets() for member in members]
    assert [[], [0, 1, 2]] == sorted(served)
    active = 0 if served[0] else 1
    assert [True, False] == [told["ab"[active]][-1], told["ba"[active]][-1]]
    (first, second)[active].disconnect()
    stage.wait(1_000)
    assert [0, 1, 2] == members[1 - active].offsets()
    assert True is (first, second)[1 - active].commands()[-1][1].is_active


def test_a_second_consumer_of_another_type_is_refused(stage: Stage) -> None:
    client = stage.client()
    client.subscribe(kind=SubType.Shared)
    with pytest.raises(ConsumerBusy):
        client.subscribe(kind=SubType.Exclusive)
    assert 1 == len(client.state.consumers)


def test_the_type_may_change_when_nobody_is_connected(stage: Stage) -> None:
    stage.produce(3)
    member = stage.client().subscribe(kind=SubType.Shared)
    member.flow(10)
    stage.run()
    member.ack(1)
    member.leave()
    again = stage.client().subscribe(kind=SubType.Exclusive)
    again.flow(10)
    stage.run()
    assert [0, 2] == again.offsets()


def test_a_failed_subscribe_leaves_nothing_behind(stage: Stage) -> None:
    client = stage.client()
    with pytest.raises(Exception, match="no subscriptions of the type"):
        client.subscribe(kind=17)
    assert {} == stage.topic.subscriptions
    client.subscribe()


def test_the_broker_skips_what_consumers_never_see(stage: Stage) -> None:
    from tests.pulsar.entries.messages import append_entry

    append_entry(stage.log, message(b"m", marker_type=1))
    stage.produce(1)
    member = stage.client().subscribe(kind=SubType.Shared)
    member.flow(10)
    stage.run()
    assert [1] == member.offsets()
    assert 1 == member.subscription.cursor.acknowledged_before


def test_messages_carry_epoch_of_consumer(stage: Stage) -> None:
    stage.produce(2)
    client = stage.client()
    member = client.subscribe(epoch=3)
    member.flow(1)
    stage.run()
    (first,) = client.messages()
    assert 3 == first.consumer_epoch
    member.subscription.redeliver(member.connected, None, 4)
    member.flow(10)
    stage.run()
    assert [(0, 4), (1, 4)] == [(one.message_id.entryId, one.consumer_epoch) for one in client.messages()]


def test_an_idle_subscription_is_small(stage: Stage) -> None:
    import sys
    import tracemalloc

    from broker.pulsar.subscriptions.subscription import Subscription

    subscriptions = stage.subscriptions
    names = [f"subscription-{number}" for number in range(2000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    with stage.topic.lock:
        for name in names:
            subscriptions.make(stage.topic, name, 0)
    each = (tracemalloc.get_traced_memory()[0] - before) / len(names)
    tracemalloc.stop()
    assert sys.getsizeof(Cursor()) and isinstance(subscriptions.find(stage.topic, names[0]), Subscription)
    assert each < 2000


def test_timer_of_one_consumer_fires_for_next(stage: Stage) -> None:
    for _ in range(3):
        stage.append(message(b"m", deliver_at_time=stage.clock.time_ms() + 3_000))
    client = stage.client()
    member = client.subscribe(kind=SubType.Shared)
    member.flow(10)
    stage.run()
    stage.wait(500)
    client.disconnect()
    stage.wait(500)
    again = stage.client().subscribe(kind=SubType.Shared)
    again.flow(10)
    stage.run()
    assert [] == again.offsets()
    for _ in range(10):
        stage.wait(1_000)
    assert [0, 1, 2] == again.offsets()


def test_acknowledgements_become_durable_soon_after_consumer_left(stage: Stage) -> None:
    stage.produce(3)
    client = stage.client()
    member = client.subscribe()
    member.flow(10)
    stage.run()
    member.ack(0, 1)
    client.disconnect()
    stage.run()
    stage.start()
    again = stage.client().subscribe(start=None)
    again.flow(10)
    stage.run()
    assert [2] == again.offsets()


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared])
def test_stalled_subscription_keeps_nothing_in_cache(stage: Stage, kind: int) -> None:
    cached = stage.topic.reader._cached
    client, other = stage.client(), stage.client()
    member = client.subscribe("slow", kind=kind)
    other.subscribe("other", kind=kind)
    assert 2 == cached.cursors
    client.link.reads = False
    member.flow(1000)
    stage.produce(60, size=20_000)
    stage.run()
    assert member.connected.paused and 1 == cached.cursors
    stage.produce(1)
    client.drained()
    stage.run()
    assert 2 == cached.cursors and 61 == len(member.offsets())
    client.link.reads = False
    stage.produce(60, size=20_000)
    assert member.connected.paused and 1 == cached.cursors
    member.leave()
    assert 1 == cached.cursors
    again = client.subscribe("slow", kind=kind)
    assert 2 == cached.cursors
    again.leave()
    assert 1 == cached.cursors


@pytest.mark.parametrize("asks_for_all", [True, False])
@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared])
def test_entries_awaiting_redelivery_stay_in_cache(stage: Stage, kind: int, asks_for_all: bool) -> None:
    member = stage.client().subscribe(kind=kind)
    member.flow(1)
    stage.produce()
    assert [0] == member.offsets()
    stage.produce()
    member.subscription.redeliver(member.connected, None if asks_for_all else [0], None)
    stage.wait(1500)
    assert stage.topic.reader._cached.get(0) is not None
    stage.wait(10_000)
    assert stage.topic.reader._cached.get(0) is None
    member.flow(2)
    stage.run()
    assert [0, 1] == member.offsets()


def test_departed_consumers_entries_stay_cached_for_others(stage: Stage) -> None:
    leaves = stage.client().subscribe(kind=SubType.Shared)
    stays = stage.client().subscribe(kind=SubType.Shared)
    leaves.flow(1)
    stage.produce()
    assert [0] == leaves.offsets()
    leaves.leave()
    stage.wait(1500)
    assert stage.topic.reader._cached.get(0) is not None
    stays.flow(1)
    stage.run()
    assert [0] == stays.offsets()
