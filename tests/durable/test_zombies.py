"""An owner that stood still, as a machine does whose hypervisor pauses it, while another broker took over: when it goes on,
nothing that it does counts, and it ends. Each test waits once for the lease to run out, 10 s."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.durable.bad_store import BadStore, delay
from tests.durable.durable_broker import DurableBroker, wait_until
from tests.durable.machine_load import Late
from tests.durable.postgres import PostgresServer
from tests.durable.proxy import Proxy
from tests.durable.s3_server import BUCKET, fresh_prefix, shared_seaweed
from tests.kafka_connection import KafkaConnection, produce_fields
from tests.process import test_kill as kafka
from tests.process.broker_process import PATIENCE_S, BrokerProcess

pytestmark = pytest.mark.slow

# Clients notice soon that nobody answers.
IMPATIENT = {"socket.timeout.ms": 2000}


@pytest.fixture
def broker(tmp_path: Path, postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[DurableBroker]:
    settings = (f"catalogue_schema={request.node.name}", "log_segment_bytes=1000000")
    with DurableBroker(tmp_path, postgres, *settings, ports_of_their_own=True) as broker:
        make_topics(broker)
        yield broker


def make_topics(broker: DurableBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, **kafka.CLIENT})
    names = ("idempotent", "large", "zombie")
    for made in admin.create_topics([NewTopic(name, kafka.PARTITIONS, 1) for name in names]).values():
        made.result(30)


def late(address: str) -> Late:
    return Late("zombie", dict.fromkeys(range(kafka.PARTITIONS), address), 10)


def wake_and_see_it_end(zombie: BrokerProcess) -> None:
    zombie.resume()
    assert 1 == zombie.process.wait(PATIENCE_S)
    (lost,) = [event for event in zombie.events if event["event"] == "lease_lost"]
    assert "epoch 1 is over" in lost["reason"]
    assert [] == [event for event in zombie.events if event["event"] == "thread_crashed"]


def test_a_zombie_s_sends_are_not_acknowledged(broker: DurableBroker) -> None:
    assert broker.leader is not None
    servers = ",".join(machine.listener.partition("//")[2] for machine in broker.machines)
    loads = [
        kafka.Load(servers, "idempotent", 100, 100, **{"enable.idempotence": True}, **IMPATIENT),
        kafka.Load(servers, "large", 300_000, 4, **{"enable.idempotence": True}, **IMPATIENT),
    ]
    for load in loads:
        load.start()
    wait_until(lambda: all(load.count > 50 for load in loads), "nobody gets on")
    sent, of_acks_1 = late(broker.leader.address), late(broker.leader.address)
    zombie = broker.leader
    zombie.suspend()
    sent.send()
    of_acks_1.send(acks=1)
    broker.start()  # the other one leads
    before = [load.count for load in loads]
    wait_until(lambda: all(load.count > 50 + old for load, old in zip(loads, before, strict=True)), "nobody gets on")
    wake_and_see_it_end(zombie)
    assert (0, 0) == (sent.acknowledged(), of_acks_1.acknowledged())
    for load in loads:
        load.stopping.set()
    for load in loads:
        load.join()
    for load in loads:
        assert [] == load.failed
        assert load.sent == load.count
        expected = {partition: list(range(partition, load.sent, 3)) for partition in range(kafka.PARTITIONS)}
        assert expected == kafka.in_the_log(broker.leader.address, load.topic)
    assert 0 == kafka_end(broker.leader.address, "zombie")
    assert [] == broker.leader.errors


QUESTIONS: list[tuple[ApiKey, int, dict[str, Any]]] = [
    (
        ApiKey.LIST_OFFSETS,
        7,
        {"replica_id": -1, "topics": [{"name": "zombie", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
    ),
    (
        ApiKey.FETCH,
        11,
        {
            "max_bytes": 1 << 20,
            "topics": [{"topic": "zombie", "partitions": [{"partition": 0, "partition_max_bytes": 1 << 20}]}],
        },
    ),
    (
        ApiKey.OFFSET_FETCH,
        8,
        {"groups": [{"group_id": "readers", "topics": [{"name": "zombie", "partition_indexes": [0]}]}]},
    ),
    (ApiKey.METADATA, 9, {"topics": [{"name": "zombie"}]}),
]


class Asked:
    """Questions to an old owner, one each on a connection of its own."""

    def __init__(self, address: str, count: int) -> None:
        self.connections = [KafkaConnection(address) for _ in range(count)]

    def ask(self) -> None:
        for number, connection in enumerate(self.connections):
            key, version, fields = QUESTIONS[number % len(QUESTIONS)]
            connection.tell(key, version, **fields)

    def answered(self) -> int:
        """Returns when all were answered or closed."""
        return sum(map(self._was_answered, self.connections))

    def _was_answered(self, connection: KafkaConnection) -> bool:
        try:
            connection.frame()
        except ConnectionError:
            return False
        finally:
            connection.close()
        return True


def test_a_zombie_that_wakes_answers_no_question(broker: DurableBroker) -> None:
    assert broker.leader is not None
    before, after = Asked(broker.leader.address, 40), Asked(broker.leader.address, 40)
    before.ask()
    assert 40 == before.answered()
    zombie = broker.leader
    zombie.suspend()
    after.ask()
    broker.start()  # the other one leads
    wake_and_see_it_end(zombie)
    assert 0 == after.answered()


def test_an_owner_whose_database_believes_it_gone_answers_nothing_once_the_next_one_has_answered(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """The owner lives, and hears nothing: neither that its sessions have ended, nor of the take-over."""
    proxy = Proxy(postgres.port)
    broker = DurableBroker(tmp_path, postgres, "catalogue_schema=believed_gone", standbys=0, ports_of_their_own=True)
    direct = broker.settings[0]
    broker.settings[0] = direct.replace(f":{postgres.port}/", f":{proxy.port}/")
    assert direct != broker.settings[0]
    with broker:
        broker.settings[0] = direct
        make_topics(broker)
        assert broker.leader is not None
        asked = Asked(broker.leader.address, 40)
        new = broker.launch()
        wait_until(lambda: "standing_by" in new.output, "it does not stand by")
        proxy.lose_clients()
        new.wait_until_ready()
        assert send_large(new.address, 7)
        asked.ask()
        assert 0 == asked.answered()
        (taken,) = [event for event in new.events if event["event"] == "state_taken_over"]
        assert 2 == taken["epoch"]
        assert [] == new.errors
    proxy.close()


def kafka_end(servers: str, topic: str) -> int:
    """The number of records."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends", **kafka.CLIENT})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), 30)[1] for number in range(kafka.PARTITIONS)]
    consumer.close()
    return sum(ends)


