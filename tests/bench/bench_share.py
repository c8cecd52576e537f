"""What share groups cost: acquiring and acknowledging, alone and with the whole path of a request.

    python tests/bench/bench_share.py

- *state*: the share partition alone, fetch and acknowledgement of 500 records at a time, and of one record at a time out of 500.
- *acknowledge*: ShareAcknowledge of 500 records of each of 1 or 100 partitions, from the frame to the bytes of the answer,
  without the socket. CPU of the thread that handles it; CPU of the whole process, so with the catalogue's thread and its fsyncs,
  of which there is one for each request here and one for many where many come at once; and the time on the clock.
- *fetch*: the same for ShareFetch.
- *end to end*: one connection, over a socket, one record at a time: a ShareFetch of one record that acknowledges the one before.
- *idle*: the memory of a share partition that a session has and nobody writes to, and the time of a fetch in that session.
"""

import gc
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

from broker.kafka import handlers
from broker.kafka.kafka_session import KafkaSession
from broker.kafka.service import KafkaService
from broker.kafka.share.reading import Acquisition
from broker.kafka.share.share_partition import SharePartition, ShareSettings
from broker.network.service import Handover, Peer
from broker.runtime.threads import Event
from broker.security.principal import ANONYMOUS
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.share_fetch import AcknowledgementBatch
from protocol.kafka.schema import control
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.share_client import ACCEPT, Fetched, Member, write

BATCH = 500
SETTINGS = ShareSettings(auto_offset_reset="earliest")


class _Connection(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


class Direct:
    """Requests without a socket. An ``Outbox`` as well."""

    def __init__(self, kafka: Kafka) -> None:
        self._service = KafkaService(kafka.inside, handlers.load())
        self._session = KafkaSession(self._service._apis)
        self._connection = _Connection(
            peer=Peer("127.0.0.1", 1, "kafka", ("127.0.0.1", 2)),
            principal=ANONYMOUS,
            closed=False,
            finished=False,
            session=self._session,
            data=None,
        )
        self._answered = Event()
        self.last = b""

    def send(self, request: Any, parts: Any) -> None:
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


def state() -> None:
    for name, size in (("500 at a time", BATCH), ("1 at a time", 1)):
        partition = SharePartition(0, SETTINGS)
        count = 100_000
        began = time.thread_time()
        for first in range(0, count, BATCH):
            acquisition = Acquisition(partition, "member", first, 0.0, max_records=BATCH)
            acquisition.take(first, first + BATCH - 1)
            acquisition.finish()
            for at in range(first, first + BATCH, size):
                partition.acknowledge("member", [AcknowledgementBatch(at, at + size - 1, b"\1")], 0.0)
        print(f"state, {name}: {(time.thread_time() - began) / count * 1e6:.3f} us a record")


def request(group: str, epoch: int, topics: list[Any], **fields: Any) -> dict[str, Any]:
    session = {"group_id": group, "member_id": "member", "share_session_epoch": epoch, "is_renew_ack": False}
    return session | {"topics": topics} | fields


def whole(kafka: Kafka, partitions: int, rounds: int, *, each: bool) -> None:
    topic = kafka.topic(partitions)
    info = kafka.inside.logs.topic(topic)
    assert info is not None
    for partition in range(partitions):
        for _ in range(rounds):
            write(kafka, topic, BATCH, partition, b"0123456789" * 10)
    kafka.inside.groups.share.begin_alter(topic)  # the group of the same name
    direct = Direct(kafka)
    fields = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "max_records": BATCH * partitions,
        "batch_size": BATCH,
        "share_acquire_mode": 0,
        "forgotten_topics_data": [],
    }
    all_partitions = [{"partition_index": one, "acknowledgement_batches": []} for one in range(partitions)]
    epoch = 0
    costs = {"fetch": [0.0, 0.0, 0.0], "acknowledge": [0.0, 0.0, 0.0]}
    done = 0
    while done < rounds * partitions * BATCH:
        topics = [{"topic_id": info.topic_id, "partitions": all_partitions}] if epoch == 0 else []
        frame = control.encode_request(ApiKey.SHARE_FETCH, 2, 7, "test", request(topic, epoch, topics, **fields))
        answer = timed(direct, frame, costs["fetch"] if epoch else [0.0, 0.0, 0.0])
        epoch += 1
        fetched = Fetched(control.parse_response(ApiKey.SHARE_FETCH, 2, answer)[1])
        assert not fetched.error
        some = []
        for partition in fetched.partitions:
            batches = [
                {
                    "first_offset": first,
                    "last_offset": last,
                    "acknowledge_types": (ACCEPT,) * (last - first + 1) if each else (ACCEPT,),
                }
                for first, last, _ in fetched.ranges(partition)
            ]
            done += sum(last - first + 1 for first, last, _ in fetched.ranges(partition))
            some.append({"partition_index": partition, "acknowledgement_batches": batches})
        topics = [{"topic_id": info.topic_id, "partitions": some}]
        frame = control.encode_request(ApiKey.SHARE_ACKNOWLEDGE, 2, 7, "test", request(topic, epoch, topics))
        epoch += 1
        answer = timed(direct, frame, costs["acknowledge"])
        assert not control.parse_response(ApiKey.SHARE_ACKNOWLEDGE, 2, answer)[1].error_code
    kind = "a type for each record" if each else "one type"
    for name, cost in costs.items():
        handler, process, clock = (each / done * 1e6 for each in cost)
        print(
            f"{name}, {partitions} partitions x {BATCH}, {kind}: {handler:.3f} us of the handler's CPU a record, "
            f"{process:.3f} us of the process's, {clock:.3f} us on the clock"
        )


