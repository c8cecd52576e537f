"""The machine's clocks, in the units that the broker expects."""

import time

from broker.runtime.clock import SystemClock


def test_monotonic_time_is_in_seconds_and_never_falls() -> None:
    clock = SystemClock()
    before = time.monotonic()
    times = [clock.monotonic() for _ in range(100)]
    after = time.monotonic()
    assert sorted([before, *times, after]) == [before, *times, after]


def test_wall_time_is_in_milliseconds_since_the_epoch() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().time_ms()
    assert isinstance(now, int)
    assert abs(now - before) < 3_600_000  # seconds or microseconds would be far away
