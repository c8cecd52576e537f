"""What members of groups cost: heartbeats, a large rebalance, and the acknowledgements of share groups.

``heartbeat``: one that changes nothing, of the classic and of the newer protocol (KIP-848), from the frame to the bytes of the
answer, as on a processor but without the socket; CPU of this thread. ``rebalance``: 500 members of one group with two partitions
for each, on a few connections, whose clients send heartbeats one after the other, join together; then half of them leave and come
back. The time is until everybody has its part, and meanwhile the heartbeats of a member of another group are timed.

``share``: ShareFetch and ShareAcknowledge of 500 records of each of 1 or 100 partitions without the socket: CPU of the thread
that handles it, CPU of the whole process, so with the catalogue's thread and its fsyncs, and the time on the clock. ``single``:
over a socket, a ShareFetch of one record that acknowledges the one before.
"""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from broker.kafka import handlers
from broker.kafka.kafka_session import KafkaSession
from broker.kafka.service import KafkaService
from broker.kafka.share.share_partition import ShareSettings
from broker.network.service import Handover, Peer
from broker.runtime.threads import Event
from broker.security.principal import ANONYMOUS
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.bench.frame import CPU, Options, Row, least_us, percentiles
from tests.kafka.handlers import share_client
from tests.kafka.handlers.consumer_group_client import UNCHANGED, Member, ask_join, join
from tests.kafka.handlers.group_client import stable
from tests.kafka.handlers.kafka_client import Beside, Kafka

CONNECTIONS = 8
BATCH = 500


