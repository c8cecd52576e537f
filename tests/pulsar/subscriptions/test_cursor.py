"""The cursor: its words, its storing, and that nothing acknowledged is lost on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.pulsar.subscriptions.cursor import Cursor, cut_state

OFFSETS = st.integers(0, 1 << 62)
TEXTS = st.text(max_size=30)


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    start = draw(OFFSETS)
    cursor = Cursor(start, draw(st.dictionaries(TEXTS, TEXTS, max_size=4)))
    position = start
    for _ in range(draw(st.integers(0, 20))):
        position += draw(st.integers(0, 5) | st.integers(0, 1 << 40))
        messages = draw(st.integers(1, 200))
        if draw(st.booleans()):
            cursor.acknowledge(position, messages)
        else:
            cursor.acknowledge(position, messages, draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)))
        position += messages
    return cursor


def facts(cursor: Cursor) -> object:
    return (
        cursor.acknowledged_before,
        list(cursor.acknowledged.ranges),
        sorted(cursor.acknowledged.parts.items()),
        cursor.properties,
    )


@given(cursors())
def test_what_is_stored_is_what_is_read(cursor: Cursor) -> None:
    state = cursor.encode()
    copy = Cursor.decode(state)
    assert facts(cursor) == facts(copy)
    assert cursor.acknowledged_before == copy.read_offset
    assert state == copy.encode()


@given(cursors(), st.data())
def test_damaged_state_is_refused_or_decodes_to_another(cursor: Cursor, data: st.DataObject) -> None:
    state = bytearray(cursor.encode())
    with pytest.raises(StorageError):
        Cursor.decode(bytes(state[: data.draw(st.integers(0, len(state) - 1))]))
    state[data.draw(st.integers(0, len(state) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        changed = Cursor.decode(bytes(state))
    except StorageError:
        return
    assert isinstance(changed.encode(), bytes)


def test_a_state_of_a_later_version_is_refused() -> None:
    state = bytearray(Cursor().encode())
    state[0] = 2
    with pytest.raises(StorageError, match="version 2"):
        Cursor.decode(bytes(state))


def test_properties_too_large_to_be_stored_are_refused() -> None:
    with pytest.raises(StorageError, match="properties"):
        Cursor(0, {"n" * 70_000: ""}).encode()


def test_many_ranges_are_stored_compactly() -> None:
    cursor = Cursor()
    for offset in range(1, 400_000, 2):
        cursor.acknowledge(offset, 1)
    state = cursor.encode()
    assert len(state) < 2_000_000
    assert facts(cursor) == facts(Cursor.decode(state))


def test_zero_bits_and_missing_words_acknowledge() -> None:
    cursor = Cursor()
    assert 1 == cursor.acknowledge(0, 100, [-2, -1])  # the first of 100
    assert [-2, 2**36 - 1] == list(cursor.ack_set(0) or ())
    assert 99 == cursor.remaining(0, 100)
    assert 1 == cursor.acknowledge(0, 100, [-3, -1])  # the second, because ack sets are joined
    assert 36 == cursor.acknowledge(0, 100, [-1])
    assert [-4] == list(cursor.ack_set(0) or ())
    assert 62 == cursor.acknowledge(0, 100, [])
    assert cursor.ack_set(0) is None
    assert 100 == cursor.acknowledged_before
    assert 0 == cursor.acknowledge(0, 100, [])


def test_whole_batch_acknowledgement_counts_only_the_rest() -> None:
    cursor = Cursor()
    cursor.acknowledge(10, 8, [0b11])
    assert 2 == cursor.acknowledge(10, 8)
    assert 0 == cursor.acknowledge(10, 8)
    assert 10 == cursor.acknowledge(0, 10)
    assert 18 == cursor.acknowledged_before


def test_a_cumulative_acknowledgement_drops_ranges_and_parts_below() -> None:
    cursor = Cursor()
    cursor.acknowledge(5, 2)
    cursor.acknowledge(10, 4, [0b0011])
    cursor.acknowledge(20, 4, [0b0011])
    assert cursor.acknowledge_until(14)
    assert not cursor.acknowledge_until(14)
    assert cursor.ack_set(10) is None
    assert [3] == list(cursor.ack_set(20) or ())
    assert 20 - 14 + 2 + 76 == cursor.backlog(100)


def test_rewinding_restarts_at_oldest_unacknowledged() -> None:
    cursor = Cursor(3)
    cursor.read_offset = 50
    cursor.acknowledge(3, 2)
    cursor.acknowledge(10, 2)
    cursor.rewind()
    assert 5 == cursor.read_offset == cursor.next_unacknowledged(5)
    assert 12 == cursor.next_unacknowledged(10)


def test_a_seek_forgets_what_was_acknowledged_after_it() -> None:
    cursor = Cursor()
    cursor.acknowledge(0, 30)
    cursor.acknowledge(40, 5)
    cursor.acknowledge(50, 5, [1])
    version = cursor.version
    cursor.reset(10)
    assert (10, 10, None, False) == (
        cursor.acknowledged_before,
        cursor.read_offset,
        cursor.ack_set(50),
        cursor.is_acknowledged(44),
    )
    assert version != cursor.version


def test_version_changes_exactly_with_stored_state() -> None:
    cursor = Cursor()
    versions = [cursor.version]
    for change in (
        lambda: cursor.acknowledge(5, 2),
        lambda: cursor.acknowledge(8, 8, [1]),
        lambda: cursor.acknowledge_until(2),
        lambda: cursor.skip(20, 22),
        lambda: cursor.set_properties({"a": "b"}),
        lambda: cursor.reset(0),
    ):
        change()
        versions.append(cursor.version)
    assert len(versions) == len(set(versions))
    cursor.read_offset = 9
    cursor.acknowledge_until(0)
    cursor.rewind()
    assert versions[-1] == cursor.version


def test_entry_cut_by_log_start_is_not_acknowledged() -> None:
    cursor = Cursor()
    cursor.acknowledge_until(13)  # Kafka deletes records up to the middle of the batch from 10 to 19
    assert not cursor.is_acknowledged(19)
    assert 7 == cursor.acknowledge(10, 10)
    assert 20 == cursor.acknowledged_before


@given(
    st.integers(0, 10),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4), st.booleans()), max_size=12),
    st.integers(0, 45),
)
def test_cut_cursor_says_the_same_before_the_end_and_nothing_after_it(
    start: int, acknowledged: list[tuple[int, int, bool]], end: int
) -> None:
    cursor = Cursor(start, {"name": "value"})
    for entry, messages, whole in acknowledged:
        entry *= 4  # entries do not overlap
        cursor.acknowledge(entry, messages, None if whole else [1])
    after = Cursor.decode(cut_state(cursor.encode(), end))
    assert {"name": "value"} == after.properties
    assert [cursor.is_acknowledged(offset) for offset in range(end)] == [
        after.is_acknowledged(offset) for offset in range(end)
    ]
    assert [cursor.ack_set(offset) for offset in range(end)] == [after.ack_set(offset) for offset in range(end)]
    assert not any(after.is_acknowledged(offset) for offset in range(end, 250))
