"""Selects the subpartitions of a record (Flink's ChannelSelectors and StreamPartitioners).

round_robin()               one after the other, from the first
rebalance(start)            the same, from ``start`` (Flink: a random one, so that writers begin at different ones)
rescale(index, writers)     round robin over those that this writer of several shares with no or few others
forward()                   all to the first: one writer, one reader
hash_by_key(key)            by key group, so that equal keys go to the same reader; see key_groups.py
broadcast()                 every record to all
custom(function)            ``function(value, subpartitions) -> subpartition``
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from broker.client.shuffle.writing.key_groups import HIGHEST_MAX_PARALLELISM, assign, default_max_parallelism

T = TypeVar("T")


class ChannelSelector(Generic[T]):
    """Belongs to one RecordWriter, which calls ``setup`` once and then ``select`` for every value."""

    is_broadcast = False

    def setup(self, subpartitions: int) -> None:
        """The number of subpartitions to choose from."""
        self.subpartitions = subpartitions

    def select(self, value: T) -> int:
        raise NotImplementedError


class RoundRobin(ChannelSelector[Any]):
    def __init__(self, start: int = 0) -> None:
        self._next = start

    def setup(self, subpartitions: int) -> None:
        super().setup(subpartitions)
        self._next %= subpartitions

    def select(self, value: Any) -> int:
        chosen = self._next
        self._next = chosen + 1 if chosen + 1 < self.subpartitions else 0
        return chosen


class Rescale(ChannelSelector[Any]):
    """Flink's pointwise distribution: with ``n`` writers and ``m`` subpartitions, writer ``i`` has the subpartitions from i*m/n
    up to the first of the next writer; if there are more writers than subpartitions, each writer has one.
    """

    def __init__(self, index: int, writers: int) -> None:
        if not 0 <= index < writers:
            raise ValueError(f"there is no writer {index} of {writers}")
        self._index, self._writers = index, writers

    def setup(self, subpartitions: int) -> None:
        super().setup(subpartitions)
        self._first = self._index * subpartitions // self._writers
        self._end = max(self._first + 1, (self._index + 1) * subpartitions // self._writers)
        self._next = self._first

    def select(self, value: Any) -> int:
        chosen = self._next
        self._next = chosen + 1 if chosen + 1 < self._end else self._first
        return chosen


class Forward(ChannelSelector[Any]):
    def select(self, value: Any) -> int:
        return 0


class Broadcast(ChannelSelector[Any]):
    is_broadcast = True

    def select(self, value: Any) -> int:
        raise AssertionError("a broadcast does not select a subpartition")


class HashByKey(ChannelSelector[T]):
    """``key`` returns the key of a value: str, int, bytes, float, bool, or a tuple of them. ``max_parallelism``: the number of
    key groups; if not given, Flink's default for the number of subpartitions.
    """

    def __init__(self, key: Callable[[T], Any], max_parallelism: int | None = None) -> None:
        if max_parallelism is not None and not 1 <= max_parallelism <= HIGHEST_MAX_PARALLELISM:
            raise ValueError(f"{max_parallelism} key groups: 1 to {HIGHEST_MAX_PARALLELISM} are possible")
        self._key = key
        self._max_parallelism = max_parallelism

    def setup(self, subpartitions: int) -> None:
        super().setup(subpartitions)
        self.max_parallelism = self._max_parallelism or default_max_parallelism(subpartitions)
        if subpartitions > self.max_parallelism:
            raise ValueError(f"{subpartitions} subpartitions need more than {self.max_parallelism} key groups")

    def select(self, value: T) -> int:
        return assign(self._key(value), self.subpartitions, self.max_parallelism)


class Custom(ChannelSelector[T]):
    def __init__(self, function: Callable[[T, int], int]) -> None:
        self._function = function

    def select(self, value: T) -> int:
        chosen = self._function(value, self.subpartitions)
        if not 0 <= chosen < self.subpartitions:
            raise ValueError(f"the function selected subpartition {chosen} of {self.subpartitions}")
        return chosen


def round_robin() -> ChannelSelector[Any]:
    return RoundRobin()


def rebalance(start: int) -> ChannelSelector[Any]:
    return RoundRobin(start)


def rescale(index: int, writers: int) -> ChannelSelector[Any]:
    return Rescale(index, writers)


def forward() -> ChannelSelector[Any]:
    return Forward()


def broadcast() -> ChannelSelector[Any]:
    return Broadcast()


def hash_by_key(key: Callable[[T], Any], max_parallelism: int | None = None) -> ChannelSelector[T]:
    return HashByKey(key, max_parallelism)


def custom(function: Callable[[T, int], int]) -> ChannelSelector[T]:
    return Custom(function)
