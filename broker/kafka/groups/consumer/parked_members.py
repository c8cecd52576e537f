"""Members of one consumer group whose request waits for the target assignment.

Pure bookkeeping of a ``ConsumerGroup``, under the group's lock. A member that joins, or that subscribes to something else,
waits here while the assignment is computed or regular expressions are matched, which takes milliseconds, so that its answer has
its partitions. Otherwise it would get them with its next heartbeat. Each member has one request here at most, and each is
answered.

Tests: tests/kafka/groups/consumer/test_group_offloading.py.
"""

from collections.abc import Callable

import attrs

from protocol.kafka.errors import ErrorCode

# Requests that are answered in one event: about 5 ms.
RELEASE_MAX = 200


@attrs.frozen(eq=False)
class ParkedRequest:
    """``epoch``: the group epoch whose assignment it waits for. ``finish``: answers it, with an error if there is one."""

    epoch: int
    finish: Callable[[ErrorCode, float], None]


class ParkedMembers:
    def __init__(self) -> None:
        self._requests: dict[str, ParkedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._requests

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
