"""The common parts of consumer groups (KIP-848) and share groups (KIP-932): the coordinator assigns the partitions, members learn
theirs with heartbeats, and the catalogue stores a group as rows.

``Subscriptions``: the members' subscriptions. ``ParkedMembers``: requests that wait. ``UnsavedRows``: rows that are not durable
yet. The functions at the end make and read rows.

Pure bookkeeping of one group, under the group's lock.

Tests: tests/kafka/groups/test_coordinated.py, tests/kafka/groups/consumer/test_rows.py,
tests/kafka/groups/share/test_members.py, tests/kafka/groups/consumer/test_group_offloading.py.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

from protocol.kafka.errors import ErrorCode

# Epochs with which a member joins and leaves.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1

# Requests that are answered in one event: about 5 ms.
RELEASE_MAX = 200


class Subscribed(Protocol):
    """A member's subscription. Equal subscriptions have the same hash, which is computed once."""

    @property
    def names(self) -> Iterable[str]: ...

    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=Subscribed)


class Subscriptions(Generic[S]):
    """The different subscriptions of a group's members. Any number of members that name the same topics share an object: this
    bounds the memory, and tells an assignor at once which members are alike."""

    def __init__(self) -> None:
        # All subscriptions together.
        self.size_bytes = 0
        self._members: dict[S, int] = {}
        self._interned: dict[S, S] = {}
        self._names: frozenset[str] | None = frozenset()

    def __contains__(self, subscription: object) -> bool:
        return subscription in self._interned

    def __iter__(self) -> Iterator[S]:
        return iter(self._interned)

    def items(self) -> Iterable[tuple[S, int]]:
        """Each different subscription, with the number of its members."""
        return self._members.items()

    @property
    def names(self) -> frozenset[str]:
        """The topics that members name."""
        if self._names is None:
            self._names = frozenset(name for subscription in self._interned for name in subscription.names)
        return self._names

    def intern(self, subscription: S) -> S:
        """The equal subscription that members have, or else this subscription."""
        return self._interned.get(subscription, subscription)

    def count(self, subscription: S, change: int) -> None:
        """Add ``change`` to the number of members that have this subscription."""
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
    """``finish`` answers it, with an error or none, at a time. ``epoch``: the group epoch whose assignment it waits for, in a
    group that releases its requests by epochs."""

    finish: Callable[[ErrorCode, float], None]
    epoch: int = 0


class ParkedMembers:
    """Members whose request waits, until their assignment is known or their changes are durable. Each member has at most one
    request here, and each is answered."""

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
        """Refuse the member's waiting request, because it has sent another. Returns False if there is none.

        It must not be carried out later, because its state of the client's partitions is out of date.
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
        """Answer some of the requests whose assignment is known. Returns whether there are more."""
        ready = [member_id for member_id, request in self._requests.items() if request.epoch <= epoch]
        for member_id in ready[:RELEASE_MAX]:
            self.finish(member_id, ErrorCode.none, now)
        return len(ready) > RELEASE_MAX

    def refuse_all(self, error: ErrorCode, now: float) -> None:
        for member_id in list(self._requests):
            self.finish(member_id, error, now)


class UnsavedRows:
    """Rows that are not durable yet: changed since they were last handed out to be saved, or being saved. Rows have any names.

    A row that could not be saved counts as changed again, unless a later save has it too, so the next save of any kind writes
    it: no failure is forgotten. Saves end in the order in which they began.
    """

    def __init__(self) -> None:
        # The rows to write, as an ordered set.
        self.changed: dict[str, None] = {}
        # Number of the last save.
        self.number = 0
        # By row: the number of the last save that has it.
        self._saving: dict[str, int] = {}

    def __contains__(self, row: object) -> bool:
        return row in self._saving or row in self.changed

    def add(self, row: str) -> None:
        """Mark a row as changed."""
        self.changed[row] = None

    def take(self) -> list[str]:
        """Begin a save of the changed rows; ``number`` is its number."""
        self.number += 1
        taken = list(self.changed)
        self.changed.clear()
        self._saving.update(dict.fromkeys(taken, self.number))
        return taken

    def saved(self, number: int, taken: Iterable[str], *, failed: bool) -> None:
        """The save is durable, or has failed."""
        for row in taken:
            if self._saving.get(row) == number:
                del self._saving[row]
                if failed:
                    self.changed[row] = None


# Rows in the catalogue: versioned JSON, which people can read and which can get new fields ---------------------------------

_VERSION: Final = 1
# The row of the group itself. Its ``type`` is the value of the ``GroupType``.
GROUP_ROW: Final = ""
MEMBER_PREFIX: Final = "m/"
# Exceptions that reading a row from another source can raise.
UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError)


def member_row(member_id: str) -> str:
    """The name of a member's row."""
    return MEMBER_PREFIX + member_id


def encode_row(value: dict[str, Any]) -> bytes:
    return json.dumps({"version": _VERSION, **value}, separators=(",", ":")).encode()


def decode_row(row: bytes) -> dict[str, Any]:
    """Raises one of UNREADABLE for a row that ``encode_row`` has not made, or a row of another version."""
    value: dict[str, Any] = json.loads(row)
    if value["version"] != _VERSION:
        raise ValueError(f"version {value['version']}")
    return value


def runs_of(partitions: Iterable[int]) -> list[int]:
    """Runs of ascending partitions as pairs of the first and the last, because members of small groups have long runs:
    0, 1, 2 and 5 are 0, 2, 5, 5."""
    runs: list[int] = []
    for partition in partitions:
        if runs and runs[-1] == partition - 1:
            runs[-1] = partition
        else:
            runs += (partition, partition)
    return runs


def partitions_of(runs: list[int]) -> Iterator[int]:
    """The partitions from which ``runs_of`` made the runs."""
    for first, last in zip(runs[::2], runs[1::2], strict=True):
        yield from range(first, last + 1)
