"""What heartbeats of group members cost, and how long a large group takes to rebalance.

    python tests/bench/bench_heartbeat.py [MEMBERS]

A heartbeat that changes nothing, of the classic and of the newer protocol (KIP-848): from the frame to the bytes of the answer,
as on a processor but without the socket; CPU of this thread, the best of several rounds.

The rebalance is over sockets: MEMBERS (500) of one group with two partitions for each, on a few connections, whose clients send
heartbeats one after the other. They join together; then half of them leave and come back. The time is until everybody has
its part, whatever the interval of the heartbeats, and meanwhile the heartbeats of a member of another group are timed.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from broker.kafka import handlers
from broker.kafka.kafka_session import KafkaSession
from broker.kafka.service import KafkaService
from broker.network.service import Peer
from broker.security.principal import ANONYMOUS
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.kafka.handlers.consumer_group_client import UNCHANGED, Member, ask_join, join
from tests.kafka.handlers.group_client import stable
from tests.kafka.handlers.kafka_client import Beside, Kafka

CONNECTIONS = 8


class Answers:
    """An ``Outbox`` that keeps the last answer."""

    last = b""

    def send(self, request: Any, buffers: Any, *more: Any) -> None:
        self.last = b"".join(buffers)

    def close(self, request: Any) -> None:
        raise AssertionError("closed")


def per_call(body: Callable[[], object], calls: int = 5_000, rounds: int = 7) -> float:
    """Seconds of CPU."""
    best = 1e9
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(calls):
            body()
        best = min(best, (time.thread_time() - began) / calls)
    return best


def heartbeat(kafka: Kafka, key: ApiKey, version: int, fields: dict[str, Any]) -> float:
    service = KafkaService(kafka.inside, handlers.load())
    session = KafkaSession(service._apis)
    peer = Peer("127.0.0.1", 1, "kafka", ("127.0.0.1", 2))
    connection = SimpleNamespace(peer=peer, principal=ANONYMOUS, closed=False, session=session, data=None)
    frame = memoryview(bytearray(control.encode_request(key, version, 7, "test", fields)))
    answers = Answers()

    def once() -> None:
        request = session.receive(frame)
        request.frame, request.connection, request.received_at = frame, connection, 0.0
        prepared = service.inline(request)
        service.handle(request, answers, prepared)

    once()
    _, answer = control.parse_response(key, version, answers.last)
    assert not answer.error_code, answer
    return per_call(once)


class Crowd:
    """Members of one group on some connections, each of which has a thread."""

    def __init__(self, kafka: Kafka, count: int, topic: str) -> None:
        self._kafka, self._topic, self._count = kafka, topic, count
        self.members = [Member(kafka, "crowd", f"member-{number:05}", 0, {}) for number in range(count)]

    def each(self, members: list[Member], work: Callable[[Member], object]) -> None:
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

    def join(self, members: list[Member]) -> None:
        self.each(members, lambda member: member.take(ask_join(member.kafka, "crowd", member.id, [self._topic])))

    def settle(self, members: list[Member]) -> int:
        """Heartbeats until everybody has its part; how many rounds."""
        target = 2 * self._count // len(members)
        rounds = 0
        while any(member.partitions != target for member in members):
            self.each(members, lambda member: member.heartbeat())
            rounds += 1
        return rounds


def rebalance(kafka: Kafka, count: int) -> None:
    crowd = Crowd(kafka, count, kafka.topic(2 * count))
    calm = join(kafka, "calm", "a", [kafka.topic(1)])
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
    half = crowd.members[: count // 2]

    def leave_and_come_back() -> int:
        crowd.each(half, lambda member: member.leave())
        for member in half:
            member.owned = {}
        crowd.join(half)
        return crowd.settle(crowd.members)

    def start() -> int:
        crowd.join(crowd.members)
        return crowd.settle(crowd.members)

    for name, work in (("join", start), ("half of them leave and come back", leave_and_come_back)):
        began, cpu = time.monotonic(), time.process_time()
        rounds = work()
        print(
            f"{count} members {name}: settled after {time.monotonic() - began:.2f} s and {rounds} rounds of heartbeats, "
            f"{time.process_time() - cpu:.2f} s of CPU for broker and clients"
        )
    stop.set()
    thread.join()
    waits.sort()
    print(
        f"another group's heartbeats meanwhile: median {waits[len(waits) // 2] * 1e3:.1f} ms, "
        f"99 % {waits[int(len(waits) * 0.99)] * 1e3:.1f} ms, longest {waits[-1] * 1e3:.1f} ms"
    )


def main(count: int) -> None:
    with Kafka() as kafka:
        topic = kafka.topic(6)
        member = stable(kafka, "classic")
        classic = {"group_id": "classic", "generation_id": 1, "member_id": member, "group_instance_id": None}
        print(f"classic heartbeat:  {heartbeat(kafka, ApiKey.HEARTBEAT, 4, classic) * 1e6:.1f} us")
        newer = join(kafka, "newer", "a", [topic])
        newer.heartbeat()
        fields = UNCHANGED | {"group_id": "newer", "member_id": "a", "member_epoch": newer.epoch}
        print(f"consumer heartbeat: {heartbeat(kafka, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields) * 1e6:.1f} us")
        rebalance(kafka, count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
