"""Which subpartitions the selectors choose."""

import pytest

from broker.client.shuffle.writing.channel_selector import (
    ChannelSelector,
    custom,
    forward,
    hash_by_key,
    rebalance,
    rescale,
    round_robin,
)


def chosen(selector: ChannelSelector[int], subpartitions: int, count: int) -> list[int]:
    selector.setup(subpartitions)
    return [selector.select(number) for number in range(count)]


def test_round_robin_begins_at_the_first() -> None:
    assert chosen(round_robin(), 3, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_rebalance_begins_where_it_is_told() -> None:
    assert chosen(rebalance(5), 3, 4) == [2, 0, 1, 2]


def test_forward_goes_to_the_first() -> None:
    assert chosen(forward(), 3, 3) == [0, 0, 0]


@pytest.mark.parametrize(
    ("writers", "subpartitions", "expected"),
    [(2, 4, [{0, 1}, {2, 3}]), (2, 3, [{0}, {1, 2}]), (4, 2, [{0}, {0}, {1}, {1}]), (1, 3, [{0, 1, 2}])],
)
def test_rescale_gives_each_writer_its_share(writers: int, subpartitions: int, expected: list[set[int]]) -> None:
    shares = [set(chosen(rescale(index, writers), subpartitions, 6)) for index in range(writers)]
    assert expected == shares


def test_key_always_goes_to_the_same() -> None:
    selector = hash_by_key(lambda value: f"key {value % 10}")
    selected = chosen(selector, 5, 100)
    assert all(selected[number] == selected[number % 10] for number in range(100))
    assert len(set(selected)) > 1


def test_more_subpartitions_than_key_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="4 key groups"):
        hash_by_key(str, 4).setup(5)


def test_function_may_choose_existing_subpartitions_only() -> None:
    assert chosen(custom(lambda value, count: value % count), 2, 3) == [0, 1, 0]
    with pytest.raises(ValueError, match="subpartition 2 of 2"):
        chosen(custom(lambda _value, count: count), 2, 1)
