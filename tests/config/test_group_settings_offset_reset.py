"""Where a group begins: what may be written, and how far back it goes."""

import pytest

from broker.config.group_settings import reset_ms

HOUR_MS = 3_600_000


@pytest.mark.parametrize("text", ["latest", "earliest"])
def test_an_end_of_the_log_is_no_time(text: str) -> None:
    assert reset_ms(text) is None


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("PT1H", HOUR_MS),
        ("pt1h", HOUR_MS),
        ("P1D", 24 * HOUR_MS),
        ("P2DT3H4M5.678S", 51 * HOUR_MS + 4 * 60_000 + 5_678),
        ("PT90M", 90 * 60_000),
        ("PT0S", 0),
        ("PT0.5S", 500),
        ("PT1.23456789S", 1234),
    ],
)
def test_a_duration_is_read_as_java_reads_it(duration: str, ms: int) -> None:
    assert reset_ms(f"by_duration:{duration}") == ms


@pytest.mark.parametrize(
    "text",
    ["", "none", "LATEST", "by_duration", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1h"]
    + [
        f"by_duration:{duration}"
        for duration in ("-PT1H", "PT-1H", "P1W", "P1Y", "PT1H ", "PT1D", "P1DT", "PT9999999999S")
    ],
)
def test_other_values_are_refused_with_the_choices(text: str) -> None:
    with pytest.raises(ValueError, match="it must be latest, earliest, or by_duration: and a duration such as PT1H"):
        reset_ms(text)
