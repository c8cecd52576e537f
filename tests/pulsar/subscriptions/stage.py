"""A topic and its subscriptions, deterministic: the log is real, the catalogue is in memory and fails on demand, the clock is set
by hand, and every thread takes a step when the test says so."""

from collections.abc import Callable, Sequence
from typing import Any

from broker.errors import StorageError
from broker.metadata.writer import CatalogueWriter
from broker.network.service import Part, Peer
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.dispatch.dispatcher import DispatchSettings, SubType
from broker.pulsar.dispatch.rate_limit import DispatchRate, RateLimit
from broker.pulsar.entries.cache import EntryCache
from broker.pulsar.entries.reader import EntryReader, Readers
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.acknowledging import Acknowledging
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.subscriptions.subscriptions import Bounds, Join, Subscriptions
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.topic import Topic, TopicRecord
from broker.runtime.disk import FileRegion
from broker.runtime.timers import Timer
from broker.storage.log.log import Log
from protocol.pulsar.acks import Ack, Acked
from protocol.pulsar.deliveries import read_delivery
from protocol.pulsar.frames import command_type, read_command, whole_frames
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandMessage
from tests.pulsar.entries.messages import append_entry, batch_of, message
from tests.sim.catalogue import SimCatalogue, Tables
from tests.storage.helpers import HandClock, Storage

LEDGER = 7


class StageLimits:
    """For all topics."""

    def __init__(self) -> None:
        self.of_all = Bounds()
        self.dispatch = DispatchSettings()
        self.rates: list[DispatchRate] = []

    def bounds(self, topic: Topic) -> Bounds:
        return self.of_all

    def settings(self, topic: Topic) -> DispatchSettings:
        return self.dispatch

    def delays(self, topic: Topic) -> bool:
        return True

    def rate_limit(self, topic: Topic, subscription: str) -> RateLimit:
        return RateLimit(self.rates)


class FaultyCatalogue(SimCatalogue):
    """``broken``: no change can be made."""

    broken = False

    def _begin(self) -> None:
        if self.broken:
            raise StorageError("The catalogue could not be written.")
        super()._begin()


class Link:
    """A connection as services see it. What is pushed is kept; ``taken`` says whether the client reads."""

    def __init__(self) -> None:
        self.peer = Peer("127.0.0.1", 1, "pulsar", ("127.0.0.1", 6650))
        self.principal: Any = None
        self.closed = False
        self.writable = True
        self.frames: list[bytes] = []
        self.bytes_queued = 0
        self.reads = True

    @property
    def outgoing_bytes(self) -> int:
        return 0 if self.reads else self.bytes_queued


class Outbox:
    """Everything takes effect at once, as on the connection's own processor; ``later``: only when ``run`` is called."""

    def __init__(self) -> None:
        self.later = False
        self._queue: list[Callable[[], None]] = []

    def push(self, link: Any, parts: Sequence[Part]) -> None:
        self._do(lambda: self._push(link, parts))

    def call(self, link: Any, work: Callable[[], None]) -> None:
        self._do(lambda: None if link.closed else work())

    def run(self) -> None:
        while self._queue:
            self._queue.pop(0)()

    def _do(self, work: Callable[[], None]) -> None:
        if self.later:
            self._queue.append(work)
        else:
            work()

    def _push(self, link: Link, parts: Sequence[Part]) -> None:
        if link.closed:
            return
        data = b"".join(
            part.file.pread(part.size, part.offset) if isinstance(part, FileRegion) else bytes(part) for part in parts
        )
        frames, size = whole_frames(data)
        assert size == len(data)
        link.frames += [bytes(frame) for frame in frames]
        link.bytes_queued += len(data)


class Client:
    """A client's connection with its consumers."""

    def __init__(self, stage: "Stage", version: str = "Pulsar-Java") -> None:
        self._stage = stage
        self.link = Link()
        self.outbox = Outbox()
        self.state = PulsarConnection(self.link, self.outbox)  # type: ignore[arg-type]
        self.state.client_version = version

    def subscribe(
        self, name: str = "s", kind: int = SubType.Exclusive, start: int | None = 0, **fields: Any
    ) -> "Member":
        number = len(self.state.consumers)
        join = Join(
            subscription=name,
            kind=kind,
            consumer_id=number,
            consumer_name=fields.pop("consumer_name", f"c{number}"),
            **fields,
        )
        connected = self._stage.subscriptions.join(self._stage.topic, self.state, join, start)
        self.state.add_consumer(connected.id, connected)
        return Member(self._stage, self, connected)

    def disconnect(self) -> None:
        """As the processor does when the connection is closed."""
        self.link.closed = True
        for consumer in self.state.close()[1]:
            consumer.disconnected()

    def drained(self) -> None:
        """The client has read all that was sent."""
        self.link.reads = True
        self.link.bytes_queued = 0
        if not self.link.writable:
            self.link.writable = True
            for consumer in list(self.state.consumers.values()):
                consumer.writable()

    def messages(self, consumer_id: int = 0) -> list[CommandMessage]:
        """What has come, and is not asked for again."""
        found, rest = [], []
        for frame in self.link.frames:
            if command_type(frame) == BaseCommand.Type.MESSAGE:
                command = read_delivery(frame).command
                if command.consumer_id == consumer_id:
                    found.append(command)
                    continue
            rest.append(frame)
        self.link.frames = rest
        return found

    def commands(self) -> list[tuple[int, Any]]:
        """What has come besides messages."""
        found = [read_command(one) for one in self.link.frames if command_type(one) != BaseCommand.Type.MESSAGE]
        self.link.frames = [one for one in self.link.frames if command_type(one) == BaseCommand.Type.MESSAGE]
        return found


