"""The records of share groups without a broker: real logs, a clock turned by hand, a catalogue that can fail."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

from broker.errors import StorageError
from broker.kafka.groups.values import CoordinatorMemory
from broker.kafka.share.partition_entry import Link, PartitionEntry
from broker.kafka.share.reading import Taken, Wanted, take
from broker.kafka.share.share_partition import ShareSettings
from broker.kafka.share.share_service import ShareService
from broker.kafka.share.share_sessions import ShareSession
from broker.metadata.writer import CatalogueWriter
from broker.runtime.timers import Timer
from broker.storage.log.log import Log
from protocol.kafka.messages.share_fetch import AcknowledgementBatch
from protocol.kafka.records.records import build_batch
from tests.sim.catalogue import SimCatalogue, Tables
from tests.storage.helpers import Storage

EARLIEST = ShareSettings(auto_offset_reset="earliest", record_lock_duration_ms=10_000)


class Catalogue:
    """Fails while ``broken``."""

    def __init__(self, tables: Tables) -> None:
        self.inner = SimCatalogue(None, tables)
        self.broken = False
        self.writes: list[list[tuple[str, str, bytes | None]]] = []

    def alter_documents(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        if self.broken:
            raise StorageError("the disk is full")
        changes = list(changes)
        self.writes.append(changes)
        self.inner.alter_documents(changes)

    def together(self, changes: Iterable[Callable[[Any], None]]) -> None:
        for change in changes:
            change(self)

    def load_documents(self, kind: str, prefix: str = "") -> Iterable[tuple[str, bytes]]:
        return self.inner.load_documents(kind, prefix)


class Waiting:
    """A session's fetch that waits."""

    def __init__(self) -> None:
        self.woken: list[PartitionEntry] = []
        self.given_up = 0

    def wake(self, entry: PartitionEntry) -> None:
        self.woken.append(entry)

    def give_up_soon(self) -> None:
        self.given_up += 1


class Connected:
    closed = False


class Stage:
    def __init__(self, directory: Path, partitions: int = 2) -> None:
        self.storage = Storage(directory)
        self.logs = self.storage.manager
        self.clock = self.storage.clock
        self.timer = Timer(self.clock)
        self.tables = Tables()
        self.settings = EARLIEST
        self.unknown_groups: set[str] = set()
        self.logs.create_topic("topic", partitions, {})
        self.logs.on_topic_gone.append(lambda info: self.share.topic_deleted(info.topic_id))
        self.start()

    def start(self) -> None:
        """Restart as after kill -9, with the catalogue and the logs."""
        self.catalogue = Catalogue(self.tables)
        self.memory = CoordinatorMemory(10_000)
        self.writer = CatalogueWriter(self.catalogue)  # type: ignore[arg-type]
        self.share = ShareService(
            self.logs,
            self.clock,
            self.timer,
            self.catalogue,  # type: ignore[arg-type]
            self.writer,
            lambda _: self.settings,
            has_memory_for=lambda size: size <= self.memory.free_bytes,
            memory=self.memory,
            is_group=lambda group_id: group_id not in self.unknown_groups,
        )
        self.share.open()

    @property
    def topic_id(self) -> UUID:
        info = self.logs.topic("topic")
        assert info is not None
        return info.topic_id

    def log(self, partition: int = 0) -> Log:
        log = self.logs.get("topic", partition)
        assert log is not None
        return log

    def write(self, records: int = 1, partition: int = 0) -> None:
        self.log(partition).append(memoryview(build_batch([(None, b"value", [], 1_000)] * records)), now_ms=1_000)

    def run(self) -> None:
        """Run the catalogue writer until it has nothing to do."""
        self.writer.flush()

    def wait(self, ms: int) -> None:
        for _ in range(ms // 100):
            self.clock.sleep_ms(100)
            self.timer.step(0)
            self.run()

    def member(self, name: str = "m", *partitions: int, group: str = "group") -> "StageMember":
        return StageMember(self, name, partitions or (0,), group)


class StageMember:
    """A member with an open session."""

    def __init__(self, stage: Stage, name: str, partitions: Iterable[int], group: str) -> None:
        self.stage, self.name, self.group = stage, name, group
        self.connection: Any = Connected()
        self.session: ShareSession = stage.share.open_session(group, name, self.connection)
        for partition in partitions:
            assert stage.share.add(self.session, (stage.topic_id.bytes, partition))
        failures = stage.share.begin(self.session.unbegun, stage.settings)
        assert not failures
        self.session.unbegun.clear()
        self.waiting = Waiting()

    def link(self, partition: int = 0) -> Link:
        return self.session.links[self.stage.topic_id.bytes, partition]

    def entry(self, partition: int = 0) -> PartitionEntry:
        entry = self.stage.share.entry(self.group, (self.stage.topic_id.bytes, partition))
        assert entry is not None
        return entry

    def fetch(self, most: int = 500) -> list[tuple[int, int, int]]:
        """Take from the first share partition in the session's queue that has records."""
        wanted = Wanted(self.name, self.stage.settings, 1 << 20, most, 0, 1)
        for _ in range(len(self.session.ready)):
            link = self.session.ready.popleft()
            taken: Taken | None = take(link, wanted, self.stage.clock.monotonic(), first=True, may_block=True)
            link.entry.wake_next()
            if taken is not None:
                return [tuple(records) for records in taken.acquired]  # type: ignore[misc]
        return []

    def wait(self) -> None:
        """Wait for records."""
        self.session.waiter = self.waiting

    def woken(self) -> bool:
        """Stop waiting."""
        woken = bool(self.waiting.woken)
        self.waiting.woken.clear()
        if woken:
            self.session.waiter = None
        return woken

    def acknowledge(self, first: int, last: int, *types: int, partition: int = 0) -> list[StorageError | None]:
        """A list that gets an element when it is durable."""
        answers: list[StorageError | None] = []
        batch = AcknowledgementBatch(first, last, bytes(types or (1,)))
        assert self.entry(partition).acknowledge(self.name, [batch], answers.append, may_renew=True)
        return answers
