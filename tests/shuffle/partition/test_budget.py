"""Room, and the calls to everybody who was told to wait: any order of taking, giving back and checking."""

from contextlib import suppress

import hypothesis.strategies as st
from hypothesis import given

from broker.shuffle.partition.budget import Budget, NoRoom


def called(budget: Budget) -> list[bool]:
    calls: list[bool] = []
    budget.on_room_freed = lambda: calls.append(True)
    return calls


def test_refused_writer_is_called_although_another_got_room() -> None:
    budget = Budget(100, -1, -1)
    calls = called(budget)
    budget.take("", 100)
    assert budget.full(to_disk=False)
    budget.give_back("", 10, 0)
    assert not budget.full(to_disk=False)  # another writer, between the two marks
    assert calls == []
    budget.give_back("", 90, 0)
    assert calls == [True]


def test_the_disk_and_memory_are_waited_for_separately() -> None:
    budget = Budget(100, 50, -1)
    calls = called(budget)
    budget.take("", 60)
    budget.spilled(50)
    assert budget.full(to_disk=True)
    assert not budget.full(to_disk=False)
    budget.give_back("", 10, 0)
    assert calls == []
    budget.give_back("", 0, 1)
    assert calls == [True]


def test_an_owner_has_a_share_of_its_own() -> None:
    budget = Budget(1000, -1, 10)
    assert budget.take("a", 10)
    assert not budget.take("a", 1)
    assert budget.take("a", 1, obliged=True)
    assert budget.take("b", 10)
    assert budget.memory == 21
    budget.give_back("a", 11, 0)
    assert budget.take("a", 10)


@given(
    st.lists(st.tuples(st.sampled_from(["take", "back", "spill", "drop", "look"]), st.integers(1, 60), st.booleans()))
)
def test_nobody_waits_while_all_is_free(steps: list[tuple[str, int, bool]]) -> None:
    """After everything has been given back, all who wait have been called."""
    budget = Budget(100, 100, -1)
    waiting: set[int] = set()
    budget.on_room_freed = waiting.clear
    for number, (action, size, to_disk) in enumerate(steps):
        if action == "take":
            with suppress(NoRoom):
                budget.take("", size)
        elif action == "back":
            budget.give_back("", min(size, budget.memory), 0)
        elif action == "spill":
            budget.spilled(min(size, budget.memory))
        elif action == "drop":
            budget.give_back("", 0, min(size, budget.disk))
        elif budget.full(to_disk):
            waiting.add(number)
    budget.give_back("", budget.memory, budget.disk)
    assert waiting == set()


def test_index_memory_is_not_available_for_payloads() -> None:
    budget = Budget(100, -1, -1)
    calls = called(budget)
    budget.take("", 26, index=48)
    assert not budget.full(to_disk=False)
    assert not budget.memory_scarce
    budget.take("", 1, index=24)
    assert budget.memory_scarce  # 28 bytes are left for payloads
    budget.take("", 1, index=0)
    assert budget.full(to_disk=False)
    budget.spilled(28, index=12)
    assert calls == [True]
    assert not budget.memory_scarce
    assert (budget.memory, budget.disk, budget.index) == (0, 28, 60)
    budget.take("", 0, index=40)
    assert budget.full(to_disk=False)
    budget.give_back("", 0, 28, index=60)
    assert calls == [True, True]


def test_waiting_writer_is_told_when_promised_room_returns() -> None:
    budget = Budget(1000, -1, -1)
    calls = []
    budget.on_room_freed = lambda: calls.append("room")
    assert budget.take("", 400)
    assert budget.promise(1, 500, at_least_one=True) == 1
    assert budget.promise(1, 300, at_least_one=True) == 0
    budget.unreserve(100)
    assert calls == []
    budget.unreserve(400, unused=True)
    assert calls == ["room"]
    assert budget.promise(1, 300, at_least_one=True) == 1
    budget.unreserve(300, unused=True)
    assert calls == ["room"]
