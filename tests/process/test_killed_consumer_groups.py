"""kill -9 of a broker while members of a consumer group (KIP-848) join, leave and change what they subscribe to.

Whatever a member was told before holds afterwards: nobody is unknown who was answered, nobody has to give up its epoch, and no
partition has two owners, before, during or after.
"""

import itertools
import random
import threading
from pathlib import Path
from uuid import UUID

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.consumer_group_client import Member, ask_join, describe, heartbeat
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka_connection import KafkaConnection
from tests.process.broker_process import BrokerProcess

PARTITIONS = 12
CONNECTIONS = 4
MEMBERS = 3  # of each connection
TOPICS = ("one", "two")


class Connection(Kafka):
    """A raw connection to a broker that runs in a process of its own."""

    def __init__(self, address: str) -> None:
        KafkaConnection.__init__(self, address)


class Client:
    """Some members that take turns on one connection, until the broker is gone."""

    def __init__(self, number: int, seed: int) -> None:
        self._rng = random.Random(f"{seed}-{number}")
        self.members = [Member(None, "g", f"m-{number}-{each}", -1, {}) for each in range(MEMBERS)]  # type: ignore[arg-type]
        # The member whose request was not answered: it may count or not.
        self.unanswered: Member | None = None
        self.answers = 0

    def run(self, address: str, enough: threading.Event) -> None:
        connection = Connection(address)
        try:
            while True:
                member = self._rng.choice(self.members)
                member.kafka = connection
                self.unanswered = member
                self._act(member)
                self.unanswered = None
                self.answers += 1
                if self.answers == 60:
                    enough.set()
        except ConnectionError:
            pass
        finally:
            connection.close()

    def _act(self, member: Member) -> None:
        if member.epoch < 0:
            member.owned = {}
            topics = list(TOPICS[: self._rng.choice((1, 2, 2))])
            member.take(ask_join(member.kafka, "g", member.id, topics))
            return
        dice = self._rng.random()
        if dice < 0.1:
            assert member.leave().error_code == ErrorCode.none
            member.epoch, member.owned = -1, {}
        elif dice < 0.2:
            member.heartbeat(subscribed_topic_names=list(TOPICS[: self._rng.choice((1, 2))]))
        else:
            member.heartbeat()


def owners(members: list[Member]) -> dict[tuple[UUID, int], str]:
    """AssertionError if a partition has two."""
    found: dict[tuple[UUID, int], str] = {}
    for member in members:
        for topic, partitions in member.owned.items():
            for partition in partitions:
                assert (topic, partition) not in found, f"{found[topic, partition]} and {member.id} have it"
                found[topic, partition] = member.id
    return found


@pytest.mark.parametrize("seed", range(3))
def test_answers_to_members_hold_after_a_kill(tmp_path: Path, seed: int) -> None:
    with BrokerProcess(tmp_path) as broker:
        connection = Connection(broker.address)
        topics = [{"name": name, "num_partitions": PARTITIONS, "replication_factor": 1} for name in TOPICS]
        for topic in topics:
            topic.update(assignments=[], configs=[])
        connection.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=30_000)
        connection.close()
        clients = [Client(number, seed) for number in range(CONNECTIONS)]
        members = list(itertools.chain.from_iterable(client.members for client in clients))
        for _ in range(2):
            enough = threading.Event()
            for client in clients:
                client.answers, client.unanswered = 0, None
            threads = [threading.Thread(target=client.run, args=(broker.address, enough)) for client in clients]
            for thread in threads:
                thread.start()
            assert enough.wait(60)
            broker.kill()
            for thread in threads:
                thread.join()
            owners([member for member in members if member not in [client.unanswered for client in clients]])
            broker.start()
            connection = Connection(broker.address)
            for client in clients:
                for member in client.members:
                    member.kafka = connection
                    check(member, was_answered=member is not client.unanswered)
            owners(members)
            settle([member for member in members if member.epoch >= 0])
            connection.close()


def check(member: Member, *, was_answered: bool) -> None:
    """The member goes on where it was."""
    if member.epoch < 0:
        if not was_answered and heartbeat(member.kafka, "g", member.id, 1).error_code != ErrorCode.unknown_member_id:
            # It was about to join, and the broker knows it: as a client would, it joins again.
            member.take(ask_join(member.kafka, "g", member.id, list(TOPICS)))
        return
    owned = [{"topic_id": topic, "partitions": partitions} for topic, partitions in member.owned.items()]
    # As clients do after an answer that was lost, it says everything, and so is told everything.
    full = {"rebalance_timeout": 60_000, "subscribed_topic_names": list(TOPICS), "topic_partitions": owned}
    answer = heartbeat(member.kafka, "g", member.id, member.epoch, **full)
    if answer.error_code == ErrorCode.none:
        member.take(answer)
    else:
        assert not was_answered, answer
        assert answer.error_code in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch), answer
        member.epoch, member.owned = -1, {}
        if answer.error_code == ErrorCode.fenced_member_epoch:
            member.take(ask_join(member.kafka, "g", member.id, list(TOPICS)))


def settle(members: list[Member]) -> None:
    """Heartbeats until somebody has each partition."""
    if not members:
        return
    for _ in range(500):
        for member in members:
            member.heartbeat()
        if len(owners(members)) == PARTITIONS * len(TOPICS):
            return
    told = {member.id: (member.epoch, member.owned) for member in members}
    raise AssertionError(f"the group does not settle: {told}, {describe(members[0].kafka, 'g')}")
