"""The verdict on a comparison. What is compared is measured by ``make bench-check``, and its sample by CI."""

import pytest

from tests.bench import sample
from tests.bench.check import verdicts


def test_the_median_of_the_rounds_decides() -> None:
    assert [
        ("steady", 10.0, 10.0, 1.0, False),
        ("dearer", 10.0, 12.0, 1.2, True),
        ("one bad round", 10.0, 10.0, 1.0, False),
        ("a slow minute", 15.0, 15.0, 1.0, False),
    ] == list(
        verdicts(
            {
                "steady": [(10.0, 10.0)] * 3,
                "dearer": [(10.0, 12.0), (10.0, 12.0), (10.0, 9.0)],
                "one bad round": [(10.0, 10.0), (10.0, 40.0), (10.0, 10.0)],
                "a slow minute": [(10.0, 10.0), (20.0, 20.0), (15.0, 15.0)],
            },
            1.1,
        )
    )


@pytest.mark.parametrize(
    ("ratios", "is_dearer"),
    [
        ([1.0] * 9, False),
        ([1.3] * 9, True),
        ([1.1] * 9, False),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0], False),  # a busy minute
        ([1.2, 1.25, 1.3, 1.35, 1.3, 1.25, 1.2, 0.5], True),
        ([0.8, 1.0, 1.3, 1.6, 1.8], False),  # 1.3, but it may be anything
    ],
)
def test_a_sample_finds_only_what_is_beyond_the_noise(ratios: list[float], is_dearer: bool) -> None:
    finding = sample.found("case", [(10.0, 10.0 * ratio) for ratio in ratios])
    assert is_dearer == finding.is_dearer


def test_a_sample_says_where_it_could_not_tell() -> None:
    assert "too noisy" in str(sample.found("case", [(10.0, 8.0), (10.0, 13.0), (10.0, 18.0), (10.0, 10.0)]))
