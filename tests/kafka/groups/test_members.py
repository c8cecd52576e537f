"""A parked join or sync is answered exactly once; pending members are bounded."""

from broker.kafka.groups.members import PENDING_MAX, ParkedRequests, PendingMembers
from broker.kafka.groups.values import PENDING_MEMBER_BYTES, Effect, JoinAnswer, JoinResult, SyncAnswer, SyncResult
from protocol.kafka.errors import ErrorCode

DONE = ErrorCode.none


def join_one(result: JoinResult) -> None: ...


def join_two(result: JoinResult) -> None: ...


def sync_one(result: SyncResult) -> None: ...


def test_answer_goes_where_the_request_came_from() -> None:
    effects: list[Effect] = []
    parked = ParkedRequests(effects.append)
    parked.park_join("a", join_one)
    parked.park_sync("a", sync_one)
    parked.answer_join("a", JoinResult(DONE, "a"))
    assert parked.answer_sync("a", SyncResult(DONE))
    assert effects == [JoinAnswer(join_one, JoinResult(DONE, "a")), SyncAnswer(sync_one, SyncResult(DONE))]


def test_second_answer_goes_nowhere() -> None:
    effects: list[Effect] = []
    parked = ParkedRequests(effects.append)
    parked.answer_join("a", JoinResult(DONE, "a"))
    assert not parked.answer_sync("a", SyncResult(DONE))
    assert effects == []


def test_later_request_of_member_refuses_the_earlier() -> None:
    effects: list[Effect] = []
    parked = ParkedRequests(effects.append)
    parked.park_join("a", join_one)
    parked.park_join("a", join_two)
    assert effects == [JoinAnswer(join_one, JoinResult(ErrorCode.rebalance_in_progress, "a"))]
    assert parked.joins == {"a": join_two}


def test_all_are_refused_together() -> None:
    effects: list[Effect] = []
    parked = ParkedRequests(effects.append)
    parked.park_join("a", join_one)
    parked.park_sync("b", sync_one)
    parked.answer_all(ErrorCode.not_coordinator)
    assert [effect.result.error for effect in effects] == [ErrorCode.not_coordinator] * 2  # type: ignore[union-attr]
    assert not parked.joins
    assert not parked.syncs


# Pending members -------------------------------------------------------------------------------------------------


def test_pending_member_counts_with_id_until_removed() -> None:
    pending = PendingMembers(1 << 20)
    assert pending.add("abc") == []
    assert ("abc" in pending, len(pending), pending.size_bytes) == (True, 1, PENDING_MEMBER_BYTES + 3)
    pending.remove("abc")
    pending.remove("abc")
    assert ("abc" in pending, len(pending), pending.size_bytes) == (False, 0, 0)


def test_oldest_pending_member_is_forgotten_at_the_bound() -> None:
    pending = PendingMembers(1 << 30)
    for number in range(PENDING_MAX):
        assert pending.add(f"m-{number}") == []
    assert pending.add("one more") == ["m-0"]
    assert len(pending) == PENDING_MAX


def test_pending_members_are_forgotten_by_needed_bytes() -> None:
    pending = PendingMembers(4 * (PENDING_MEMBER_BYTES + 1))
    for name in "abcd":
        assert pending.add(name) == []
    assert pending.add("e" * (PENDING_MEMBER_BYTES + 2)) == ["a", "b"]
    assert pending.ids() == {"c", "d", "e" * (PENDING_MEMBER_BYTES + 2)}
    assert pending.size_bytes <= 4 * (PENDING_MEMBER_BYTES + 1)


def test_oversized_pending_member_is_kept_alone() -> None:
    pending = PendingMembers(10)
    pending.add("a")
    assert pending.add("b") == ["a"]
    assert pending.ids() == {"b"}
    pending.clear()
    assert (len(pending), pending.size_bytes) == (0, 0)
