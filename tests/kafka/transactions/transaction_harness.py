"""A real coordinator on real logs and a real SQLite catalogue. The test moves the time and runs the steps of every thread."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.groups import GroupCoordinator
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.transactions.coordinator import TransactionCoordinator
from broker.kafka.transactions.transaction import Claim, Partition, Phase, State
from broker.metadata.sqlite import SqliteCatalogue
from broker.metadata.sqlite_database import SqliteDatabase
from broker.runtime.timers import Timer
from broker.storage.log.log import Log
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from tests.storage.helpers import Storage, append, records_in
from tests.storage.log.test_transactions import committed

NOBODY = Committer("", None, -1)
X = "x"


class Answer:
    """The answer to a request, which must come exactly once."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    def __call__(self, *values: Any) -> None:
        self.given.append(values)

    @property
    def is_awaited(self) -> bool:
        return not self.given

    @property
    def error(self) -> ErrorCode:
        ((error, *_),) = self.given
        return ErrorCode(error)

    @property
    def claim(self) -> Claim:
        ((error, producer_id, epoch),) = self.given
        assert error == ErrorCode.none
        return Claim(producer_id, epoch)


class Died(BaseException):
    """The process has died."""


class Dying:
    """A connection on which the process dies after ``left`` statements."""

    def __init__(self, connection: Any, left: int) -> None:
        self._connection = connection
        self._left = left

    def execute(self, *args: Any) -> Any:
        if not self._left:
            raise Died
        self._left -= 1
        return self._connection.execute(*args)


class FailingDatabase(SqliteDatabase):
    """A database that fails, or in which the process dies, when the test says so."""

    fails = False
    dies_after: int | None = None

    def write(self, change: Callable[[Any], Any]) -> Any:
        if self.fails:
            raise StorageError("no space left on device")
        left = self.dies_after
        return super().write(change if left is None else lambda connection: change(Dying(connection, left)))


