"""The cost of single pieces of work, each alone on one thread: us of its CPU, the best of several rounds.

``log``: to append a batch, and to read. ``compaction``: a record of a log that is cleaned for the first time. ``pulsar``: what a
SEND, an ACK and a delivery need, and the dispatchers of many consumers (an entry is read from a list, assigned and
acknowledged). ``security``: whether ACLs allow it, and a quota's decision. ``share``: to acquire and acknowledge records.
"""

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broker.client import Broker
from broker.kafka.share.reading import Acquisition
from broker.kafka.share.share_partition import SharePartition, ShareSettings
from broker.metadata.catalogue import AclRow
from broker.pulsar.dispatch.by_key import KeyShared
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, Deliver, DispatchSettings, Effect, Now, Read
from broker.pulsar.dispatch.round_robin import Shared
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor
from broker.runtime.clock import SystemClock
from broker.security.acl import Operation, PatternType, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.client_quotas import DEFAULT, ClientQuotas, Entity, Kind, Windows
from broker.security.principal import Principal
from broker.storage.upkeep.cleaner import Cleaning, cleanable
from protocol.kafka.messages.share_fetch import AcknowledgementBatch
from protocol.kafka.records.compression import CODEC_NAMES, LZ4, NONE, ZSTD
from protocol.kafka.records.entry import build_entry
from protocol.kafka.records.records import build_batch
from protocol.pulsar.acks import read_ack
from protocol.pulsar.deliveries import Deliveries, Receipts
from protocol.pulsar.frames import write_command
from protocol.pulsar.metadata import read_metadata
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandAck, CommandSend, MessageIdData, MessageMetadata
from protocol.pulsar.sends import UsualSends, crc_matches, read_send, write_send, write_stored_part
from tests.bench.frame import CPU, Options, Row, least_us
from tests.bench.wire import batch

_NOW_MS = 1_700_000_000_000
_FAR_MS = 10**14


