"""The verdict on a comparison. What is compared is measured by hand: ``make bench-check``."""

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
