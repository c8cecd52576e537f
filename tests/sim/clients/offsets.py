"""A consumer that only keeps its offsets in a group, and helpers of all clients that fetch committed offsets."""

from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.sim.clients.client import Call, Client
from tests.sim.world import Violation

# Met where the machine is at fault or the broker is stopping.
MACHINE = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
    }
)


class Keeper(Client):
    """Commits offsets to a group without members, and must always find the last one again."""

    def __init__(self, *args: Any, group: str, topic: str, commits: int) -> None:
        super().__init__(*args)
        self._group = self.history.group(group)
        self._group_id = group
        self._topic = topic
        self._left = commits
        self._next = 0

    @property
    def done(self) -> bool:
        return self._left <= 0

    def next_call(self) -> Call | None:
        if self._topic not in self.history.ready or self.rng.random() < 0.4 or self.done:
            self.idle(0.05 + self.rng.random() * 0.2)
            return None
        if self.rng.random() < 0.5:
            return offset_fetch(self._group_id, self._topic, [0], self._group.tick())
        self._next = self._after(self._next)
        commit = self._group.committing(self._topic, 0, self._next)
        partition = {"partition_index": 0, "committed_offset": self._next, "committed_metadata": f"number {self._next}"}
        fields = {"group_id": self._group_id, "topics": [{"name": self._topic, "partitions": [partition]}]}
        return Call(ApiKey.OFFSET_COMMIT, fields, ("commit", commit))

    def _after(self, offset: int) -> int:
        """The next offset to commit."""
        return offset + 1

    def answered(self, call: Call, body: Any) -> None:
        if call.context[0] == "commit":
            error = body.topics[0].partitions[0].error_code
            if not error:
                self._group.committed(call.context[1], self._topic, 0)
                self._left -= 1
            else:
                self._excuse(error, "OffsetCommit")
            return
        for _, offset in fetched_offsets(self, call, body, self._topic):
            if offset is None:
                return
            self._group.fetched(self._topic, 0, offset, call.context[1])

    def _excuse(self, error: int, what: str) -> None:
        if self.strict or error not in MACHINE:
            raise Violation(f"{self.name}: {ErrorCode(error).name} for {what}")
        self.idle(0.1)


def offset_fetch(group: str, topic: str, partitions: list[int], began: int, *, stable: bool = False) -> Call:
    fields = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": partitions}],
        "groups": [
            {"group_id": group, "member_epoch": -1, "topics": [{"name": topic, "partition_indexes": partitions}]}
        ],
        "require_stable": stable,
    }
    return Call(ApiKey.OFFSET_FETCH, fields, ("offsets", began))


def fetched_offsets(client: Any, call: Call, body: Any, topic: str) -> list[tuple[int, int | None]]:
    """(partition, committed offset), or a single None if the broker could not say."""
    error = getattr(body, "error_code", 0)
    committed: list[tuple[int, int | None]] = []
    for entry in body.topics if not error else ():
        for data in entry.partitions:
            if data.error_code:
                error = data.error_code
            committed.append((data.partition_index, data.committed_offset))
    if error:
        client._excuse(error, "OffsetFetch")
        client.idle(0.1)
        return [(0, None)]
    return committed