def _row(options: Options, name: str, work: Callable[[], object], units: int = 1, usual: int = 20_000) -> Row:
    """The cost of one of the ``units`` that a call handles."""
    cost = least_us(work, options.count(max(1, usual // units)), 3 * options.rounds)
    return Row(name, {CPU: cost / units})


def bench_log(options: Options) -> Iterator[Row]:
    with Broker(logging_level="warning") as broker:
        logs = broker.server.kafka.logs
        logs.create_topic("bench", 4)
        sizes = (("1 x 100 B", 1, 100), ("16 KB", 16, 1000), ("1 MB", 1000, 1000))
        for number, (name, records, size) in enumerate(sizes):
            log, view = logs.partitions["bench", number], memoryview(bytearray(batch(records, size)))
            usual = min(20_000, (1 << 28) // len(view))
            now_ms = time.time_ns() // 1_000_000
            yield _row(options, f"append {name}", lambda: log.append(view, now_ms=now_ms), usual=usual)  # noqa: B023
            yield _row(options, f"read the last of {name}", lambda: log.read(log.high_watermark - 1, 1 << 20))  # noqa: B023


def _keyed(records: int, unique: int, codec: int) -> Iterator[memoryview]:
    """Batches of 100 records of about 200 bytes with ``unique`` keys, which come in an order like that of updates."""
    draw = random.Random(1)
    filler = draw.randbytes(2000).hex().encode()
    for first in range(0, records, 100):
        rows = []
        for number in range(first, first + 100):
            value = filler[(at := draw.randrange(3000)) : at + draw.randrange(160, 200)]
            rows.append((b"key-%012d" % (number * 7919 % unique), value, (), _NOW_MS + number // 10))
        yield memoryview(build_batch(rows, compression=codec))


def bench_compaction(options: Options) -> Iterator[Row]:
    records = max(1000, options.count(300_000) // 1000 * 1000)
    with Broker(logging_level="warning") as broker:
        logs = broker.server.kafka.logs
        numbers = itertools.count()

        def once(unique: int, codec: int) -> dict[str, float]:
            topic = f"bench-{next(numbers)}"
            # The least dirty ratio that only a log of more than it may have: the housekeeper leaves it to this thread.
            configs = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "1"}
            configs["min.compaction.lag.ms"] = str(_FAR_MS)
            logs.create_topic(topic, 1, configs)
            log = logs.partitions[topic, 0]
            for view in _keyed(records, unique, codec):
                log.append(view, now_ms=_NOW_MS)
            with log.lock:
                log.rolling.roll(_NOW_MS)
            plan = cleanable(log, _NOW_MS + 2 * _FAR_MS, log.log_end_offset)
            assert plan is not None
            began = time.thread_time()
            for _ in Cleaning(plan, 1 << 28, _NOW_MS).run():
                pass
            cost = time.thread_time() - began
            logs.delete_topic(topic)
            return {CPU: cost / records * 1e6}

        for share in (10, 100):
            for codec in (NONE, LZ4, ZSTD):
                name = f"{share} % unique keys, {CODEC_NAMES[codec]}"
                if options.wants(name):
                    runs = [once(records * share // 100, codec) for _ in range(options.rounds)]
                    yield Row(name, {CPU: min(run[CPU] for run in runs)})


class Loop:
    """Carries out a dispatcher's effects. What is delivered is acknowledged; then the consumer gives permits again."""

    _now = Now(1.0, 1_000)

    def __init__(self, kind: type[Shared] | type[KeyShared], entries: Sequence[Entry], consumers: int) -> None:
        self.cursor = Cursor()
        self.dispatcher = kind(self.cursor, DispatchSettings(), DelayedTracker())
        self.consumers = [Consumer(number, f"consumer-{number}") for number in range(consumers)]
        self._entries = entries
        for consumer in self.consumers:
            self.dispatcher.add(consumer, self._now)

    def run(self) -> int:
        """Deliveries."""
        dispatcher, now, permits, delivered = self.dispatcher, self._now, 1000, 0
        work: deque[Effect] = deque()
        for consumer in self.consumers:
            work += dispatcher.flow(consumer, permits, now)
        while work:
            effect = work.popleft()
            if type(effect) is Deliver:
                consumer = effect.consumer
                delivered += len(effect.deliveries)
                for delivery in effect.deliveries:
                    entry = delivery.entry
                    self.cursor.acknowledge(entry.offset, entry.messages)
                    work += dispatcher.acknowledged(consumer, entry.offset, entry.messages, True, now)
                if consumer.permits <= permits // 2:
                    work += dispatcher.flow(consumer, permits - consumer.permits, now)
            elif type(effect) is Read:
                entries = self._entries[effect.offset : effect.offset + effect.max_entries]
                if entries:
                    work += dispatcher.read_done(effect, entries, now)
        return delivered


def bench_pulsar(options: Options) -> Iterator[Row]:
    fields = {"producer_name": "standalone-0-12", "sequence_id": 123456, "publish_time": _NOW_MS}
    meta = MessageMetadata(**fields).SerializeToString()  # type: ignore[arg-type]
    stored = write_stored_part(meta, bytes(range(256)) * 4)
    frame = memoryview(bytearray(write_send(CommandSend(producer_id=1, sequence_id=123456), stored)))
    send = read_send(frame)
    usual = UsualSends(1)
    usual.learn(send, frame, read_metadata(meta))
    assert usual.read(frame, 0, len(frame)) is not None
    value = frame[send.start : send.end]
    receipts, deliveries = Receipts(1, 5), Deliveries(1, 5)
    ids = [MessageIdData(ledgerId=5, entryId=number) for number in range(1000)]
    ack = write_command(BaseCommand.Type.ACK, CommandAck(consumer_id=1, ack_type=0, message_id=ids))
    yield _row(options, "SEND of 1 KB: read", lambda: read_send(frame))
    yield _row(options, "its checksum", lambda: crc_matches(frame, send))
    yield _row(options, "its metadata", lambda: read_metadata(meta))
    yield _row(options, "all three, like one before", lambda: usual.read(frame, 0, len(frame)))
    yield _row(options, "the record batch around it", lambda: build_entry(value, 1, _NOW_MS))
    yield _row(options, "SEND_RECEIPT", lambda: receipts.receipts([(123456, 1_000_000, 0)]))
    yield _row(options, "MESSAGE: the head", lambda: deliveries.head(1_000_000, len(stored)))
    yield _row(options, "an id of an ACK of 1,000", lambda: read_ack(ack), len(ids))
    count = options.count(20_000)
    entries = [Entry(number, 1, 1024, b"", sticky_hash=number % 1000 * 2_654_435) for number in range(count)]
    for name, kind in (("Shared", Shared), ("KeyShared", KeyShared)):
        for consumers in (1, 100, 1000):
            costs = []
            for _ in range(options.rounds):
                loop = Loop(kind, entries, consumers)
                began = time.thread_time()
                assert loop.run() == count
                costs.append((time.thread_time() - began) / count * 1e6)
            yield Row(f"{name}, {consumers} consumers: an entry", {CPU: min(costs)})


class Table:
    """A catalogue with only ACLs and quotas."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.load_acls = self.load_quotas = lambda: rows


def bench_security(options: Options) -> Iterator[Row]:
    count, literal = options.count(100_000, 20), int(PatternType.LITERAL)
    acls = [
        AclRow(2, f"topic-{n}", literal, "User:busy" if n % 10 == 0 else f"User:{n % 1000}", "*", 3 + n % 2, 3)
        for n in range(count)
    ]
    began = time.thread_time()
    authorizer = AclAuthorizer(Table(acls), SystemClock())  # type: ignore[arg-type]
    yield Row(f"{count} ACLs", {"s to load": time.thread_time() - began})
    who, topic, host = Principal("User", "busy"), ResourceType.TOPIC, "10.1.2.3"
    numbers = iter(range(10**9))
    yield _row(
        options,
        "an ACL's decision, asked before",
        lambda: authorizer.allows(who, host, Operation.READ, topic, "topic-10", audited=False),
    )
    yield _row(
        options,
        "an ACL's decision, for the first time",
        lambda: authorizer.rules.decide(str(who), host, topic, f"topic-{next(numbers)}"),
    )
    everybody = str(Entity(client_id=DEFAULT))
    quotas = ClientQuotas(Table([(everybody, Kind.PRODUCE, 1e15)]), SystemClock(), Windows())  # type: ignore[arg-type]
    quotas.load()
    now = time.monotonic()

    def decide() -> None:
        meter = quotas.meters("ANONYMOUS", "client").produce
        assert meter is not None
        meter.sensor.take(1000, meter.quota, now)

    yield _row(options, "a quota's decision", decide)
    yield _row(options, "a client not seen before", lambda: quotas.meters("u", f"c{next(numbers)}"), usual=2000)


def bench_share(options: Options) -> Iterator[Row]:
    for together in (500, 1):
        partition = SharePartition(0, ShareSettings(auto_offset_reset="earliest"))
        firsts = iter(range(0, 10**9, 500))

        def once(
            partition: SharePartition = partition, firsts: Iterator[int] = firsts, together: int = together
        ) -> None:
            first = next(firsts)
            acquisition = Acquisition(partition, "member", first, 0.0, max_records=500)
            acquisition.take(first, first + 499)
            acquisition.finish()
            for at in range(first, first + 500, together):
                partition.acknowledge("member", [AcknowledgementBatch(at, at + together - 1, b"\1")], 0.0)

        yield _row(options, f"a record acquired and acknowledged, {together} together", once, 500, 50_000)


SECTIONS = {
    "log": bench_log,
    "compaction": bench_compaction,
    "pulsar": bench_pulsar,
    "security": bench_security,
    "share": bench_share,
}