def test_a_zombie_s_late_objects_do_no_harm(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that it was putting when it stood still arrives when the other broker has shipped much more."""
    server = shared_seaweed()
    bad = BadStore(server.port)
    environment = {**server.environment, "AWS_ENDPOINT_URL": bad.endpoint}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with DurableBroker(
        tmp_path,
        postgres,
        "catalogue_schema=late_objects",
        objects=f"s3://{BUCKET}/{fresh_prefix()}",
        ports_of_their_own=True,
        environment=environment,
    ) as broker:
        make_topics(broker)
        assert broker.leader is not None
        late = bad.fail(delay(14.0), method="PUT", where="journal/00000001/", times=4)
        sent = [threading.Thread(target=send_large, args=(broker.leader.address, number)) for number in range(3)]
        for thread in sent:
            thread.start()
        wait_until(lambda: late.hits, "nothing is put")
        zombie = broker.leader
        zombie.suspend()
        broker.start()  # the other one leads
        for _ in range(20):
            assert send_large(broker.leader.address, 7)
        time.sleep(6)  # by now the proxy has put what is late
        wake_and_see_it_end(zombie)
        for thread in sent:
            thread.join()
        assert 20 == kafka_end(broker.leader.address, "large")
        broker.kill()
        broker.start()
        assert broker.leader is not None
        found = kafka.in_the_log(broker.leader.address, "large")
        assert [7] * 20 == [number for numbers in found.values() for number in numbers]
    bad.close()


def send_large(address: str, number: int) -> bool:
    """Whether it was acknowledged."""
    batch = build_batch([(None, kafka.value(number, 300_000), [], int(time.time() * 1000))])
    try:
        with KafkaConnection(address) as connection:
            answer: Any = connection.ask(ApiKey.PRODUCE, 9, **produce_fields("large", batch, number % 3))
    except OSError:  # closed, or nobody has answered for a minute: a broker that stands still does not
        return False
    return not answer.responses[0].partition_responses[0].error_code
