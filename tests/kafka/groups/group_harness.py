"""A real coordinator on a real SQLite catalogue. The test moves the time and runs the steps of the timer and the writer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.groups import GroupCoordinator
from broker.kafka.groups.offset_coordinator import Committer, Errors
from broker.kafka.groups.offsets import CommittedOffset, Offsets, Partition
from broker.kafka.groups.values import JoinRequest, SyncRequest
from broker.metadata.sqlite import SqliteCatalogue
from broker.metadata.sqlite_database import SqliteDatabase
from broker.runtime.timers import Timer
from broker.storage.config import TopicInfo
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import encode_subscription
from tests.kafka.groups.classic_group_driver import Parked

NOBODY = Committer("", None, -1)
DAY_S = 86_400.0


class TestClock:
    """Both clocks, moved by the test."""

    __test__ = False

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now * 1000)


class FillingDatabase(SqliteDatabase):
    """A database on a disk that can be full."""

    full = False
    transactions = 0

    def write(self, change: Callable[[Any], Any]) -> Any:
        if self.full:
            raise StorageError("no space left on device")
        self.transactions += 1
        return super().write(change)


class GroupHarness:
    def __init__(self, directory: Path, **settings: Any) -> None:
        self.config = BrokerConfig(**{"group_initial_rebalance_delay_ms": 0} | settings)  # groups begin at once
        self.clock = TestClock()
        self.topics = {"orders", "payments"}
        # The consumer groups' view of topics.
        self.infos: dict[str, TopicInfo] = {}
        self._directory = directory
        self._ids_made: set[UUID] = set()
        self._ids = 0
        self._open()

    def _open(self) -> None:
        self.timer = Timer(self.clock)
        path = str(self._directory / "catalogue.sqlite")
        self.database = FillingDatabase(path)
        self.catalogue = SqliteCatalogue(path, self.database)
        self.groups = GroupCoordinator(
            self.clock, self.timer, self.catalogue, self.config, self.infos.get, lambda seconds: None
        )
        self.groups.topics.load(self.infos.values())
        self.groups.open(self.topics.__contains__)

    def restart(self, *, clean: bool = True) -> None:
        """Stop and start. If not ``clean``, everything unwritten is lost."""
        if clean:
            self.groups.close()
        self.catalogue.close()
        self._open()

    def write(self) -> None:
        """Run the writer, and the thread of assignments, until they have nothing to do."""
        while self.groups.writer.step(0) or self.groups.worker.step(0):
            pass

    def wait(self, seconds: float) -> None:
        """Let time pass, and run the timer at each deadline and the writer after it."""
        end = self.clock.now + seconds
        while (deadline := self.timer.next_deadline()) is not None and deadline <= end:
            self.clock.now = max(self.clock.now, deadline)
            self.timer.step(0)
            self.write()
        self.clock.now = end

    # Topics, as consumer groups see them ----------------------------------------------------------------------------

    def topic(self, name: str, partitions: int) -> None:
        """Make the topic, or let it grow."""
        before = self.infos.get(name)
        topic_id = UUID(int=1 + len(self._ids_made)) if before is None else before.topic_id
        self._ids_made.add(topic_id)
        self.infos[name] = TopicInfo(name, topic_id, partitions, {})
        self.topics.add(name)
        self.groups.topics.changed(name)
        self.wait(1)
        self.write()

    def delete_topic(self, name: str) -> None:
        del self.infos[name]
        self.topics.discard(name)
        self.groups.on_topic_deleted(name)
        self.wait(1)
        self.write()

    # Membership -----------------------------------------------------------------------------------------------------

    def join(self, group: str, member_id: str = "", **how: Any) -> Parked:
        parked = Parked()
        self._ids += 1
        request: dict[str, Any] = {
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", bytes(encode_subscription(["orders"]))),),
            "new_member_id": f"client-{self._ids}",
        }
        self.groups.join(group, JoinRequest(**request | how), parked)
        return parked

    def sync(self, group: str, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> Parked:
        parked = Parked()
        self.groups.sync(group, SyncRequest(member_id, None, generation, assignments=assignments or {}), parked)
        return parked

    def stable(self, group: str, **how: Any) -> str:
        """Make a stable group of generation 1 with one member. Returns the member id."""
        member_id: str = self.join(group, self.join(group, **how).member_id, **how).member_id
        sync = self.sync(group, member_id, 1, {member_id: b"all"})
        self.write()
        assert sync.error == ErrorCode.none
        return member_id

    # Offsets --------------------------------------------------------------------------------------------------------

    def commit(
        self, group: str, offsets: dict[Partition, int], committer: Committer = NOBODY, **more: Any
    ) -> "CommitAnswer":
        """The answer, once the writer has run."""
        now_ms = self.clock.time_ms()
        values = {"leader_epoch": -1, "metadata": "", "commit_ms": now_ms} | more
        rows: Offsets = {key: CommittedOffset(offset=offset, **values) for key, offset in offsets.items()}
        answer = CommitAnswer()
        self.groups.offsets.commit(group, committer, rows, answer)
        return answer

    def committed(self, group: str) -> dict[Partition, int]:
        """The offsets in the answer to a client that asks for all of them."""
        error, topics = self.groups.offsets.fetch(group, None)
        assert error == ErrorCode.none
        return {
            (topic, index): committed.offset
            for topic, partitions in topics
            for index, committed in partitions
            if committed
        }

    def stored(self, group: str) -> dict[Partition, int]:
        """The offsets in the catalogue."""
        return {(row.topic, row.partition): row.offset for row in self.catalogue.load_offsets() if row.group == group}

    def listed(self) -> dict[str, str]:
        _, groups = self.groups.list()
        return {group.group_id: group.state for group in groups}


class CommitAnswer:
    def __init__(self) -> None:
        self.answers: list[Errors] = []

    def __call__(self, errors: Errors) -> None:
        self.answers.append(errors)

    @property
    def is_waiting(self) -> bool:
        return not self.answers

    @property
    def errors(self) -> Errors:
        (errors,) = self.answers
        return errors

    @property
    def error(self) -> ErrorCode:
        """The error code, if it is the same for all partitions."""
        (error,) = set(self.errors.values())
        return error
