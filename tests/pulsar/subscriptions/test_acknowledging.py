"""Acknowledgements: one by one, parts of batches, cumulative, of what is not known, and hostile ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.delivery.acknowledged import TooManyHoles
from broker.errors import StorageError
from broker.pulsar.dispatch.dispatcher import SubType
from broker.pulsar.refusals import ConsumerNotFound
from tests.pulsar.subscriptions.stage import LEDGER, Member, Stage

FULL = 2**63 - 1


def received(stage: Stage, kind: int = SubType.Exclusive, permits: int = 1000) -> Member:
    member = stage.client().subscribe(kind=kind)
    member.flow(permits)
    stage.run()
    member.offsets()
    return member


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared])
def test_redelivered_batch_marks_its_unacknowledged_messages(stage: Stage, kind: int) -> None:
    stage.produce_batch(5)
    member = received(stage, kind)
    assert None is member.ack((0, (0b11001,)))  # 1 and 2 are acknowledged
    assert 3 == member.subscription.backlog
    assert None is member.ack((0, (0b01111,)))  # 4 is acknowledged, too
    assert 2 == member.subscription.backlog
    member.leave()
    again = stage.client().subscribe(kind=kind)
    again.flow(10)
    stage.run()
    (message,) = again.client.messages()
    assert [0b01001] == list(message.ack_set)
    assert None is again.ack((0, (0b00000,)))
    assert 0 == again.subscription.backlog
    assert 5 == again.subscription.cursor.acknowledged_before


def test_a_batch_is_acknowledged_by_its_entry(stage: Stage) -> None:
    stage.produce_batch(5)
    stage.produce_batch(3)
    member = received(stage)
    member.ack(5)
    assert 5 == member.subscription.backlog
    member.ack(0)
    assert 8 == member.subscription.cursor.acknowledged_before


@pytest.mark.parametrize("words", [(), (0,), (0, 0, 0), (0,) * 1000])
def test_an_empty_set_is_the_whole_batch(stage: Stage, words: tuple[int, ...]) -> None:
    stage.produce_batch(5)
    member = received(stage)
    member.ack((0, words))
    assert 5 == member.subscription.cursor.acknowledged_before


@pytest.mark.parametrize("words", [(-1,) * 16384, (FULL,), (1 << 62,)])
def test_ack_set_of_wrong_size_acknowledges_existing_messages(stage: Stage, words: tuple[int, ...]) -> None:
    stage.produce_batch(5)
    stage.produce(1)
    member = received(stage)
    member.ack((0, words))
    assert member.subscription.backlog in (1, 6)
    assert member.subscription.cursor.acknowledged_before in (0, 5)


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover])
def test_cumulative_acknowledgements_take_everything_before(stage: Stage, kind: int) -> None:
    stage.produce(3)
    stage.produce_batch(4)
    stage.produce(2)
    member = stage.client().subscribe(kind=kind)
    member.flow(100)
    stage.wait(1_000)
    assert None is member.ack(1, cumulative=True)
    assert 2 == member.subscription.cursor.acknowledged_before
    assert None is member.ack(3, cumulative=True)
    assert 7 == member.subscription.cursor.acknowledged_before
    assert None is member.ack(0, cumulative=True)  # an earlier id changes nothing
    assert 7 == member.subscription.cursor.acknowledged_before


def test_a_cumulative_acknowledgement_within_a_batch(stage: Stage) -> None:
    stage.produce(2)
    stage.produce_batch(4)
    member = received(stage)
    member.ack((2, (0b1100,)), cumulative=True)
    cursor = member.subscription.cursor
    assert (2, [0b1100]) == (cursor.acknowledged_before, list(cursor.ack_set(2) or ()))


@pytest.mark.parametrize("cached", [True, False])
def test_entry_before_batch_is_acknowledged_by_any_offset(stage: Stage, cached: bool) -> None:
    """It computes the entry's id less one, which lies within the batch before."""
    stage.produce_batch(4)
    stage.produce_batch(4)
    if not cached:
        stage._cache_bytes = 0
        stage.start()
    member = received(stage)
    answer = member.ack(3, cumulative=True)
    stage.run()
    assert answer in (None, "waiting")
    assert 4 == member.subscription.cursor.acknowledged_before
    member.ack(6, cumulative=True)  # no client computes this id; it means the batch that covers the offset
    stage.run()
    assert 8 == member.subscription.cursor.acknowledged_before


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared])
def test_entries_of_before_a_restart_are_looked_up(stage: Stage, kind: int, cached: bool) -> None:
    stage.produce_batch(5)
    stage.produce(1)
    stage.produce_batch(3)
    if not cached:
        stage._cache_bytes = 0
        stage.start()
    member = stage.client().subscribe(kind=kind)  # no entry has been delivered to it
    answer = member.ack(0, 5, (6, (0b100,)), 7, 4)
    if not cached:
        assert "waiting" == answer
    stage.run()
    cursor = member.subscription.cursor
    assert (6, [0b100]) == (cursor.acknowledged_before, list(cursor.ack_set(6) or ()))