class TransactionHarness:
    def __init__(self, directory: Path, topics: dict[str, int] | None = None, **settings: Any) -> None:
        directory.mkdir(exist_ok=True)
        self.config = BrokerConfig(**{"group_initial_rebalance_delay_ms": 0} | settings)
        self.storage = Storage(directory)
        for topic, partitions in (topics or {"t": 2, "in": 1}).items():
            self.storage.create(topic, partitions)
        self._open()

    def _open(self) -> None:
        storage = self.storage
        self.clock = storage.clock
        self.timer = Timer(storage.clock)
        path = f"{storage.directory}/catalogue.sqlite"
        self.database = FailingDatabase(path)
        self.catalogue = SqliteCatalogue(path, self.database)
        logs = storage.manager
        self.groups = GroupCoordinator(self.clock, self.timer, self.catalogue, self.config)
        self.transactions = TransactionCoordinator(
            self.clock, self.timer, self.catalogue, self.config, logs, self.groups
        )
        logs.on_topic_deleted += [self.groups.on_topic_deleted, self.transactions.on_topic_deleted]
        self.groups.open(lambda topic: logs.topic(topic) is not None)
        self.transactions.open()

    def crash(self) -> None:
        """Restart as after kill -9: the threads' pending work is lost."""
        self.catalogue.close()
        self.storage.crash()
        self._open()

    def restart(self) -> None:
        self.transactions.shut_down()
        self.groups.close()
        self.catalogue.close()
        self.storage.restart()
        self._open()

    def close(self) -> None:
        self.catalogue.close()
        self.storage.kill()

    # Turns ------------------------------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Run one step of one thread. False if there is nothing to do."""
        return (
            self.groups.writer.step(0)
            or self.transactions.markers.step(0)
            or self.storage.manager.flusher.threads[0].step(0)
        )

    def settle(self) -> None:
        while self.turn():
            pass

    def settle_until_death(self, operations: int) -> bool:
        """Settle, and die at the disk operation after so many; then start anew and settle. False if there were not more."""
        left = iter(range(operations))

        def die(operation: str, path: str) -> None:
            if next(left, None) is None:
                raise Died

        self.storage.disk.before = die
        try:
            self.settle()
            died = False
        except Died:
            died = True
        self.storage.disk.before = lambda operation, path: None
        self.crash()
        self.settle()
        return died

    def wait(self, seconds: float) -> None:
        """Let time pass, and run the timer and the threads."""
        end = self.clock.now_s + seconds
        self.settle()
        while (deadline := self.timer.next_deadline()) is not None and deadline <= end:
            self.clock.sleep_ms(max(0, round((deadline - self.clock.now_s) * 1000)))
            self.clock.now_s = max(self.clock.now_s, deadline)
            self.timer.step(0)
            self.settle()
        self.clock.sleep_ms(max(0, round((end - self.clock.now_s) * 1000)))

    # Asking -----------------------------------------------------------------------------------------------------------

    def ask(self, request: Callable[..., None], *args: Any) -> Answer:
        answer = Answer()
        request(*args, answer)
        return answer

    def init(self, claim: Claim | None = None, *, name: str = X, timeout_ms: int = 60_000) -> Claim:
        """Ask again until the id is given, as clients do."""
        for _ in range(3):
            answer = self.ask(self.transactions.init, name, timeout_ms, claim)
            self.settle()
            if answer.error != ErrorCode.concurrent_transactions:
                break
        return answer.claim

    def add(self, claim: Claim, *partitions: Partition, name: str = X) -> ErrorCode:
        answer = self.ask(self.transactions.add_partitions, name, claim, partitions)
        self.settle()
        return answer.error

    def write(self, claim: Claim, partition: Partition, value: bytes) -> int:
        """Append a batch of the transaction."""
        log = self.log(*partition)
        known = log.producers.get(claim.producer_id)
        sequence = known.next_sequence if known is not None and known.epoch == claim.epoch else 0
        producer = (claim.producer_id, claim.epoch, sequence)
        return append(log, value, producer=producer, attributes=TRANSACTIONAL).base_offset

    def commit_offset(
        self, claim: Claim, partition: Partition, offset: int, *, group: str = "g", name: str = X
    ) -> ErrorCode:
        """Send AddOffsetsToTxn and TxnOffsetCommit."""
        added = self.ask(self.transactions.add_group, name, claim, group)
        self.settle()
        if added.error:
            return added.error
        answer = self.stage_offset(claim, partition, offset, group=group, name=name)
        self.settle()
        return answer.error

    def stage_offset(
        self, claim: Claim, partition: Partition, offset: int, *, group: str = "g", name: str = X
    ) -> Answer:
        offsets = {partition: CommittedOffset(offset, -1, "", self.clock.time_ms())}
        return self.ask(self.transactions.commit_offsets, name, claim, group, NOBODY, offsets)

    def end(self, claim: Claim, commit: bool, *, name: str = X) -> ErrorCode:
        answer = self.ask(self.transactions.end, name, claim, commit)
        self.settle()
        return answer.error

    # Seeing -----------------------------------------------------------------------------------------------------------

    def log(self, topic: str = "t", partition: int = 0) -> Log:
        return self.storage.log(topic, partition)

    def state(self, name: str = X) -> State:
        error, state = self.transactions.describe(name)
        assert state is not None, error
        return state

    def phase(self, name: str = X) -> Phase:
        return self.state(name).phase

    def catalogue_phase(self, name: str = X) -> str:
        """The durable phase."""
        (phase,) = [row.phase for row in self.catalogue.load_transactions() if row.transactional_id == name]
        return phase

    def seen(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        """The values that a read_committed reader sees."""
        return committed(self.log(topic, partition))

    def everything(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        log = self.log(topic, partition)
        read = log.read(log.log_start_offset, 1 << 30)
        data = b"".join(region.file.pread(region.size, region.offset) for region in read.regions)
        return [record.value for record in records_in(data) if len(record.value or b"") != 6]  # no markers

    def committed_offset(self, partition: Partition = ("in", 0), group: str = "g") -> int | None:
        """The offset in the answer to a client, after checking that the catalogue has the same."""
        topic, number = partition
        error, ((_, ((_, committed),)),) = self.groups.offsets.fetch(group, [(topic, [number])])
        assert error == ErrorCode.none
        offset = None if committed is None else committed.offset
        stored = {(row.group, row.topic, row.partition): row.offset for row in self.catalogue.load_offsets()}
        assert stored.get((group, topic, number)) == offset
        return offset

    def is_unstable(self, partition: Partition = ("in", 0), group: str = "g") -> bool:
        return bool(self.groups.offsets.unstable(group, [(partition[0], [partition[1]])]))
