"""The loop inside a case: every turn runs, the failure names its turn."""

import pytest

from tests.loops import loop_over


def test_every_turn_runs_in_order() -> None:
    ran = []

    @loop_over("outer", "ab")
    @loop_over(("left", "right"), [(1, 2), (3, 4)])
    def test(outer: str, left: int, right: int) -> None:
        ran.append((outer, left, right))

    test()
    assert ran == [("a", 1, 2), ("a", 3, 4), ("b", 1, 2), ("b", 3, 4)]


def test_failure_names_the_turn_and_ends_the_loop() -> None:
    ran = []

    @loop_over("outer", [True])
    @loop_over("number", [1, 2, 3])
    def test(outer: bool, number: int) -> None:
        ran.append(number)
        assert number != 2

    with pytest.raises(AssertionError) as caught:
        test()
    assert caught.value.__notes__ == ["with number=2", "with outer=True"]
    assert ran == [1, 2]


def test_loop_without_a_turn_is_refused() -> None:
    with pytest.raises(AssertionError, match="without a turn"):
        loop_over("number", [])
    with pytest.raises(AssertionError, match="without a turn"):
        loop_over("number", {"some": [1], "none": []})


def test_entry_of_a_mapping_is_a_case() -> None:
    ran = []

    @loop_over("outer", [True, False])
    @loop_over("number", {"low": [1, 2], "high": [10]})
    def test(outer: bool, number: int) -> None:
        ran.append((outer, number))

    (mark,) = test.pytestmark  # type: ignore[attr-defined]
    assert mark.args == ("case", ["low", "high"])
    test(case="high")
    assert ran == [(True, 10), (False, 10)]
