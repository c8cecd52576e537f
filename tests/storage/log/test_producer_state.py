"""The rules of idempotence by themselves, and snapshots of what is known."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import Refusal
from broker.storage.log.producer_state import CorruptSnapshot, Producer, ProducerState, SeenBatch
from protocol.frames import crc32c

LAST = 2**31 - 1


def state_of(*batches: tuple[int, int, int, int]) -> ProducerState:
    """(id, epoch, sequence, count) each; offsets are dense."""
    state = ProducerState()
    offset = 0
    for producer_id, epoch, sequence, count in batches:
        assert state.check(producer_id, epoch, sequence, count - 1) is None
        offset += count
        state.appended(producer_id, epoch, sequence, count - 1, offset - 1, 50 + offset, 1000 + offset)
    return state


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerState().check(7, 3, 99, 0) is None


def test_sequence_numbers_wrap_to_zero_after_largest() -> None:
    state = state_of((7, 0, LAST - 1, 2))
    assert state.check(7, 0, 0, 0) is None
    state = state_of((7, 0, LAST - 1, 4))
    assert state.check(7, 0, 2, 0) is None
    found = state.check(7, 0, LAST - 1, 3)
    assert found is not None
    assert (found.base_offset, found.last_offset, found.last_sequence) == (0, 3, 1)


def test_only_exactly_the_same_batch_is_a_duplicate() -> None:
    state = state_of((7, 0, 0, 3), (7, 0, 3, 3))
    assert state.check(7, 0, 0, 2) == SeenBatch(2, 2, 2, 53)
    for sequence, delta in ((0, 1), (1, 1), (1, 2), (3, 1), (4, 2)):
        with pytest.raises(Refusal):
            state.check(7, 0, sequence, delta)


def test_new_epoch_forgets_batches_of_old_epoch() -> None:
    state = state_of((7, 0, 0, 1), (7, 1, 0, 1))
    assert state.check(7, 1, 0, 0) == SeenBatch(0, 1, 0, 52)
    with pytest.raises(Refusal):
        state.check(7, 0, 0, 0)


def test_producers_expire_by_when_they_were_last_seen() -> None:
    state = state_of((1, 0, 0, 1), (2, 0, 0, 1))
    assert state.expire(now_ms=1000 + 1 + 50, max_age_ms=50) == 1
    assert [key for key, _ in state.items()] == [2]
    assert state.expire(now_ms=0, max_age_ms=50) == 0  # the clock went back


def content(state: ProducerState) -> dict[int, tuple[int, int, list[SeenBatch], int]]:
    return {key: (p.epoch, p.next_sequence, list(p.batches), p.seen_ms) for key, p in state.items()}


batch_lists = st.lists(
    st.builds(SeenBatch, st.integers(0, LAST), st.integers(0, 2**62), st.integers(0, LAST), st.integers(-1, 2**62)),
    max_size=5,
)


@given(producers=st.dictionaries(st.integers(0, 2**62), st.tuples(st.integers(0, 2**15 - 1), batch_lists), max_size=10))
def test_a_snapshot_gives_back_everything(producers: dict[int, tuple[int, list[SeenBatch]]]) -> None:
    state = ProducerState()
    for key, (epoch, batches) in producers.items():
        state._producers[key] = Producer(epoch, batches, 5)
    assert content(ProducerState.from_snapshot(state.freeze().to_snapshot())) == content(state)


def test_batch_timestamps_and_last_seen_time_survive() -> None:
    state = ProducerState()
    for sequence in range(3):
        state.appended(7, 0, sequence, 0, sequence, 100 + sequence, 1000 + sequence)
    state = ProducerState.from_snapshot(state.freeze().to_snapshot())
    for sequence in range(3):
        assert state.check(7, 0, sequence, 0) == SeenBatch(sequence, sequence, 0, 100 + sequence)
    assert state.expire(1052, 50) == 1


changes = st.tuples(st.sampled_from(["batch", "batch", "epoch", "marker", "expire"]), st.integers(0, 5))


@given(before=st.lists(changes, max_size=30), after=st.lists(changes, max_size=30))
def test_what_is_frozen_does_not_change(before: list[tuple[str, int]], after: list[tuple[str, int]]) -> None:
    state = ProducerState(most=4)
    now_ms = 0
    epochs = dict.fromkeys(range(6), 0)

    def change(what: str, key: int) -> None:
        nonlocal now_ms
        now_ms += 1
        if what == "expire":
            state.expire(now_ms, 10)
        elif what == "marker":
            state.ended(key, epochs[key], 1, now_ms)
        else:
            epochs[key] += what == "epoch"
            producer = state.get(key)
            known = producer is not None and producer.epoch == epochs[key]
            sequence = producer.next_sequence if producer is not None and known else 0
            state.appended(key, epochs[key], sequence, 0, now_ms, now_ms, now_ms)

    for step in before:
        change(*step)
    frozen, snapshot = state.freeze(), state.freeze().to_snapshot()
    for step in after:
        change(*step)
    assert snapshot == frozen.to_snapshot()


def test_silent_producers_are_forgotten_first_beyond_bound() -> None:
    state = ProducerState(most=100)
    sequence = 0
    for key in range(10_000):
        state.appended(1_000 + key, 0, 0, 0, key, key, key)
        if key % 20 == 0:  # one that goes on, and one with an open transaction
            state.appended(1, 0, sequence, 0, key, key, key)
            sequence += 1
            if key == 0:
                state.appended(2, 0, 0, 0, key, key, key)
                state.began(2, key)
        assert len(state) <= 100
    assert state.check(1, 0, sequence - 1, 0) is not None
    assert state.check(2, 0, 0, 0) is not None
    assert state.check(1_000 + 9_999, 0, 0, 0) is not None
    assert state.get(1_000) is None


def test_producer_bound_holds_with_flood_and_open_transactions() -> None:
    state = ProducerState(most=10)
    for key in range(30):
        state.appended(key, 0, 0, 0, key, key, key)
        state.began(key, key)
    assert len(state) == 30
    for key in range(30):
        state.ended(key, 0, 1, 100)
    for key in range(100, 200):
        state.appended(key, 0, 0, 0, key, key, 1000 + key)
    assert len(state) <= 30
    assert state.get(0) is None


@given(data=st.data())
def test_snapshot_with_changed_or_missing_byte_is_refused(data: st.DataObject) -> None:
    snapshot = bytearray(state_of((7, 0, 0, 1), (7, 0, 1, 1), (8, 0, 0, 1)).freeze().to_snapshot())
    position = data.draw(st.integers(0, len(snapshot) - 1))
    with pytest.raises(CorruptSnapshot):
        ProducerState.from_snapshot(bytes(snapshot[:position]))
    snapshot[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        ProducerState.from_snapshot(bytes(snapshot))


def test_snapshot_file_is_laid_out_as_kafka_reads() -> None:
    """ProducerStateManager: version, CRC-32C of the rest of the file, and an array of fixed-size entries."""
    data = state_of((7, 2, 5, 3), (7, 2, 8, 1)).freeze().to_snapshot()
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, crc, count) == (1, crc32c(data[6:]), 1)
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (7, 2, 8, 3, 0, 1004, -1, -1)


def test_kafka_snapshot_has_last_batch_of_each_producer() -> None:
    body = struct.pack(">i", 2)
    body += struct.pack(">qhiqiqiq", 7, 2, 8, 3, 1, 1004, -1, -1)
    body += struct.pack(">qhiqiqiq", 9, 0, -1, -1, 0, 77, -1, -1)  # a producer that has written nothing yet
    state = ProducerState.from_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)
    assert state.check(7, 2, 9, 0) is None
    assert state.check(7, 2, 7, 1) == SeenBatch(8, 3, 1, 1004)
    assert state.check(9, 0, 0, 0) is None
    with pytest.raises(Refusal):
        state.check(9, 0, 1, 0)
