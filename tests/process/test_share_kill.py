"""kill -9 under a share group's load, again and again: what was answered is not delivered again, and nothing is lost.

``BROKER_KILL_CYCLES`` says how often (5); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails).
"""

import os
import random
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.share_client import ACCEPT, REJECT, RELEASE, Member
from tests.kafka_connection import produce_fields
from tests.process.broker_process import PATIENCE_S, BrokerProcess
from tests.waiting import wait_for

CYCLES = int(os.environ.get("BROKER_KILL_CYCLES", "5"))
SEED = int(os.environ.get("BROKER_KILL_SEED", random.SystemRandom().randrange(2**32)))
PARTITIONS = (0, 1)
TOPIC = "shared"
pytestmark = pytest.mark.timeout(180 + 15 * CYCLES)

Record = tuple[int, int]  # partition, offset


class Log:
    """What the clients know together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.written: set[Record] = set()  # the answer came
        self.sent: set[Record] = set()  # accepted or rejected
        self.finished: set[Record] = set()  # and the answer came
        self.wrong: list[str] = []


class Client(threading.Thread):
    def __init__(self, log: Log, address: tuple[str, int], topic_id: UUID, name: str) -> None:
        super().__init__(name=name)
        self.log, self.address, self.topic_id = log, address, topic_id
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with Member(self.address, self.topic_id, PARTITIONS, "group", self.name) as member:
                    member.socket.settimeout(20)
                    self.converse(member)
            except OSError:  # the broker is gone
                time.sleep(0.02)
            except Exception as error:
                self.log.wrong.append(f"{self.name}: {error!r}")
                return

    def converse(self, member: Member) -> None:
        raise NotImplementedError


class Writer(Client):
    def converse(self, member: Member) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            partition = number % len(PARTITIONS)
            records = build_batch([(None, b"%d" % number, [], 1_000_000)] * 7)
            response = member.ask(ApiKey.PRODUCE, 9, **produce_fields(TOPIC, records, partition))
            ((answer,),) = [topic.partition_responses for topic in response.responses]
            if not answer.error_code:
                with self.log.lock:
                    self.log.written |= {(partition, answer.base_offset + at) for at in range(7)}
            time.sleep(0.002)


class Consumer(Client):
    def __init__(self, log: Log, address: tuple[str, int], topic_id: UUID, name: str) -> None:
        super().__init__(log, address, topic_id, name)
        self.random = random.Random(name)

    def converse(self, member: Member) -> None:
        acks: dict[int, Any] = {}
        while not self.stopping.is_set():
            with self.log.lock:
                finished = set(self.log.finished)
            sent = acks
            self.acknowledged(sent, self.log.sent)
            answer = member.fetch(sent, max_wait=200, max_records=self.random.choice((5, 50, 500)))
            assert not answer.error
            self.acknowledged({one: sent[one] for one in sent if not answer.errors(one)[1]}, self.log.finished)
            again = finished & set(answer.all())
            if again:
                self.log.wrong.append(f"{self.name}: delivered after the answer: {sorted(again)[:5]}")
            acks = {partition: self.choose(answer.ranges(partition)) for partition in answer.partitions}
            acks = {partition: batches for partition, batches in acks.items() if batches}
            if acks and self.random.random() < 0.5:
                self.acknowledged(acks, self.log.sent)
                codes = member.acknowledged(acks)
                self.acknowledged({one: acks[one] for one in acks if not codes[one]}, self.log.finished)
                acks = {}

    def choose(self, ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, list[int]]]:
        """Most are accepted, some with their neighbours and some by themselves; some are given back twice at most."""
        found = []
        for first, last, count in ranges:
            if self.random.random() < 0.5:
                found.append((first, last, [ACCEPT]))
            else:
                kinds = [ACCEPT, ACCEPT, REJECT, RELEASE if count < 3 else ACCEPT]
                found.append((first, last, [self.random.choice(kinds) for _ in range(first, last + 1)]))
        return found

    def acknowledged(self, acks: dict[int, Any], records: set[Record]) -> None:
        with self.log.lock:
            for partition, batches in acks.items():
                for first, last, types in batches:
                    for offset in range(first, last + 1):
                        if (types[0] if len(types) == 1 else types[offset - first]) != RELEASE:
                            records.add((partition, offset))


def make_topic(address: tuple[str, int]) -> UUID:
    with Member(address, UUID(int=1)) as client:
        topics = [{"name": TOPIC, "num_partitions": len(PARTITIONS), "replication_factor": 1}]
        response = client.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=10_000)
        assert not response.topics[0].error_code
        found = response.topics[0].topic_id
        assert isinstance(found, UUID)
        return found


def test_acknowledgements_stay_and_no_record_is_lost(tmp_path: Path) -> None:
    print(f"BROKER_KILL_SEED={SEED}")
    random_ = random.Random(SEED)
    with BrokerProcess(tmp_path) as broker:
        host, port = broker.address.rsplit(":", 1)
        address = host, int(port)
        topic_id = make_topic(address)
        with Member(address, topic_id, PARTITIONS) as member:
            assert not member.fetch().error  # the group begins here, at the end of an empty log
        broker.kill()
        log = Log()
        writers = [Writer(log, address, topic_id, "writer")]
        consumers = [Consumer(log, address, topic_id, f"consumer-{number}") for number in range(3)]
        for client in (*writers, *consumers):
            client.start()
        try:
            for cycle in range(CYCLES):
                broker.start()
                if not cycle:
                    wait_for(lambda: log.wrong or min(len(log.written), len(log.finished)) > 50, "nobody gets on")
                time.sleep(random_.uniform(0.2, 1.5))
                broker.kill()
            broker.start()
            for writer in writers:
                writer.stopping.set()
                writer.join(PATIENCE_S)
            ends = time.monotonic() + PATIENCE_S
            while not log.wrong and not log.written <= log.sent and time.monotonic() < ends:
                time.sleep(0.05)
        finally:
            for client in (*writers, *consumers):
                client.stopping.set()
            for client in (*writers, *consumers):
                client.join(PATIENCE_S)
        assert [] == log.wrong
        missing = sorted(log.written - log.sent)
        assert [] == missing[:10], f"{len(missing)} of {len(log.written)} were not delivered"