def test_a_cumulative_acknowledgement_of_before_a_restart(stage: Stage) -> None:
    stage.produce_batch(5)
    stage.produce(1)
    stage._cache_bytes = 0
    stage.start()
    member = stage.client().subscribe()
    assert "waiting" == member.ack(0, cumulative=True)
    stage.run()
    assert 5 == member.subscription.cursor.acknowledged_before


def test_what_does_not_exist_is_not_acknowledged(stage: Stage) -> None:
    stage.produce(3)
    member = received(stage)
    for ledger, entry in ((LEDGER - 1, 0), (LEDGER + 1, 0), (LEDGER, 3), (LEDGER, FULL), (2**64 - 1, 2**64 - 1)):
        for cumulative in (False, True):
            assert None is member.ack(entry, cumulative=cumulative, ledger=ledger)
    assert 0 == member.subscription.cursor.acknowledged_before
    stage.produce(3)
    stage.run()
    assert [3, 4, 5] == member.offsets()


def test_cumulative_acknowledgements_mean_nothing_where_messages_are_shared(stage: Stage) -> None:
    stage.produce(3)
    member = received(stage, SubType.Shared)
    assert None is member.ack(2, cumulative=True)
    assert None is received(stage, SubType.Shared).ack(0, 1, cumulative=True)
    assert 3 == member.subscription.backlog


def test_a_consumer_may_acknowledge_what_another_has(stage: Stage) -> None:
    stage.produce(2)
    first = received(stage, SubType.Shared)
    second = stage.client().subscribe(kind=SubType.Shared)
    assert 2 == first.connected.consumer.unacked
    second.ack(0, 1)
    assert 0 == first.connected.consumer.unacked
    assert 0 == second.connected.consumer.unacked
    assert 0 == second.subscription.backlog


def test_acknowledging_twice_counts_once(stage: Stage) -> None:
    stage.produce(4)
    member = received(stage, SubType.Shared)
    for _ in range(3):
        member.ack(1, 1, 2)
    assert 2 == member.connected.consumer.unacked
    assert 2 == member.subscription.backlog


@pytest.mark.parametrize("cumulative", [False, True])
def test_late_acknowledgement_of_departed_consumer_fails(stage: Stage, cumulative: bool) -> None:
    stage.produce(1)
    member = received(stage)
    member.leave()
    assert isinstance(member.ack(0, cumulative=cumulative), ConsumerNotFound)
    assert 1 == member.subscription.backlog


def test_holes_beyond_bound_are_refused_without_loss(stage: Stage) -> None:
    stage.produce(30)
    member = received(stage)
    member.subscription.cursor.acknowledged.ranges_max = 5
    refused = member.ack(*range(1, 30, 2))
    assert "out of order" in str(refused)
    assert 25 == member.subscription.backlog
    assert None is member.ack(*range(30))
    assert 0 == member.subscription.backlog


def test_cursor_with_too_many_holes_resumes_when_filled(stage: Stage) -> None:
    """Gaps of the log are kept beyond the bound, up to which nothing more is read."""
    stage.produce(12)
    member = stage.client().subscribe()
    member.flow(4)
    stage.run()
    assert [0, 1, 2, 3] == member.offsets()
    acknowledged = member.subscription.cursor.acknowledged
    acknowledged.ranges_max = 1
    member.ack(1)
    member.subscription.cursor.skip(3, 4)
    assert member.subscription.cursor.crowded
    member.flow(10)
    stage.run()
    assert [] == member.offsets()
    member.ack(0)
    stage.run()
    assert list(range(4, 12)) == member.offsets()


def test_ten_thousand_unknown_entries_are_read_in_pieces(stage: Stage) -> None:
    stage.produce(50)
    stage._cache_bytes = 0
    stage.start()
    member = stage.client().subscribe()
    ids = [number % 50 for number in range(10_000)]
    assert "waiting" == member.ack(*ids)
    steps = 0
    while stage.run_reader():
        steps += 1
    assert steps >= 2
    assert 0 == member.subscription.backlog