class Member:
    """A consumer."""

    def __init__(self, stage: "Stage", client: Client, connected: ConnectedConsumer) -> None:
        self._stage = stage
        self.client = client
        self.connected = connected

    @property
    def subscription(self) -> Subscription:
        subscription = self.connected.subscription
        assert isinstance(subscription, Subscription)
        return subscription

    def flow(self, permits: int) -> None:
        self.subscription.flow(self.connected, permits)

    def offsets(self) -> list[int]:
        """Of the messages that have come since the last call."""
        return [command.message_id.entryId for command in self.client.messages(self.connected.id)]

    def ack(self, *ids: int | tuple[int, tuple[int, ...]], cumulative: bool = False, ledger: int = LEDGER) -> Any:
        """The error with which it is answered; "waiting" if it is not answered yet."""
        whole = [one for one in ids if isinstance(one, int)]
        if not cumulative and len(whole) == len(ids):  # as the codec represents it
            ack = Ack(self.connected.id, cumulative, [], 1, -1, ledger, whole)
        else:
            acked = [Acked(ledger, one, ()) if isinstance(one, int) else Acked(ledger, *one) for one in ids]
            ack = Ack(self.connected.id, cumulative, acked, 1, -1)
        answers: list[Any] = []
        Acknowledging(self.subscription, self.connected, ack, answers.append).start()
        return answers[0] if answers else "waiting"

    def leave(self) -> None:
        self.client.state.remove_consumer(self.connected.id, self.connected)
        self.subscription.leave(self.connected)


class Stage:
    def __init__(self, storage: Storage, cache_bytes: int = 4 << 20) -> None:
        self.storage = storage
        self.clock = HandClock()
        self.timer = Timer(self.clock)
        self.tables = Tables()
        self.catalogue = FaultyCatalogue(None, self.tables)
        self.errors: list[Any] = []
        self.log = storage.create()
        self._cache_bytes = cache_bytes
        self.limits = StageLimits()
        self.start()

    def start(self) -> None:
        """A broker begins with what the catalogue and the log have."""
        self.readers = Readers(self.clock, 1)
        self.cache = EntryCache(self.clock, self.timer, self._cache_bytes, self.readers.submit)
        self.subscriptions = Subscriptions(self.clock, self.timer, self.catalogue, self.limits)
        self.subscriptions.open({self.log.topic_id})
        self.topic = self.load(self.log)

    def load(self, log: Log) -> Topic:
        reader = EntryReader(log, self.cache, self.readers)
        topic = Topic(log, reader, TopicRecord(LEDGER), name=parse_topic("t"))
        self.subscriptions.load(topic)
        return topic

    @property
    def writer(self) -> CatalogueWriter:
        return self.subscriptions.store.writer

    # -- producing --------------------------------------------------------------------------------------------------------

    def produce(self, count: int = 1, size: int = 1) -> list[int]:
        """So many messages, each an entry. Their offsets."""
        return [self.append(message(b"x" * size)).offset for _ in range(count)]

    def produce_batch(self, messages: int) -> int:
        return self.append(batch_of(*[b"x"] * messages), messages).offset

    def append(self, stored: bytes, messages: int = 1) -> Entry:
        self.topic.tail.begin_append()
        try:
            entry = append_entry(self.log, stored, messages)
            self.topic.reader.appended([entry])
        finally:
            self.topic.tail.end_append()
        return entry

    # -- threads ----------------------------------------------------------------------------------------------------------

    def client(self, version: str = "Pulsar-Java") -> Client:
        return Client(self, version)

    def run(self) -> None:
        """Until no thread has anything to do."""
        while self.run_waker() or self.run_reader() or self.run_writer():
            pass

    def run_waker(self) -> bool:
        return self.subscriptions.waker.step(0)

    def run_reader(self) -> bool:
        return any(body.step(0) for body in self.readers.bodies)

    def run_writer(self) -> bool:
        return self.writer.step(0)

    def wait(self, ms: int) -> None:
        """Time passes, and everything that is due happens."""
        self.clock.sleep_ms(ms)
        while self.timer.step(0):
            self.run()
        self.run()

    def stop(self) -> None:
        self.subscriptions.close()

    @property
    def stored(self) -> list[str]:
        """The subscriptions in the catalogue."""
        return sorted(row.subscription for row in self.tables.cursors.values())
