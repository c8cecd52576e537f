"""kill -9 around EndTxns: what several producers wrote, and an offset with it, is committed as a whole or not at all.

``BROKER_KILL_CYCLES`` says how often (5); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails).
"""

import os
import random
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.kafka import ClientConfig, Cluster, Identity
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import own_apis
from protocol.kafka.messages.own_apis import Member
from protocol.kafka.records.records import build_batch
from tests.client.kafka.logs import values
from tests.kafka_connection import KafkaConnection
from tests.process.broker_process import BrokerProcess

CYCLES = int(os.environ.get("BROKER_KILL_CYCLES", "5"))
SEED = int(os.environ.get("BROKER_KILL_SEED", random.SystemRandom().randrange(2**32)))
TOPIC, GROUP, PARTITIONS, MEMBERS = "t", "g", 3, 12


def write(cluster: Cluster, cycle: int) -> list[Identity]:
    """Each member writes a record to a partition and is left open; the last one commits the number of the cycle as an offset."""
    members = []
    for number in range(MEMBERS):
        with cluster.producer(transactional_id=f"member-{number}") as producer:
            producer.begin()
            producer.send(TOPIC, number % PARTITIONS, build_batch([(None, b"%d" % cycle, [], 0)]), 1)
            if number == MEMBERS - 1:
                producer.commit_offsets(GROUP, {(TOPIC, 0): cycle})
            members.append(producer.hand_over())
    return members


def seen(cluster: Cluster) -> dict[int, int]:
    """Cycle -> how many of its records are committed."""
    found: dict[int, int] = {}
    for partition in range(PARTITIONS):
        end = cluster.offsets({(TOPIC, partition): -1}, "read_committed")[TOPIC, partition]
        with cluster.fetcher(TOPIC, partition, 0, end, isolation="read_committed") as fetcher:
            for fetched in fetcher:
                for value in values(fetched.data, fetched.aborted):
                    found[int(value or b"")] = found.get(int(value or b""), 0) + 1
    return found


def ask(address: str, request: bytes) -> int:
    """EndTxns until it is no more being carried out; the error."""
    deadline = time.monotonic() + 30
    while True:
        with KafkaConnection(address) as connection:
            connection.send(request)
            _, answer = own_apis.parse_response(connection.frame())
        if answer.error != ErrorCode.concurrent_transactions:
            return answer.error
        assert time.monotonic() < deadline, "it is never carried out"


def test_joint_transactions_commit_as_a_whole_over_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with BrokerProcess(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            future.result(30)
        config = ClientConfig.from_properties({"bootstrap.servers": broker.address})
        for cycle in range(CYCLES):
            with Cluster(config) as cluster:
                members = write(cluster, cycle)
            listed = [Member(one.transactional_id, one.producer_id, one.epoch) for one in members]
            request = own_apis.request(1, "kill", listed, True)
            with KafkaConnection(broker.address) as connection:
                connection.send(request)
                time.sleep(rng.random() * 0.006)  # the answer comes after about 2 ms on an idle machine
                broker.kill()
            broker.start()
            with Cluster(config) as cluster:
                open_ones = [one for one in cluster.list_transactions("member-") if one.state == "Ongoing"]
                assert len(open_ones) in (0, MEMBERS), f"seed {SEED}, cycle {cycle}"
                if open_ones:
                    assert cycle not in seen(cluster), f"seed {SEED}"
                assert ask(broker.address, request) == ErrorCode.none, f"seed {SEED}, cycle {cycle}"
                assert seen(cluster) == dict.fromkeys(range(cycle + 1), MEMBERS), f"seed {SEED}"
                assert cluster.committed(GROUP, stable=True)[TOPIC, 0].offset == cycle
