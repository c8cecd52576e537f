"""The tracker of delayed messages, against a list of all of them."""

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.pulsar.dispatch.delayed import SLICE, DelayedTracker

DAY_MS = 86_400_000


class DelayedMachine(RuleBasedStateMachine):
    """The model is what is tracked: offset -> time. Time goes forward, and sometimes the wall clock is set back."""

    @initialize(tick_ms=st.sampled_from([1, 100, 1000, 5000]), strict=st.booleans(), now_ms=st.integers(0, 1 << 41))
    def start(self, tick_ms: int, strict: bool, now_ms: int) -> None:
        self.tracker = DelayedTracker(tick_ms, strict, most=30, look_ahead=10)
        self.early_ms = 0 if strict else tick_ms
        self.width_ms = 1 << (tick_ms.bit_length() - 1)
        self.waiting: dict[int, int] = {}
        self.now_ms = now_ms
        self.offset = 0
        self.highest = -1

    @rule(
        delay_ms=st.integers(-10, 5000) | st.integers(0, 60 * 60_000) | st.integers(0, 1 << 60), count=st.integers(1, 5)
    )
    def add(self, delay_ms: int, count: int) -> None:
        for _ in range(count):
            self.offset += 1
            self.tracker.add(self.now_ms + delay_ms, self.offset)
            self.waiting[self.offset] = self.now_ms + delay_ms
            self.highest = self.offset

    @rule(pause_ms=st.integers(-3000, 3000) | st.integers(0, 400 * DAY_MS))
    def wait(self, pause_ms: int) -> None:
        self.now_ms += pause_ms

    @rule()
    def wait_for_the_timer(self) -> None:
        at = self.tracker.next_at()
        if at is not None:
            self.now_ms = max(self.now_ms, at)

    @rule(most=st.integers(1, 8))
    def take(self, most: int) -> None:
        """As the dispatcher does: again until there is nothing. Pulsar's 26012: a timer that fires and finds nothing due."""
        for _ in range(1000):
            at = self.tracker.next_at()
            if at is None or at > self.now_ms:
                break
            offsets = self.tracker.due(self.now_ms, most)
            assert len(offsets) <= most
            for offset in offsets:
                assert self.waiting.pop(offset) <= self.now_ms + self.early_ms, "early"
        else:
            raise AssertionError("next_at has passed and due never gets there")
        assert [] == self.tracker.due(self.now_ms, most)
        late = self.now_ms + self.early_ms - self.width_ms
        assert [] == [offset for offset, at in self.waiting.items() if at <= late], "late"

    @rule()
    def clear(self) -> None:
        self.tracker.clear()
        self.waiting.clear()
        self.highest = -1

    @rule(back=st.integers(-1, 3))
    def mark_deleted(self, back: int) -> None:
        offset = self.offset - back
        self.tracker.marked_deleted(offset)
        # The tracker knows only the highest offset that it was given, whether that still waits or not.
        if self.highest < offset:
            self.waiting.clear()
            self.highest = -1

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "tracker"):
            assert len(self.waiting) == len(self.tracker)
            assert (not self.waiting) == (self.tracker.next_at() is None)
            assert self.tracker.full == (len(self.waiting) >= 30)
            assert not self.tracker.full or self.tracker.paused


TestDelayedMachine = DelayedMachine.TestCase
TestDelayedMachine.settings = settings(max_examples=200, stateful_step_count=40)


def drain(tracker: DelayedTracker, now_ms: int) -> list[int]:
    found = []
    while (at := tracker.next_at()) is not None and at <= now_ms:
        found += tracker.due(now_ms, 100)
    return found


def test_delivery_is_at_most_one_tick_early() -> None:
    strict, lax = DelayedTracker(1000, strict=True), DelayedTracker(1000)
    for tracker in (strict, lax):
        assert [] == tracker.due(10_000_000, 1)
        tracker.add(10_002_500, 7)
    assert strict.is_due(10_002_500, 10_002_500) and not strict.is_due(10_002_500, 10_002_499)
    assert lax.is_due(10_002_500, 10_001_500) and not lax.is_due(10_002_500, 10_001_499)
    assert [] == drain(lax, 10_001_499)
    assert [7] == drain(lax, 10_002_011)
    assert [] == drain(strict, 10_002_499)
    assert [7] == drain(strict, 10_003_011)


def test_year_of_messages_each_second_stays_within_memory() -> None:
    # Each is due within a year, in no order. Reading stops at the bound, so nothing is lost or late.
    tracker = DelayedTracker(most=100_000)
    start_ms = 1_800_000_000_000
    tracker.due(start_ms, 1)
    for offset in range(100_000):
        assert not tracker.full
        tracker.add(start_ms + offset * 1000 + (offset * 7919 % 365) * DAY_MS, offset)
    assert tracker.full and tracker.paused
    buckets = tracker._buckets
    size = sum(sys.getsizeof(b.times) + sys.getsizeof(b.offsets) + 100 for b in buckets.values()) + 100 * len(buckets)
    assert size < 30 * 100_000
    end_ms = start_ms + 500 * DAY_MS
    found = []
    while (at := tracker.next_at()) is not None:
        assert at <= end_ms
        found += tracker.due(max(at, start_ms), 1000)
    assert list(range(100_000)) == sorted(found)


def test_simultaneously_due_messages_are_moved_in_slices() -> None:
    tracker = DelayedTracker()
    tracker.due(0, 1)
    count = 5 * SLICE
    for offset in range(count):
        tracker.add(40 * DAY_MS, offset)
    calls = 0
    found: list[int] = []
    while len(found) < count:
        at = tracker.next_at()
        assert at is not None
        found += tracker.due(max(at, 0), 1000)
        calls += 1
    assert sorted(found) == list(range(count))
    assert calls > count // 1000 + 4


def test_fixed_delay_pauses_reading_unless_shorter_delay_occurs() -> None:
    fixed, mixed, passed = (DelayedTracker(look_ahead=100) for _ in range(3))
    for offset in range(100):
        assert not fixed.paused
        fixed.add(1_000_000 + 50 * offset, offset)
        mixed.add(1_000_000 + 50 * offset - (5000 if offset == 70 else 0), offset)
        passed.add(1_000_000 + 50 * offset, offset)
        if offset == 30:
            passed.passed()
    assert fixed.paused and not fixed.full
    assert not mixed.paused and not passed.paused
    drain(mixed, 2_000_000)
    mixed.add(1_000_000, 1)
    assert not mixed.paused
    fixed.due(1_000_500, 1)
    assert not fixed.paused


def test_emptied_tracker_detects_fixed_delay_anew() -> None:
    tracker = DelayedTracker(look_ahead=3)
    tracker.passed()
    for offset in (10, 11, 12):
        assert not tracker.paused
        tracker.add(4_000_000, offset)
    assert tracker.paused


def test_due_entries_come_in_log_order() -> None:
    tracker = DelayedTracker()
    tracker.due(1_000_000, 1)
    for offset in (5, 3, 9, 1):
        tracker.add(1_010_000 - offset, offset)
    assert [1, 3] == tracker.due(1_020_000, 2)
    assert [5, 9] == tracker.due(1_020_000, 5)


@pytest.mark.parametrize("at", [-(2**63), -1, 0, 2**63 - 1])
def test_any_time_a_client_sends_is_accepted(at: int) -> None:
    tracker = DelayedTracker()
    tracker.due(1_800_000_000_000, 1)
    tracker.add(at, 1)
    assert [1] == drain(tracker, 2**63)
