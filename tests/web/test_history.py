"""The rings of the history: what is kept, for how long, and of what."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.web.history import COARSE, COARSE_STEP_S, FINE, STEP_S, WHOLE, History

START_MS = 1_000_000 * STEP_S * 4 * 1000  # where a coarse step begins


def filled(samples: int, *, kind: str = WHOLE) -> History:
    """The series ``n`` counts samples."""
    history = History()
    for number in range(samples):
        history.record(START_MS + number * STEP_S * 1000, {"n": (kind, float(number))})
    return history


def test_ten_minutes_are_kept_every_five_seconds() -> None:
    history = filled(2000)
    extract = history.read(["n"], START_MS + (2000 - FINE) * STEP_S * 1000)
    assert STEP_S == extract.step_s
    assert START_MS + (2000 - FINE) * STEP_S * 1000 == extract.start_ms
    assert [float(number) for number in range(2000 - FINE, 2000)] == extract.series["n"]


def test_hour_is_kept_as_means_of_twenty_seconds() -> None:
    history = filled(2000)
    extract = history.read(["n"], 0)
    assert COARSE_STEP_S == extract.step_s
    values = extract.series["n"]
    assert COARSE == len(values)
    assert 1997.5 == values[-1]  # of 1996 to 1999
    assert 1993.5 == values[-2]
    assert START_MS + 2000 * STEP_S * 1000 - COARSE * COARSE_STEP_S * 1000 == extract.start_ms


def test_a_young_history_begins_with_its_first_sample() -> None:
    extract = filled(3).read(["n"], 0)
    assert (START_MS, [0.0, 1.0, 2.0]) == (extract.start_ms, extract.series["n"])


def test_nothing_is_read_before_the_first_sample() -> None:
    assert {} == History().read(["n"], 0).series


def test_a_gap_is_null() -> None:
    history = History()
    history.record(START_MS, {"n": (WHOLE, 1.0)})
    history.record(START_MS + 3 * STEP_S * 1000, {"n": (WHOLE, 4.0)})
    assert [1.0, None, None, 4.0] == history.read(["n"], START_MS).series["n"]


def test_second_sample_within_a_step_is_dropped() -> None:
    history = filled(2)
    history.record(START_MS + STEP_S * 1000 + 1, {"n": (WHOLE, 99.0)})
    assert [0.0, 1.0] == history.read(["n"], START_MS).series["n"]


@pytest.mark.parametrize("shift_s", [-100_000, 100_000])
def test_history_starts_again_when_clock_is_set(shift_s: int) -> None:
    history = filled(10)
    now_ms = START_MS + shift_s * 1000
    history.record(now_ms, {"n": (WHOLE, 7.0)})
    assert (now_ms, [7.0]) == (
        history.read(["n"], 0).start_ms,
        history.read(["n"], 0).series["n"],
    )


def test_busiest_things_have_series() -> None:
    history = History(kind_max=10)
    for number in range(50):
        now_ms = START_MS + number * STEP_S * 1000
        history.record(now_ms, {f"t{n}": ("topic", float(n)) for n in range(1000)} | {"whole": (WHOLE, 0.0)})
    assert {f"t{n}" for n in range(990, 1000)} == set(history.names("topic"))
    assert ["whole"] == history.names(WHOLE)


def test_busier_thing_replaces_a_quieter_thing() -> None:
    history = History(kind_max=2)
    history.record(START_MS, {"a": ("topic", 10.0), "b": ("topic", 5.0)})
    history.record(START_MS + STEP_S * 1000, {"a": ("topic", 10.0), "c": ("topic", 7.0)})
    assert {"a", "c"} == set(history.names("topic"))
    assert [None, 7.0] == history.read(["c"], START_MS).series["c"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400_000),
            st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e9), max_size=6),
        ),
        max_size=60,
    ),
    st.integers(0, 10_000_000),
)
def test_whatever_is_recorded_the_bounds_hold(samples: list[tuple[int, dict[str, float]]], since: int) -> None:
    history, now_ms = History(kind_max=3), START_MS
    for pause_ms, values in samples:
        now_ms += pause_ms
        history.record(now_ms, {name: ("kind", value) for name, value in values.items()})
        assert len(history.names("kind")) <= 3
        extract = history.read("abcdef", now_ms - since)
        lengths = {len(values) for values in extract.series.values()}
        assert len(lengths) <= 1
        assert all(length <= max(FINE, COARSE) for length in lengths)
        for values in extract.series.values():
            assert all(value is None or math.isfinite(value) for value in values)
