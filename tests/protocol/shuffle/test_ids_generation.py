import pytest

from protocol.shuffle.ids import Generation


@pytest.mark.parametrize(
    ("release", "generation"),
    [
        ("1.16", Generation.V1_16),
        ("1.17", Generation.V1_16),
        ("1.18.1", Generation.V1_16),
        ("1.19", Generation.V1_19),
        ("1.20.1", Generation.V1_19),
        ("2.0", Generation.V2_0),
        ("2.0.0", Generation.V2_0),
        ("2.3.0", Generation.V2_0),
    ],
)
def test_a_release_speaks_the_generation_before_it(release: str, generation: Generation) -> None:
    assert generation is Generation(release)


@pytest.mark.parametrize("release", ["1.15", "1.14.6", "1.21", "2.4", "3.0", "", "2", "two", "2.", ".0", "2.x", 2.0])
def test_a_release_that_nobody_looked_at_is_refused(release: object) -> None:
    with pytest.raises(ValueError, match="Generation"):
        Generation(release)


def test_the_sizes_of_the_three_layouts() -> None:
    sizes = [(g.buffer_header_bytes, g.partition_request_bytes) for g in Generation]
    assert [(30, 93), (34, 97), (38, 97)] == sizes
