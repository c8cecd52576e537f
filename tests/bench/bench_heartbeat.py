"""What heartbeats of group members cost, and how long a large group takes to rebalance.

    python tests/bench/bench_heartbeat.py [MEMBERS]

A heartbeat that changes nothing, of the classic and of the newer protocol (KIP-848): from the frame to the bytes of the answer, as
on a processor but without the socket; CPU of this thread, the best of several rounds.

The rebalance is over sockets: MEMBERS (500) members of one group with two partitions for each; one more joins, and the time is until
everybody has heard of its new assignment and given up and got what it should, where each member sends heartbeats one after the
other. Meanwhile another group's heartbeats are timed, which the rebalance should not hold up.
"""

import sys
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
from tests.kafka.handlers.consumer_group_client import UNCHANGED, join
from tests.kafka.handlers.group_client import stable
from tests.kafka.handlers.kafka_client import Kafka

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


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
