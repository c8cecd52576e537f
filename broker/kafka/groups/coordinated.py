"""What consumer groups (KIP-848) and share groups (KIP-932) have in common: the coordinator assigns the partitions, members learn
theirs with heartbeats, and the catalogue has a group as rows.

``Subscriptions``: what members subscribe to. ``ParkedMembers``: requests that wait. ``UnsavedRows``: what is not durable yet.
The functions at the end make and read rows.

Pure bookkeeping of one group, under the group's lock.

Tests: tests/kafka/groups/test_coordinated.py, tests/kafka/groups/consumer/test_rows.py,
tests/kafka/groups/share/test_members.py, tests/kafka/groups/consumer/test_group_offloading.py.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

from protocol.kafka.errors import ErrorCode

# What a member sends as its epoch to join and to leave.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1

# Requests that are answered in one event: about 5 ms.
RELEASE_MAX = 200


class Subscribed(Protocol):
    """What a member subscribes to. Equal ones have the same hash, which is computed once."""

    @property
    def names(self) -> Iterable[str]: ...

    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=Subscribed)


class Subscriptions(Generic[S]):
    """The different subscriptions of a group's members. Members that name the same topics share one object, however many they
    are: this bounds the memory, and an assignor sees at once who is alike."""

    def __init__(self) -> None:
        # Of all of them together.
        self.size_bytes = 0
        self._members: dict[S, int] = {}
        self._interned: dict[S, S] = {}
        self._names: frozenset[str] | None = frozenset()

    def __contains__(self, subscription: object) -> bool:
        return subscription in self._interned

    def __iter__(self) -> Iterator[S]:
        return iter(self._interned)

    def items(self) -> Iterable[tuple[S, int]]:
        """Each different one, with the number of members that have it."""
        return self._members.items()

    @property
    def names(self) -> frozenset[str]:
        """The topics that members name."""
        if self._names is None:
            self._names = frozenset(name for subscription in self._interned for name in subscription.names)
        return self._names

    def intern(self, subscription: S) -> S:
        """The equal one that members have; this one if none has."""
        return self._interned.get(subscription, subscription)

    def count(self, subscription: S, change: int) -> None:
        """So many more members have it; fewer if ``change`` is negative."""
        members = self._members.get(subscription, 0) + change
        if subscription not in self._interned:
            self._interned[subscription] = subscription
            self.size_bytes += subscription.size_bytes
            self._names = None
        self._members[subscription] = members
        if not members:
            del self._members[subscription], self._interned[subscription]
            self.size_bytes -= subscription.size_bytes
            self._names = None


@attrs.frozen(eq=False)
class ParkedRequest:
    """``finish`` answers it, with an error if there is one, at a time. ``epoch``: the group epoch whose assignment it waits for,
    in a group that releases its requests by epochs."""

    finish: Callable[[ErrorCode, float], None]
    epoch: int = 0


class ParkedMembers:
    """Members whose request waits, until their assignment is known or what they changed is durable. Each member has one request
    here at most, and each is answered."""

    def __init__(self) -> None:
        self._requests: dict[str, ParkedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._requests

    def __iter__(self) -> Iterator[str]:
        return iter(self._requests)

    def park(self, member_id: str, request: ParkedRequest) -> None:
        assert member_id not in self._requests, member_id
        self._requests[member_id] = request

    def supersede(self, member_id: str, now: float) -> bool:
        """The member has sent another request, so it has given up the one that waits, if there is one. False if there is none.

        That one must not be carried out later: what it says of the client's partitions is out of date.
        """
        is_parked = member_id in self._requests
        self.finish(member_id, ErrorCode.coordinator_not_available, now)
        return is_parked

    def finish(self, member_id: str, error: ErrorCode, now: float) -> None:
        """Answer the member's request if there is one."""
        request = self._requests.pop(member_id, None)
        if request is not None:
            request.finish(error, now)

    def release(self, epoch: int, now: float) -> bool:
        """Answer some of the requests whose assignment is there. True if there are more of them."""
        ready = [member_id for member_id, request in self._requests.items() if request.epoch <= epoch]
        for member_id in ready[:RELEASE_MAX]:
            self.finish(member_id, ErrorCode.none, now)
        return len(ready) > RELEASE_MAX

    def refuse_all(self, error: ErrorCode, now: float) -> None:
        for member_id in list(self._requests):
            self.finish(member_id, error, now)


class UnsavedRows:
    """Which rows are not durable yet: changed since they were last handed out to be saved, or being saved. Rows have any names.

    A row that could not be saved counts as changed again, unless a later save has it too, so that the next save, of whatever,
    writes it: one failure leaves nothing behind. Saves end in the order in which they began.
    """

    def __init__(self) -> None:
        # The rows that are to be written, as an ordered set.
        self.changed: dict[str, None] = {}
        # Of the last save.
        self.number = 0
        # By row: the number of the last save that has it.
        self._saving: dict[str, int] = {}

    def __contains__(self, row: object) -> bool:
        return row in self._saving or row in self.changed

    def add(self, row: str) -> None:
        """This row has changed."""
        self.changed[row] = None

    def take(self) -> list[str]:
        """The rows that have changed, which are saved from now on; ``number`` is that save's."""
        self.number += 1
        taken = list(self.changed)
        self.changed.clear()
        self._saving.update(dict.fromkeys(taken, self.number))
        return taken

    def saved(self, number: int, taken: Iterable[str], *, failed: bool) -> None:
        """That save is durable, or has failed."""
        for row in taken:
            if self._saving.get(row) == number:
                del self._saving[row]
                if failed:
                    self.changed[row] = None


# Rows in the catalogue: JSON with a version, which people can read and which can get new fields ----------------------------

_VERSION: Final = 1
# The row of the group itself. Its ``type`` is the value of the ``GroupType``.
GROUP_ROW: Final = ""
MEMBER_PREFIX: Final = "m/"
# What reading a row that nobody here has made can raise.
UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError)


def member_row(member_id: str) -> str:
    """The name of a member's row."""
    return MEMBER_PREFIX + member_id


def encode_row(value: dict[str, Any]) -> bytes:
    return json.dumps({"version": _VERSION, **value}, separators=(",", ":")).encode()


def decode_row(row: bytes) -> dict[str, Any]:
    """Raises one of UNREADABLE if ``encode_row`` has not made it, or that of another version."""
    value: dict[str, Any] = json.loads(row)
    if value["version"] != _VERSION:
        raise ValueError(f"version {value['version']}")
    return value


def runs_of(partitions: Iterable[int]) -> list[int]:
    """Runs of ascending partitions as two numbers each, the first and the last, because members of small groups have long runs:
    0, 1, 2 and 5 are 0, 2, 5, 5."""
    runs: list[int] = []
    for partition in partitions:
        if runs and runs[-1] == partition - 1:
            runs[-1] = partition
        else:
            runs += (partition, partition)
    return runs


def partitions_of(runs: list[int]) -> Iterator[int]:
    """What ``runs_of`` was made of."""
    for first, last in zip(runs[::2], runs[1::2], strict=True):
        yield from range(first, last + 1)
