"""A parked join or sync is answered exactly once."""

from broker.kafka.groups.members import ParkedRequests
from broker.kafka.groups.values import Effect, JoinAnswer, JoinResult, SyncAnswer, SyncResult
from protocol.kafka.errors import ErrorCode

DONE = ErrorCode.none


def join_one(result: JoinResult) -> None: ...


def join_two(result: JoinResult) -> None: ...


def sync_one(result: SyncResult) -> None: ...


def test_an_answer_goes_where_the_request_came_from() -> None:
    effects: list[Effect] = []
    parked = ParkedRequests(effects.append)
    parked.park_join("a", join_one)
    parked.park_sync("a", sync_one)
    parked.answer_join("a", JoinResult(DONE, "a"))
    assert parked.answer_sync("a", SyncResult(DONE))
    assert effects == [JoinAnswer(join_one, JoinResult(DONE, "a")), SyncAnswer(sync_one, SyncResult(DONE))]


def test_a_second_answer_goes_nowhere() -> None:
    effects: list[Effect] = []
    parked = ParkedRequests(effects.append)
    parked.answer_join("a", JoinResult(DONE, "a"))
    assert not parked.answer_sync("a", SyncResult(DONE))
    assert effects == []


def test_a_later_request_of_the_member_has_the_earlier_one_refused() -> None:
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
