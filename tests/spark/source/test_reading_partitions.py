"""How ranges of offsets are cut into tasks, and the contents of a task."""

import pickle
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.config import ClientConfig
from broker.spark.source.reading import OffsetRange, ReadSettings, Slice, cut

RANGES = st.lists(
    st.builds(
        lambda topic, partition, start, size: OffsetRange(topic, partition, start, start + size),
        st.sampled_from("abc"),
        st.integers(0, 5),
        st.integers(0, 2**50),
        st.integers(0, 500),
    ),
    max_size=8,
    unique_by=lambda piece: (piece.topic, piece.partition),
)


@given(RANGES, st.none() | st.integers(1, 60), st.none() | st.integers(1, 200))
def test_pieces_cover_ranges_without_gap_or_overlap(
    ranges: list[OffsetRange], at_least: int | None, most_records: int | None
) -> None:
    pieces = cut(ranges, at_least, most_records)
    for whole in ranges:
        mine = [piece for piece in pieces if (piece.topic, piece.partition) == (whole.topic, whole.partition)]
        assert bool(whole.size) == bool(mine)
        if mine:
            assert (whole.start, whole.end) == (mine[0].start, mine[-1].end)
            assert all(piece.end == two.start for piece, two in pairwise(mine))
    assert all(piece.size for piece in pieces)


@given(RANGES, st.integers(1, 60), st.none() | st.integers(1, 200))
def test_number_of_pieces_is_as_requested(ranges: list[OffsetRange], at_least: int, most_records: int | None) -> None:
    pieces = cut(ranges, at_least, most_records)
    assert len(pieces) >= min(at_least, sum(piece.size for piece in ranges))
    assert len(pieces) <= max(at_least, len(cut(ranges, None, most_records)))


@given(RANGES, st.none() | st.integers(1, 60), st.integers(1, 200))
def test_no_piece_exceeds_the_record_limit(ranges: list[OffsetRange], at_least: int | None, most: int) -> None:
    assert all(piece.size <= most for piece in cut(ranges, at_least, most))


def test_longest_range_is_cut_first() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 1000)]
    assert [(0, 0, 10), (1, 0, 333), (1, 333, 666), (1, 666, 1000)] == [
        (piece.partition, piece.start, piece.end) for piece in cut(ranges, 4, None)
    ]


def test_slice_is_pickled_and_hides_the_password() -> None:
    client = ClientConfig.from_properties(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "secret",
        }
    )
    slice_ = Slice(OffsetRange("t", 0, 1, 2), ReadSettings(client, ("value",), True, 1000))
    assert slice_ == pickle.loads(pickle.dumps(slice_))
    assert "Slice(t-0 [1, 2))" == repr(slice_)