def timed(direct: Direct, frame: bytes, cost: list[float]) -> bytes:
    view = memoryview(bytearray(frame))
    handler, process, clock = time.thread_time(), time.process_time(), time.perf_counter()
    answer = direct.ask(view)
    cost[0] += time.thread_time() - handler
    cost[1] += time.process_time() - process
    cost[2] += time.perf_counter() - clock
    return answer


def end_to_end(kafka: Kafka, records: int = 3_000) -> None:
    topic = kafka.topic()
    for _ in range(records // BATCH):
        write(kafka, topic, BATCH)
    with Member(kafka, topic, group=topic) as member:
        ranges = member.fetch(max_records=1, share_acquire_mode=1).ranges()
        began, cpu = time.perf_counter(), time.process_time()
        count = 0
        while ranges:
            count += 1
            ((first, last, _),) = ranges
            ranges = member.fetch({0: [(first, last, [ACCEPT])]}, max_records=1, share_acquire_mode=1).ranges()
        clock = (time.perf_counter() - began) / count * 1e6
        cpu = (time.process_time() - cpu) / count * 1e6
        print(f"end to end, one record at a time: {clock:.0f} us, {cpu:.0f} us of CPU with the client's")


def idle(kafka: Kafka, partitions: int = 10_000) -> None:
    topic = kafka.topic(partitions)
    with Member(kafka, topic, range(partitions), group=topic) as member:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        began = time.perf_counter()
        assert not member.fetch().error
        opened = time.perf_counter() - began
        gc.collect()
        size = (tracemalloc.get_traced_memory()[0] - before) / partitions
        tracemalloc.stop()
        began = time.perf_counter()
        for _ in range(100):
            member.fetch()
        print(
            f"idle: {size:.0f} bytes a share partition; a session of {partitions} opens in {opened:.2f} s (traced), "
            f"a fetch that finds nothing takes {(time.perf_counter() - began) * 1e4:.0f} us"
        )


if __name__ == "__main__":
    state()
    with Kafka() as kafka:
        kafka.inside.share.settings = lambda _: SETTINGS
        whole(kafka, 1, 200, each=False)
        whole(kafka, 1, 200, each=True)
        whole(kafka, 100, 10, each=False)
        end_to_end(kafka)
        idle(kafka)
