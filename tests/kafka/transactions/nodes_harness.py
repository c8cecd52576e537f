"""Two nodes with real coordinators, logs and catalogue in one thread. What they ask each other goes through ``Road``s, on
which the test lets requests arrive, get answered, get lost, or arrive late."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from broker.cluster.nodes import NODES, Nodes, coordinator_of, owner_of
from broker.config import BrokerConfig
from broker.errors import Refusal
from broker.kafka.groups import GroupCoordinator
from broker.kafka.transactions.coordinator import TransactionCoordinator
from broker.kafka.transactions.marker_writer import Sender
from broker.kafka.transactions.neighbours import UNKNOWN, Answer, Decision, Question
from broker.kafka.transactions.transaction import Claim
from broker.kafka.transactions.version_2 import FIRST_VERSION, FirstBatches
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.timers import Timer
from broker.storage.config import StorageConfig
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from tests.storage.helpers import CountingEntropy, FaultyDisk, HandClock, append

COUNT = 2


def name_at(place: int, stem: str) -> str:
    return next(name for number in range(100) if coordinator_of(name := f"{stem}-{number}", COUNT) == place)


class _Settled:
    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        return 0, None

    def settle(self, timeout_s: float, node: int) -> bool:
        return True


@attrs.define(eq=False)
class Request:
    """``answer``: None until the other node has answered."""

    item: Question | Decision
    connection: int
    epoch: int
    answer: Any = None
    is_handled: bool = False


class Road:
    """From one node to another, in the place of a ``Neighbour``: one request at a time, and a new connection after a loss."""

    def __init__(self, origin: "OneNode", target: Callable[[], "OneNode"]) -> None:
        self.origin = origin
        self.target = target
        self.waiting: list[Question | Decision] = []
        self.awaited: Request | None = None
        self.late: list[Request] = []  # nobody waits for their answers any more
        self.connection = 0

    def submit(self, item: Question | Decision) -> None:
        self.waiting.append(item)

    def shut_down(self) -> None: ...

    def send(self) -> None:
        self.awaited = Request(self.waiting.pop(0), self.connection, self.origin.nodes.epoch)

    def handle(self, request: Request) -> None:
        request.is_handled = True
        self.target().handle(self.origin.place, request)

    def answer(self) -> None:
        request, self.awaited = self.awaited, None
        assert request is not None
        item, answer = request.item, request.answer
        if isinstance(item, Decision):
            item.done({key: error for key, error in answer.items() if error})
        else:
            item.done(answer)

    def lose(self) -> None:
        request, self.awaited = self.awaited, None
        assert request is not None
        self.connection += 1
        self.late.append(request)
        if isinstance(request.item, Decision):
            request.item.done(dict.fromkeys(request.item.participants, UNKNOWN))
        else:
            request.item.done(None)


class OneNode:
    def __init__(self, cluster: "TwoNodes", place: int) -> None:
        self.cluster = cluster
        self.place = place
        self.disk = FaultyDisk()
        self.open()

    def open(self) -> None:
        directory = self.cluster.directory
        (directory / NODES / str(self.place)).mkdir(parents=True, exist_ok=True)
        self.nodes = Nodes(self.place, COUNT, 1, str(directory), self.disk, _Settled())
        self.catalogue = SqliteCatalogue(f"{directory}/catalogue.sqlite")
        self.clock = self.cluster.clock
        self.timer = Timer(self.clock)
        config = StorageConfig(data_dir=self.nodes.directory_of("", self._own_number()))
        self.logs = LogManager(
            self.disk, self.clock, CountingEntropy(), config, self.catalogue, lambda: 0, None, self.nodes
        )
        self.logs.open()
        settings = BrokerConfig(group_initial_rebalance_delay_ms=0)
        self.groups = GroupCoordinator(self.clock, self.timer, self.catalogue, settings, nodes=self.nodes)
        self.transactions = TransactionCoordinator(
            self.clock, self.timer, self.catalogue, settings, self.logs, self.groups
        )
        self.logs.on_topic_deleted += [self.groups.on_topic_deleted, self.transactions.on_topic_deleted]
        assert self.transactions.neighbours is not None
        self.road = Road(self, lambda: self.cluster.nodes[1 - self.place])
        self.road.connection = self.cluster.next_connection()
        self.transactions.neighbours.by_place = {1 - self.place: self.road}  # type: ignore[dict-item]
        self.groups.open(lambda topic: self.logs.topic(topic) is not None)
        self.transactions.open()

    def _own_number(self) -> int:
        return next(number for number in range(COUNT) if owner_of("", number, COUNT) == self.place)

    def crash(self) -> None:
        """As kill -9, and a start: nothing that threads had to do is done, and all connections are gone."""
        other = self.cluster.nodes[1 - self.place].road
        self.kill()
        self.open()
        other.late.clear()
        if other.awaited is not None:
            other.lose()
            other.late.clear()

    def kill(self) -> None:
        self.logs.files.close_all()
        self.logs._release_directory()
        self.logs._opened = False
        self.catalogue.close()

    def turn(self) -> bool:
        return self.groups.writer.step(0) or self.transactions.markers.step(0) or self.logs.flusher.threads[0].step(0)

    def handle(self, origin: int, request: Request) -> None:
        """As the handlers of AddPartitionsToTxn and WriteTxnMarkers do."""
        item = request.item

        def reply(answer: Answer) -> None:
            request.answer = answer

        if isinstance(item, Decision):
            sender = Sender(f"node-{1 + origin}", request.epoch, request.connection)
            claim = Claim(item.producer_id, item.epoch)
            self.transactions.carry_out(sender, claim, item.commit, frozenset(item.participants), reply)
        else:
            self.transactions._ask(attrs.evolve(item, done=reply))

    def log(self, topic: str, partition: int) -> Log:
        found = self.logs.get(topic, partition)
        assert found is not None
        return found

    def write(
        self, name: str, claim: Claim, topic: str, partition: int, value: bytes, sequence: int, version: int
    ) -> "Written":
        """As Produce does."""
        written = Written()
        log, elsewhere, first = self.log(topic, partition), self.transactions.elsewhere, FirstBatches()
        assert elsewhere is not None

        def go_on() -> None:
            error = first.errors.get(0) or self.transactions.may_write(name, claim.producer_id)
            if not error:
                try:
                    producer = (claim.producer_id, claim.epoch, sequence)
                    append(log, value, producer=producer, attributes=TRANSACTIONAL)
                except Refusal:
                    error = self.transactions.why_refused(name, claim)
            written.error = ErrorCode(error)

        allowed = log.transactions.allows(claim.producer_id, claim.epoch)
        if elsewhere.has(name):
            if allowed and elsewhere.knows(name, claim.producer_id):
                go_on()
            else:
                elsewhere.ask(name, version, {0: (claim, log)}, first, go_on)
        elif allowed or version < FIRST_VERSION:
            go_on()
        else:
            first.add(self.transactions.version_2, name, {0: (claim, log)}, go_on)
        return written


class Written:
    """``error``: None while the request is parked."""

    error: ErrorCode | None = None


class TwoNodes:
    def __init__(self, directory: Path, topic: str = "t", partitions: int = 2) -> None:
        self.directory = directory
        self.clock = HandClock()
        self._connections = 0
        self.nodes: list[OneNode] = []
        for place in range(COUNT):
            self.nodes.append(OneNode(self, place))
        self.nodes[0].logs.create_topic(topic, partitions, {})
        self.nodes[1].logs.catch_up()

    def next_connection(self) -> int:
        """Later connections have larger numbers, whoever opens them."""
        self._connections += 1000
        return self._connections

    def close(self) -> None:
        for node in self.nodes:
            node.kill()

    def owner(self, topic: str, partition: int) -> OneNode:
        return self.nodes[owner_of(topic, partition, COUNT)]

    def roads(self) -> list[Road]:
        return [node.road for node in self.nodes]

    def run_timers(self) -> None:
        """Let a second pass."""
        self.clock.sleep_ms(1000)
        for node in self.nodes:
            node.timer.step(0)

    def settle(self) -> None:
        """Everything that needs no loss and no time."""
        busy = True
        while busy:
            busy = False
            for node in self.nodes:
                while node.turn():
                    busy = True
            for road in self.roads():
                if road.awaited is None and road.waiting:
                    road.send()
                    busy = True
                if road.awaited is not None and not road.awaited.is_handled:
                    road.handle(road.awaited)
                    busy = True
                if road.awaited is not None and road.awaited.answer is not None:
                    road.answer()
                    busy = True
