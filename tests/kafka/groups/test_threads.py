"""Handlers, timer, writer and administrators at once, on real threads: every request is answered once, and nothing hangs."""

import random
import threading
from pathlib import Path

from broker.config import BrokerConfig
from broker.kafka.groups import GroupCoordinator
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.groups.values import JoinRequest, SyncRequest
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.clock import SystemClock
from broker.runtime.threads import SystemThreads
from broker.runtime.timers import Timer
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.classic_group_driver import Parked
from tests.kafka.groups.group_harness import CommitAnswer

GROUPS = ["a", "b", "c"]
ROUNDS = 300


class Worker:
    """Serial requests of a client, random, in random groups."""

    def __init__(self, groups: GroupCoordinator, seed: int) -> None:
        self.groups = groups
        self.random = random.Random(seed)
        self.asked: list[Parked | CommitAnswer | list[object]] = []
        self.seed = seed

    def run(self) -> None:
        group, member_id, generation, leads = "a", "", -1, False
        for n in range(ROUNDS):
            choice = self.random.random()
            if not member_id or choice < 0.3:
                group = self.random.choice(GROUPS) if not member_id else group
                parked = Parked()
                self.asked.append(parked)
                protocols = (("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),)
                fresh = f"{self.seed}-{n}"
                request = JoinRequest(member_id, None, "c", "/h", 40, 30, "consumer", protocols, fresh)
                self.groups.join(group, request, parked)
                if parked.answers:
                    result = parked.answers[0]
                    known = result.error in (ErrorCode.none, ErrorCode.member_id_required)
                    member_id = result.member_id if known else ""
                    generation, leads = result.generation, result.leader == member_id
            elif choice < 0.6:
                sync = Parked()
                self.asked.append(sync)
                assignments = {member_id: b"all"} if leads else {}
                self.groups.sync(group, SyncRequest(member_id, None, generation, assignments=assignments), sync)
            elif choice < 0.7:
                if self.groups.heartbeat(group, member_id, None, generation) == ErrorCode.unknown_member_id:
                    member_id = ""
            elif choice < 0.85:
                answer = CommitAnswer()
                self.asked.append(answer)
                member = Committer(member_id, None, generation) if choice < 0.8 else Committer("", None, -1)
                offsets = {("t", n % 3): CommittedOffset(n, -1, "", 0)}
                self.groups.offsets.commit(group, member, offsets, answer)
            elif choice < 0.9:
                self.groups.leave(group, [(member_id, None)])
                member_id = ""
            else:
                self.administer(n)

    def administer(self, n: int) -> None:
        answers: list[object] = []
        if n % 4 == 0:
            self.asked.append(answers)
            self.groups.delete(GROUPS, answers.append)
        elif n % 4 == 1:
            self.asked.append(answers)
            self.groups.offsets.delete("a", [("t", 0)], lambda error, errors: answers.append(errors))
        elif n % 4 == 2:
            self.groups.expiration.sweep()
            self.groups.on_topic_deleted("t")
        else:
            self.groups.list()
            self.groups.describe("a")
            self.groups.offsets.fetch("a", None)


def test_every_request_is_answered_once(tmp_path: Path) -> None:
    clock, threads, crashes = SystemClock(), SystemThreads(), []
    timer = Timer(clock)
    catalogue = SqliteCatalogue(str(tmp_path / "catalogue.sqlite"))
    config = BrokerConfig(group_min_session_timeout_ms=1, group_initial_rebalance_delay_ms=0)
    groups = GroupCoordinator(clock, timer, catalogue, config)
    groups.open(lambda topic: True)
    running = [threads.spawn("timer", timer, crashes.append), threads.spawn("writer", groups.writer, crashes.append)]
    workers = [Worker(groups, seed) for seed in range(4)]
    clients = [threading.Thread(target=worker.run) for worker in workers]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    groups.shut_down()
    assert all(thread.stop() for thread in running)
    groups.close()
    assert crashes == []
    asked = [each for worker in workers for each in worker.asked]
    assert {len(each if isinstance(each, list) else each.answers) for each in asked} == {1}
    counted = [entry.counted_bytes for entry in groups._registry.entries()]
    for entry in groups._registry.entries():
        groups._registry.count(entry)
    assert groups.memory.used_bytes == sum(counted) == sum(entry.counted_bytes for entry in groups._registry.entries())
    # The offsets in memory are those in the catalogue.
    remembered = {
        (entry.group.group_id, topic, partition): committed.offset
        for entry in groups._registry.entries()
        for topic, partitions in entry.offsets
        for partition, committed in partitions.items()
    }
    assert {(row.group, row.topic, row.partition): row.offset for row in catalogue.load_offsets()} == remembered
    catalogue.close()