class _Connection(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


class Direct:
    """Requests without a socket. An ``Outbox`` as well."""

    def __init__(self, kafka: Kafka) -> None:
        self._service = KafkaService(kafka.inside, handlers.load())
        self._session = KafkaSession(self._service._apis)
        peer = Peer("127.0.0.1", 1, "kafka", ("127.0.0.1", 2))
        state = {"closed": False, "finished": False, "session": self._session, "data": None}
        self._connection = _Connection(peer=peer, principal=ANONYMOUS, **state)
        self._answered = Event()
        self.last = b""

    def send(self, request: Any, parts: Any, *more: Any) -> None:
        self.last = b"".join(
            part.file.pread(part.size, part.offset) if hasattr(part, "file") else bytes(part) for part in parts
        )
        self._answered.set()

    def call(self, connection: Any, work: Any) -> None:
        work()

    def hand_over(self, request: Any, handover: Any) -> None:
        self._service.handle(request, self, handover.prepared)  # type: ignore[arg-type]

    def close(self, request: Any) -> None:
        raise AssertionError("closed")

    def ask(self, frame: memoryview) -> bytes:
        self._answered.clear()
        request: Any = self._session.receive(frame)
        request.frame, request.connection, request.received_at = frame, self._connection, time.monotonic()
        prepared = self._service.inline(request)
        self._service.handle(request, self, prepared.prepared if isinstance(prepared, Handover) else prepared)  # type: ignore[arg-type]
        self._answered.wait()
        return self.last


def bench_heartbeat(options: Options) -> Iterator[Row]:
    with Kafka() as kafka:
        classic = {"group_id": "classic", "generation_id": 1, "group_instance_id": None}
        classic["member_id"] = stable(kafka, "classic")
        newer = join(kafka, "newer", "a", [kafka.topic(6)])
        newer.heartbeat()
        consumer = UNCHANGED | {"group_id": "newer", "member_id": "a", "member_epoch": newer.epoch}
        for name, key, version, fields in (
            ("classic", ApiKey.HEARTBEAT, 4, classic),
            ("consumer (KIP-848)", ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, consumer),
        ):
            direct, frame = Direct(kafka), memoryview(bytearray(control.encode_request(key, version, 7, "x", fields)))
            _, answer = control.parse_response(key, version, direct.ask(frame))
            assert not answer.error_code, answer
            cost = least_us(partial(direct.ask, frame), options.count(5_000))
            yield Row(f"heartbeat, {name}", {CPU: cost})


class Crowd:
    """Members of one group on some connections, each of which has a thread."""

    def __init__(self, kafka: Kafka, count: int) -> None:
        self._kafka, self._topic, self._count = kafka, kafka.topic(2 * count), count
        self.members = [Member(kafka, "crowd", f"member-{number:05}", 0, {}) for number in range(count)]

    def _each(self, members: list[Member], work: Callable[[Member], object]) -> None:
        """On all connections at the same time."""

        def run(own: list[Member]) -> None:
            with Beside(self._kafka) as connection:
                for member in own:
                    member.kafka = connection
                    work(member)

        threads = [threading.Thread(target=run, args=(members[i::CONNECTIONS],)) for i in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def join(self, members: list[Member]) -> int:
        """And heartbeats until everybody has its part; how many rounds."""
        self._each(members, lambda member: member.take(ask_join(member.kafka, "crowd", member.id, [self._topic])))
        rounds = 0
        while any(member.partitions != 2 for member in self.members):
            self._each(self.members, lambda member: member.heartbeat())
            rounds += 1
        return rounds

    def come_back(self) -> int:
        half = self.members[: self._count // 2]
        self._each(half, lambda member: member.leave())
        for member in half:
            member.owned = {}
        return self.join(half)


def bench_rebalance(options: Options) -> Iterator[Row]:
    count = options.count(500, 2)
    with Kafka() as kafka:
        crowd, calm = Crowd(kafka, count), join(kafka, "calm", "a", [kafka.topic(1)])
        waits: list[float] = []
        stop = threading.Event()

        def beat() -> None:
            with Beside(kafka) as connection:
                calm.kafka = connection
                while not stop.is_set():
                    began = time.monotonic()
                    calm.heartbeat(topic_partitions=None)
                    waits.append(time.monotonic() - began)
                    stop.wait(0.005)

        thread = threading.Thread(target=beat)
        thread.start()
        for name, work in (("join", partial(crowd.join, crowd.members)), ("half come back", crowd.come_back)):
            began, cpu = time.monotonic(), time.process_time()
            rounds = work()
            figures = {"s": time.monotonic() - began, "rounds": rounds, "CPU s with clients": time.process_time() - cpu}
            yield Row(f"rebalance of {count}, {name}", figures)
        stop.set()
        thread.join()
    yield Row("another group's heartbeats meanwhile", percentiles("", waits) | {"longest ms": max(waits) * 1e3})


def bench_share(options: Options) -> Iterator[Row]:
    for partitions, usual in ((1, 200), (100, 10)):
        with Kafka() as kafka:
            kafka.inside.share.settings = lambda _: ShareSettings(auto_offset_reset="earliest")
            yield from _share(kafka, partitions, options.count(usual, 2))


def _share(kafka: Kafka, partitions: int, rounds: int) -> Iterator[Row]:
    topic = kafka.topic(partitions)
    info = kafka.inside.logs.topic(topic)
    assert info is not None
    for partition in range(partitions):
        for _ in range(rounds):
            share_client.write(kafka, topic, BATCH, partition, b"0123456789" * 10)
    kafka.inside.groups.share.begin_alter(topic)  # the group of the same name
    direct = Direct(kafka)
    most: dict[str, Any] = {"max_wait": 0, "min_bytes": 1, "max_bytes": 50 << 20, "max_records": BATCH * partitions}
    most |= {"batch_size": BATCH, "share_acquire_mode": 0, "forgotten_topics_data": []}
    costs = {ApiKey.SHARE_FETCH: [0.0, 0.0, 0.0], ApiKey.SHARE_ACKNOWLEDGE: [0.0, 0.0, 0.0]}
    clocks = (time.thread_time, time.process_time, time.perf_counter)
    epoch = done = 0

    def ask(key: ApiKey, by_partition: dict[int, list[Any]], **fields: Any) -> Any:
        nonlocal epoch
        parts = [{"partition_index": n, "acknowledgement_batches": each} for n, each in by_partition.items()]
        topics = [{"topic_id": info.topic_id, "partitions": parts}] if parts else []
        session = {"group_id": topic, "member_id": "member", "share_session_epoch": epoch, "is_renew_ack": False}
        frame = memoryview(bytearray(control.encode_request(key, 2, 7, "x", session | {"topics": topics} | fields)))
        before = [clock() for clock in clocks]
        answer = direct.ask(frame)
        if epoch:  # the first opens the session
            costs[key] = [cost + clock() - b for cost, clock, b in zip(costs[key], clocks, before, strict=True)]
        epoch += 1
        return control.parse_response(key, 2, answer)[1]

    while done < rounds * partitions * BATCH:
        wanted: dict[int, list[Any]] = {} if epoch else {n: [] for n in range(partitions)}
        fetched = share_client.Fetched(ask(ApiKey.SHARE_FETCH, wanted, **most))
        assert not fetched.error
        ranges = {partition: fetched.ranges(partition) for partition in fetched.partitions}
        done += sum(last - first + 1 for each in ranges.values() for first, last, _ in each)
        accepted = {
            partition: [
                {"first_offset": first, "last_offset": last, "acknowledge_types": (share_client.ACCEPT,)}
                for first, last, _ in each
            ]
            for partition, each in ranges.items()
        }
        assert not ask(ApiKey.SHARE_ACKNOWLEDGE, accepted).error_code
    for key, cost in costs.items():
        handler, process, clock = (each / done * 1e6 for each in cost)
        figures = {"handler's CPU us a record": handler, "process's": process, "on the clock": clock}
        yield Row(f"{key.name.lower()}, {partitions} partitions x {BATCH}", figures)


def bench_single(options: Options) -> Iterator[Row]:
    with Kafka() as kafka:
        kafka.inside.share.settings = lambda _: ShareSettings(auto_offset_reset="earliest")
        topic = kafka.topic()
        share_client.write(kafka, topic, options.count(3_000, 2))
        with share_client.Member(kafka, topic, group=topic) as member:
            ranges = member.fetch(max_records=1, share_acquire_mode=1).ranges()
            began, cpu, count = time.perf_counter(), time.process_time(), 0
            while ranges:
                count += 1
                ((first, last, _),) = ranges
                ranges = member.fetch(
                    {0: [(first, last, [share_client.ACCEPT])]}, max_records=1, share_acquire_mode=1
                ).ranges()
            took = (time.perf_counter() - began) / count * 1e6, (time.process_time() - cpu) / count * 1e6
        yield Row("share, one record at a time", {"us on the clock": took[0], "CPU us with the client's": took[1]})


SECTIONS = {
    "heartbeat": bench_heartbeat,
    "rebalance": bench_rebalance,
    "share": bench_share,
    "single": bench_single,
}
