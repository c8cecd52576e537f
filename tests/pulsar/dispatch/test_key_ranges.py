"""Who owns a hash, and which hashes change their owner."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.dispatch.key_ranges import LAST, Halves, KeyRanges, Points, Sticky
from broker.pulsar.refusals import ConsumerAssignError

# Every owner is compared before and after, so the hashes are sampled.
SAMPLE = [1, 2, 3, LAST - 1, LAST, *range(5, LAST, 97)]


def owners(ranges: KeyRanges) -> list[Consumer | None]:
    return [ranges.owner(hash) for hash in SAMPLE]


def points() -> Points:
    return Points(100)


@pytest.mark.parametrize("make", [points, Halves])
@settings(max_examples=30)
@given(events=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=20))
def test_exactly_what_is_returned_changes_its_owner(
    make: Callable[[], KeyRanges], events: list[tuple[str, int]]
) -> None:
    ranges, members = make(), list[Consumer]()
    before = owners(ranges)
    for name, number in events:
        if number < 6 or not members:
            members.append(Consumer(number, name))
            moved = ranges.join(members[-1])
        else:
            moved = ranges.leave(members.pop(number % len(members)))
        after = owners(ranges)
        for hash, old, new in zip(SAMPLE, before, after, strict=True):
            assert (old is not new) == any(first <= hash <= last for first, last in moved)
            assert new in members or (new is None and not members)
        before = after
    for member in members:
        ranges.leave(member)
    assert owners(ranges) == [None] * len(SAMPLE)


def test_consistent_hashing_spreads_hashes_and_moves_few() -> None:
    ranges = points()
    members = [Consumer(number, "same name") for number in range(10)]
    for member in members:
        ranges.join(member)
    counts = Counter(ranges.owner(hash) for hash in range(1, LAST + 1))
    assert all(LAST / 10 / 2 < counts[member] < LAST / 10 * 2 for member in members)
    before = owners(ranges)
    ranges.leave(members[3])
    assert all(old is members[3] or old is new for old, new in zip(before, owners(ranges), strict=True))


def test_returning_consumer_owns_same_ranges() -> None:
    ranges = points()
    for name in "abc":
        ranges.join(Consumer(name, name))
    before = [owner.name for owner in owners(ranges) if owner]
    again = ranges.owner(1)
    assert again is not None
    ranges.leave(again)
    ranges.join(Consumer("new", again.name))
    assert before == [owner.name for owner in owners(ranges) if owner]


def test_halving_takes_lower_half_of_largest_range() -> None:
    ranges = Halves()
    a, b, c = (Consumer(name, name) for name in "abc")
    assert [(1, LAST)] == ranges.join(a)
    assert [(1, 32_767)] == ranges.join(b)
    assert [(32_768, 49_151)] == ranges.join(c)
    assert [b, c, a] == [ranges.owner(hash) for hash in (1, 40_000, LAST)]


def test_more_consumers_than_hashes_are_refused() -> None:
    ranges = Halves()
    ranges._ends = list(range(1, LAST + 1))
    ranges._consumers = [Consumer(0, "a")] * LAST
    with pytest.raises(ConsumerAssignError):
        ranges.join(Consumer(1, "b"))


def sticky(*ranges: tuple[int, int]) -> Consumer:
    return Consumer(str(ranges), "s", ranges=ranges)


def test_sticky_ranges_belong_to_who_names_them() -> None:
    ranges = Sticky()
    a, b = sticky((0, 9), (20, 29)), sticky((30, LAST))
    assert [(0, 9), (20, 29)] == ranges.join(a)
    ranges.join(b)
    assert [a, a, None, a, a, b, b] == [ranges.owner(hash) for hash in (1, 9, 10, 20, 29, 30, LAST)]
    assert [(0, 9), (20, 29)] == ranges.leave(a)
    assert [None, b] == [ranges.owner(hash) for hash in (20, 30)]


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ((5, 5),),
        ((0, 10),),
        ((0, 9),),
        ((9, 11),),
        ((0, LAST),),
        ((50, 60), (60, 70)),
        ((50, 70), (55, 56)),
        ((60, 50),),
        ((-1, 0),),
        ((100, LAST + 1),),
    ],
)
def test_overlapping_or_empty_sticky_ranges_are_refused(wrong: tuple[tuple[int, int], ...]) -> None:
    ranges = Sticky()
    first = sticky((3, 9), (20, 29))
    ranges.join(first)
    with pytest.raises(ConsumerAssignError):
        ranges.join(sticky(*wrong))
    assert [first, None] == [ranges.owner(hash) for hash in (5, 50)]
    ranges.join(sticky((0, 2), (10, 19), (30, LAST)))
    assert None not in [ranges.owner(hash) for hash in range(1, LAST + 1)]


@given(st.integers(0, 2**31 - 1))
def test_hashes_are_reduced_as_pulsar_does(sticky_hash: int) -> None:
    assert sticky_hash % 65_535 + 1 == points().reduce(sticky_hash)
    for other in (Halves(), Sticky()):
        assert (sticky_hash % 65_536 or 1) == other.reduce(sticky_hash)
