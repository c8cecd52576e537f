"""Clients that were given a member id and have not come back are bounded by their number and by their bytes."""

from broker.kafka.groups.members import PENDING_MAX, PendingMembers
from broker.kafka.groups.values import PENDING_MEMBER_BYTES


def test_each_counts_with_its_id_until_it_is_removed() -> None:
    pending = PendingMembers(1 << 20)
    assert pending.add("abc") == []
    assert ("abc" in pending, len(pending), pending.size_bytes) == (True, 1, PENDING_MEMBER_BYTES + 3)
    pending.remove("abc")
    pending.remove("abc")
    assert ("abc" in pending, len(pending), pending.size_bytes) == (False, 0, 0)


def test_the_one_that_has_been_away_longest_is_forgotten_for_one_too_many() -> None:
    pending = PendingMembers(1 << 30)
    for number in range(PENDING_MAX):
        assert pending.add(f"m-{number}") == []
    assert pending.add("one more") == ["m-0"]
    assert len(pending) == PENDING_MAX


def test_as_many_are_forgotten_as_the_bytes_of_a_new_one_need() -> None:
    pending = PendingMembers(4 * (PENDING_MEMBER_BYTES + 1))
    for name in "abcd":
        assert pending.add(name) == []
    assert pending.add("e" * (PENDING_MEMBER_BYTES + 2)) == ["a", "b"]
    assert pending.ids() == {"c", "d", "e" * (PENDING_MEMBER_BYTES + 2)}
    assert pending.size_bytes <= 4 * (PENDING_MEMBER_BYTES + 1)


def test_one_that_is_too_large_by_itself_is_kept_alone() -> None:
    pending = PendingMembers(10)
    pending.add("a")
    assert pending.add("b") == ["a"]
    assert pending.ids() == {"b"}
    pending.clear()
    assert (len(pending), pending.size_bytes) == (0, 0)