def test_entries_that_cannot_be_read_are_not_acknowledged(stage: Stage) -> None:
    stage.produce(2)
    stage._cache_bytes = 0
    stage.start()
    member = stage.client().subscribe()
    reader = stage.topic.reader

    class Failing:
        def __getattr__(self, name: str) -> object:
            return getattr(reader, name)

        def replay_later(self, offsets: object, done: object) -> None:
            done(StorageError("disk"))  # type: ignore[operator]

        def read_later(self, offset: int, entries: int, size: int, done: object) -> None:
            done(StorageError("disk"))  # type: ignore[operator]

    stage.topic.reader = Failing()  # type: ignore[assignment]
    answers: list[object] = []
    from broker.pulsar.subscriptions.acknowledging import Acknowledging
    from protocol.pulsar.acks import Ack, Acked

    for cumulative in (False, True):
        ack = Ack(0, cumulative, [Acked(LEDGER, 1, ())], 1, -1)
        Acknowledging(member.subscription, member.connected, ack, answers.append).start()
    assert [StorageError, StorageError] == [type(answer) for answer in answers]
    assert 2 == member.subscription.backlog


def test_the_table_of_delivered_entries_is_bounded(stage: Stage) -> None:
    stage.produce(300)
    member = stage.client().subscribe()
    assert member.subscription.acknowledgements.delivered is not None
    member.subscription.acknowledgements.delivered.most = 100
    member.flow(1000)
    stage.run()
    assert 80 <= len(member.subscription.acknowledgements.delivered) <= 100
    member.ack(*range(300))
    stage.run()
    assert 0 == member.subscription.backlog
    assert 0 == len(member.subscription.acknowledgements.delivered)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(0, 63), st.booleans()), max_size=30),
    st.booleans(),
)
def test_any_acknowledgements_leave_what_a_simple_model_leaves(
    batches: list[int], acks: list[tuple[int, int | None, bool]], restart: bool
) -> None:
    import tempfile
    from pathlib import Path

    from tests.storage.helpers import Storage

    with tempfile.TemporaryDirectory() as directory:
        storage = Storage(Path(directory))
        stage = Stage(storage)
        try:
            _check_against_model(stage, batches, acks, restart)
        finally:
            storage.kill()


def _check_against_model(
    stage: Stage, batches: list[int], acks: list[tuple[int, int | None, bool]], restart: bool
) -> None:
    size_of: dict[int, int] = {}
    for messages in batches:
        size_of[stage.produce_batch(messages)] = messages
    end = sum(batches)
    left = set(range(end))
    member = received(stage)
    if restart:
        stage.stop()
        stage._cache_bytes = 0
        stage.start()
        member = stage.client().subscribe(start=None if stage.stored else 0)
    for entry, bits, cumulative in acks:
        covering = max((first for first in size_of if first <= entry), default=0)
        ack_set = None if bits is None else bits & ((1 << size_of[covering]) - 1)
        member.ack(entry if ack_set is None else (entry, (ack_set,)), cumulative=cumulative)
        stage.run()
        if entry >= end:
            continue
        if cumulative:
            left -= set(range(covering))
        elif entry != covering:
            continue
        rest = ack_set or 0
        left -= {covering + bit for bit in range(size_of[covering]) if not rest >> bit & 1}
    assert len(left) == member.subscription.backlog
    cursor = member.subscription.cursor
    for first, messages in size_of.items():
        expected = {offset for offset in range(first, first + messages) if offset in left}
        assert len(expected) == cursor.remaining(first, messages)


def test_whole_entries_are_acknowledged_while_room_remains(stage: Stage) -> None:
    """What was refused is still to be acknowledged, and can be without reading it."""
    stage.produce(8)
    member = received(stage)
    subscription = member.subscription
    subscription.cursor.acknowledged.ranges_max = 2
    assert isinstance(member.ack(1, 3, 5, 6), TooManyHoles)
    assert [True, True, False, False] == [subscription.cursor.is_acknowledged(entry) for entry in (1, 3, 5, 6)]
    assert subscription.acknowledgements.delivered is not None
    assert {5: 1, 6: 1} == {entry: subscription.acknowledgements.delivered.messages(entry) for entry in (5, 6)}
    assert None is member.ack(0, 2, 5, 6)
    assert (4, 2) == (subscription.cursor.acknowledged_before, subscription.backlog)
