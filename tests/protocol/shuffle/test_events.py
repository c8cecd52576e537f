import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle import events as ev
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import Generation
from tests.protocol.shuffle.strategies import EVENTS, GENERATIONS, TEXT, mutated


@given(EVENTS)
def test_an_event_is_read_back(event: ev.Event) -> None:
    assert event == ev.parse(ev.encode(event))


@given(EVENTS.filter(lambda event: not isinstance(event, ev.OtherEvent)), st.binary(max_size=40))
def test_what_follows_an_event_is_passed_over(event: ev.Event, padding: bytes) -> None:
    assert event == ev.parse(ev.encode(event) + padding)


@given(EVENTS, st.data())
def test_each_truncation_is_a_protocol_error(event: ev.Event, data: st.DataObject) -> None:
    whole = ev.encode(event)
    if isinstance(event, ev.OtherEvent):
        whole = ev.encode(ev.OtherEvent(event.class_name))  # its class's bytes have no end mark
    with pytest.raises(ProtocolError):
        ev.parse(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(EVENTS, GENERATIONS, st.data())
def test_mutations_are_events_or_protocol_errors(event: ev.Event, generation: Generation, data: st.DataObject) -> None:
    try:
        parsed = ev.parse(data.draw(mutated(ev.encode(event))), generation)
    except ProtocolError:
        return
    assert ev.exists_in(parsed, generation)
    assert parsed == ev.parse(ev.encode(parsed))


@given(EVENTS, GENERATIONS)
def test_event_unknown_to_a_generation_is_refused(event: ev.Event, generation: Generation) -> None:
    if ev.exists_in(event, generation):
        assert event == ev.parse(ev.encode(event), generation)
    else:
        with pytest.raises(ProtocolError, match="tag"):
            ev.parse(ev.encode(event), generation)


def test_the_events_that_came_later() -> None:
    later = [
        (ev.EndOfSegment(), [True, True, True]),
        (ev.RecoveryMetadata(1), [False, True, True]),
        (ev.Watermark("w", 1), [False, False, True]),
        (ev.EndOfInputChannelState(), [False, False, True]),
        (ev.EventAnnouncement(1, ev.Watermark("w", 1)), [False, False, True]),
    ]
    for event, known in later:
        assert known == [ev.exists_in(event, generation) for generation in Generation]


@given(TEXT, st.booleans(), st.booleans())
def test_a_boolean_watermark_stays_boolean(name: str, value: bool, aligned: bool) -> None:
    watermark = ev.parse(ev.encode(ev.Watermark(name, value, aligned)))
    assert isinstance(watermark, ev.Watermark)
    assert watermark.value is value


@pytest.mark.parametrize(
    ("barrier", "data_type"),
    [
        (ev.CheckpointBarrier(1, 2), DataType.ALIGNED_CHECKPOINT_BARRIER),
        (ev.CheckpointBarrier(1, 2, aligned_timeout_ms=5), DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER),
        (ev.CheckpointBarrier(1, 2, aligned_timeout_ms=0), DataType.ALIGNED_CHECKPOINT_BARRIER),
        (ev.CheckpointBarrier(1, 2, alignment=ev.Alignment.FORCED_ALIGNED), DataType.ALIGNED_CHECKPOINT_BARRIER),
        (ev.CheckpointBarrier(1, 2, alignment=ev.Alignment.UNALIGNED), DataType.EVENT_BUFFER),
        (ev.CheckpointBarrier(1, 2, alignment=ev.Alignment.AT_LEAST_ONCE), DataType.EVENT_BUFFER),
    ],
)
def test_the_types_of_barriers(barrier: ev.CheckpointBarrier, data_type: DataType) -> None:
    assert data_type == ev.data_type_of(barrier)
    assert DataType.PRIORITIZED_EVENT_BUFFER == ev.data_type_of(barrier, priority=True)
    assert data_type.is_blocking_upstream == barrier.needs_alignment


@pytest.mark.parametrize(
    "data",
    [
        "",
        "000000",
        "0000000d",  # no such tag
        "ffffffff",
        "0000000802",  # no such mode
        "0000000b000161000000000200",  # no such kind of watermark
        "00000001" + "00" * 16 + "05",  # no such snapshot
        "00000001" + "00" * 16 + "0102",  # no such savepoint format
        "00000001" + "00" * 17 + "7fffffff",  # a missing location
        "00000001" + "00" * 17 + "ffffffff04" + "00" * 8,  # no such alignment
        "0000000600000001" * 9 + "00000000",
        "000000030002ffff",  # not a text
    ],
)
def test_what_means_nothing_is_refused(data: str) -> None:
    with pytest.raises(ProtocolError):
        ev.parse(bytes.fromhex(data))


@pytest.mark.parametrize("event", [ev.CancelCheckpointMarker(2**63), ev.RecoveryMetadata(-(2**31) - 1)])
def test_a_number_without_room_is_a_value_error(event: ev.Event) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        ev.encode(event)
