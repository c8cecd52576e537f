"""The work on one request ends when nobody wants it; where it runs is decided by size."""

import pytest

from broker.network.work import (
    ADMIN,
    BULK,
    BULK_BYTES,
    CHECK_EVERY,
    Abandoned,
    Work,
    lane_of,
    once,
)


def test_work_goes_on_as_long_as_somebody_wants_it() -> None:
    work = Work(lambda: False)
    work.checkpoint()
    assert list(work.each(range(3 * CHECK_EVERY))) == list(range(3 * CHECK_EVERY))


def test_work_that_nobody_wants_ends_soon() -> None:
    done: list[int] = []
    work = Work(lambda: len(done) >= 10)
    with pytest.raises(Abandoned):
        done.extend(work.each(range(100 * CHECK_EVERY)))
    assert len(done) <= CHECK_EVERY
    with pytest.raises(Abandoned):
        work.checkpoint()


def test_long_bodies_go_through_the_bulk_lane_and_slow_apis_through_their_own() -> None:
    assert lane_of(BULK_BYTES, None) is None
    assert lane_of(BULK_BYTES + 1, None) == BULK
    assert lane_of(10, ADMIN) == ADMIN
    assert lane_of(10 * BULK_BYTES, ADMIN) == ADMIN


def test_what_is_named_twice_is_there_once_where_it_came_first() -> None:
    assert list(once(["b", "a", "b", "c", "a"])) == ["b", "a", "c"]
