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


def test_work_continues_while_somebody_wants_it() -> None:
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


def test_long_bodies_and_slow_apis_have_own_lanes() -> None:
    assert lane_of(BULK_BYTES, None) is None
    assert lane_of(BULK_BYTES + 1, None) == BULK
    assert lane_of(10, ADMIN) == ADMIN
    assert lane_of(10 * BULK_BYTES, ADMIN) == ADMIN


def test_repeated_names_are_kept_once_in_first_place() -> None:
    assert list(once(["b", "a", "b", "c", "a"])) == ["b", "a", "c"]
