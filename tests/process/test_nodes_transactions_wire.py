"""Requests about transactions to single nodes of several: who answers what, by transactions version 2, too, and who may ask."""

import itertools
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.client.kafka.cluster import Cluster as KafkaCluster
from broker.client.kafka.config import ClientConfig
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import AuthenticationError, KafkaClientError
from broker.client.kafka.transaction import can_end_together, end_together
from broker.client.kafka.values import Identity
from broker.client.security_settings import Sasl
from broker.cluster.nodes import MECHANISM, coordinator_of, owner_of
from broker.metadata.shared_wire import decode, encode
from broker.runtime.channel import connect
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import own_apis
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.kafka_connection import parts
from tests.process.test_nodes_transactions import COUNT, Cluster, name_at
from tests.waiting import wait_for

_numbers = itertools.count()
# Of Produce: with it, a batch adds its partition to the transaction.
V2 = 12


class Me(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }


class Wire:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def ask(self, place: int, key: ApiKey, version: int, /, **fields: Any) -> Any:
        return self.cluster.ask(1 + place, key, version, **fields)

    def ports_of_nodes(self) -> list[int]:
        def started() -> list[Any]:
            return [event for event in self.cluster.events if event["event"] == "broker_started"]

        wait_for(lambda: COUNT == len(started()))
        return [int(event["nodes"].rpartition(":")[2]) for event in started()]

    def topic(self) -> str:
        name = f"t{next(_numbers)}"
        self.cluster.make_topic(name)
        return name

    def begin(self, place: int, name: str | None = None) -> Me:
        name = name or name_at(place, f"txn{next(_numbers)}")
        answer = self.ask(place, ApiKey.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=60_000)
        assert ErrorCode.none == answer.error_code
        return Me(name, answer.producer_id, answer.producer_epoch)

    def add(self, place: int, me: Me, topic: str, partition: int) -> int:
        answer = self.ask(
            place,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=me.transactional_id,
            v3_and_below_producer_id=me.producer_id,
            v3_and_below_producer_epoch=me.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": [partition]}],
        )
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def write(
        self, me: Me, topic: str, partition: int, *, version: int = V2, sequence: int = 0, name: str | None = None
    ) -> int:
        """The error code of the partition's node, which may have asked the coordinator."""
        batch = build_batch(
            [(None, b"v", [], int(time.time() * 1000))],
            producer_id=me.producer_id,
            producer_epoch=me.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        answer = self.ask(
            owner_of(topic, partition, COUNT),
            ApiKey.PRODUCE,
            version,
            transactional_id=name or me.transactional_id,
            acks=-1,
            timeout=5000,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}],
        )
        return int(answer.responses[0].partition_responses[0].error_code)

    def end(self, place: int, me: Me, commit: bool) -> Me:
        answer = self.ask(place, ApiKey.END_TXN, 5, **me.fields, committed=commit)
        assert ErrorCode.none == answer.error_code
        return me._replace(producer_id=answer.producer_id, epoch=answer.producer_epoch)

    def open_at(self, topic: str, partition: int) -> list[tuple[int, int]]:
        """Producer id and epoch of each producer with an open transaction."""
        answer = self.ask(
            owner_of(topic, partition, COUNT),
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            topics=[{"name": topic, "partition_indexes": [partition]}],
        )
        [described] = answer.topics[0].partitions
        assert ErrorCode.none == described.error_code
        return [
            (each.producer_id, each.producer_epoch)
            for each in described.active_producers
            if each.current_txn_start_offset >= 0
        ]

    def commit_offset(self, place: int, me: Me, group: str, topic: str, offset: int, version: int) -> int:
        answer = self.ask(
            place,
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            **me.fields,
            group_id=group,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": 0, "committed_offset": offset, "committed_metadata": None},
                    ],
                }
            ],
        )
        return int(answer.topics[0].partitions[0].error_code)

    def offset(self, place: int, group: str, topic: str) -> int:
        answer = self.ask(
            place,
            ApiKey.OFFSET_FETCH,
            5,
            group_id=group,
            topics=[{"name": topic, "partition_indexes": [0]}],
        )
        return int(answer.topics[0].partitions[0].committed_offset)

    def markers(self, place: int, me: Me, topic: str, partition: int, commit: bool) -> int:
        marker = {
            "producer_id": me.producer_id,
            "producer_epoch": me.epoch,
            "transaction_result": commit,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
            "coordinator_epoch": 0,
        }
        answer = self.ask(place, ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker])
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    def state(self, place: int, me: Me) -> str:
        answer = self.ask(place, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[me.transactional_id])
        return str(answer.transaction_states[0].transaction_state)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    cluster = Cluster(tmp_path_factory.mktemp("nodes"), count=COUNT)
    cluster.start()
    yield Wire(cluster)
    cluster.stop()


def partition_at(topic: str, place: int) -> int:
    return next(number for number in range(COUNT) if owner_of(topic, number, COUNT) == place)


@pytest.mark.parametrize("place", range(COUNT))
def test_a_first_batch_adds_its_partition_at_the_coordinator_and_the_end_fences_late_batches(
    wire: Wire, place: int
) -> None:
    topic, me = wire.topic(), wire.begin(place)
    for commit in (True, False, True):
        for partition in range(COUNT):
            assert ErrorCode.none == wire.write(me, topic, partition)
            assert ErrorCode.none == wire.write(me, topic, partition, sequence=1)
            assert [me[1:]] == wire.open_at(topic, partition)
        before, me = me, wire.end(place, me, commit)
        assert before._replace(epoch=before.epoch + 1) == me
        for partition in range(COUNT):
            assert [] == wire.open_at(topic, partition)
            assert ErrorCode.invalid_producer_epoch == wire.write(before, topic, partition, sequence=2)


@pytest.mark.parametrize("place", range(COUNT))
@pytest.mark.parametrize("writes_to", range(COUNT))
def test_batches_before_version_2_need_partitions_that_were_added(wire: Wire, place: int, writes_to: int) -> None:
    topic, me = wire.topic(), wire.begin(place)
    partition = partition_at(topic, writes_to)
    refused = wire.write(me, topic, partition, version=9)
    assert refused == ErrorCode.invalid_txn_state
    assert ErrorCode.none == wire.add(place, me, topic, partition)
    assert ErrorCode.none == wire.write(me, topic, partition, version=9)
    wire.end(place, me, True)
    assert ErrorCode.invalid_producer_epoch == wire.write(me, topic, partition, version=9, sequence=1)


@pytest.mark.parametrize("writes_to", range(COUNT))
def test_nobody_writes_with_another_producers_id(wire: Wire, writes_to: int) -> None:
    topic, victim, other = wire.topic(), wire.begin(0), wire.begin(0)
    partition = partition_at(topic, writes_to)
    assert ErrorCode.none == wire.write(victim, topic, partition)
    refused = wire.write(victim, topic, partition, sequence=1, name=other.transactional_id)
    assert refused == ErrorCode.invalid_producer_id_mapping
    assert ErrorCode.none == wire.write(victim, topic, partition, sequence=1)


def test_only_its_coordinator_answers_for_a_transactional_id(wire: Wire) -> None:
    topic, me = wire.topic(), wire.begin(0)
    init = wire.ask(1, ApiKey.INIT_PRODUCER_ID, 4, transactional_id=me.transactional_id, transaction_timeout=60_000)
    assert (ErrorCode.not_coordinator, -1, -1) == (init.error_code, init.producer_id, init.producer_epoch)
    assert ErrorCode.not_coordinator == wire.add(1, me, topic, 0)
    added = wire.ask(1, ApiKey.ADD_OFFSETS_TO_TXN, 3, **me.fields, group_id="g")
    assert ErrorCode.not_coordinator == added.error_code
    for version in (3, 5):
        ended = wire.ask(1, ApiKey.END_TXN, version, **me.fields, committed=True)
        assert ErrorCode.not_coordinator == ended.error_code
    described = wire.ask(1, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[me.transactional_id])
    assert ErrorCode.not_coordinator == described.transaction_states[0].error_code
    assert "Empty" == wire.state(0, me)


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("group_place", range(COUNT))
@pytest.mark.parametrize("place", range(COUNT))
def test_a_groups_node_asks_the_coordinator_before_it_keeps_offsets(
    wire: Wire, place: int, group_place: int, version: int
) -> None:
    topic, me = wire.topic(), wire.begin(place)
    group = name_at(group_place, f"group{next(_numbers)}")
    assert ErrorCode.not_coordinator == wire.commit_offset(1 - group_place, me, group, topic, 5, version)
    fenced = me._replace(epoch=me.epoch + 1)
    assert ErrorCode.invalid_producer_epoch == wire.commit_offset(group_place, fenced, group, topic, 5, version)
    if version == 3:
        assert ErrorCode.invalid_txn_state == wire.commit_offset(group_place, me, group, topic, 5, version)
        added = wire.ask(place, ApiKey.ADD_OFFSETS_TO_TXN, 3, **me.fields, group_id=group)
        assert ErrorCode.none == added.error_code
    assert ErrorCode.none == wire.commit_offset(group_place, me, group, topic, 5, version)
    assert -1 == wire.offset(group_place, group, topic)
    after = wire.end(place, me, True)
    assert 5 == wire.offset(group_place, group, topic)
    refused = wire.commit_offset(group_place, me, group, topic, 6, version)
    assert refused == ErrorCode.invalid_producer_epoch
    assert ErrorCode.none == wire.commit_offset(group_place, after, group, topic, 7, 5)
    wire.end(place, after, False)
    assert 5 == wire.offset(group_place, group, topic)


def test_an_operator_aborts_all_of_a_transaction_at_the_node_of_any_partition(wire: Wire) -> None:
    topic, me = wire.topic(), wire.begin(0)
    for partition in range(COUNT):
        assert ErrorCode.none == wire.write(me, topic, partition)
    elsewhere = partition_at(topic, 1)
    old = me._replace(epoch=me.epoch + 1)
    assert ErrorCode.invalid_producer_epoch == wire.markers(1, old, topic, elsewhere, False)
    assert ErrorCode.none == wire.markers(1, me, topic, elsewhere, False)
    wait_for(lambda: "CompleteAbort" == wire.state(0, me))
    for partition in range(COUNT):
        assert [] == wire.open_at(topic, partition)


def test_clients_decide_nothing(wire: Wire) -> None:
    topic, me = wire.topic(), wire.begin(0)
    for partition in range(COUNT):
        assert ErrorCode.none == wire.write(me, topic, partition)
        for place in range(COUNT):
            refused = wire.markers(place, me, topic, partition, True)
            assert refused == ErrorCode.cluster_authorization_failed
        assert [me[1:]] == wire.open_at(topic, partition)
    wire.end(0, me, False)


def test_the_listener_of_nodes_is_for_nodes_and_no_client_is_told_of_it(wire: Wire) -> None:
    ports = wire.ports_of_nodes()
    assert COUNT == len(set(ports))
    for place in range(COUNT):
        metadata = wire.ask(place, ApiKey.METADATA, 8, topics=[], allow_auto_topic_creation=False)
        assert not {broker.port for broker in metadata.brokers} & set(ports)
        resource = {"resource_type": 4, "resource_name": str(1 + place), "configuration_keys": None}
        described = wire.ask(place, ApiKey.DESCRIBE_CONFIGS, 1, resources=[resource], include_synonyms=False)
        values = {each.name: each.value for each in described.results[0].configs}
        assert not [port for port in ports if str(port) in values["advertised.listeners"] + values["listeners"]]
    address = ("127.0.0.1", ports[0])
    for user in ("node-1", "node-9", "admin"):
        stranger = Connection(address, ClientConfig(bootstrap=(address,), sasl=Sasl(MECHANISM, user, "guess")))
        with pytest.raises(AuthenticationError):
            stranger.open()
    anonymous = Connection(address, ClientConfig(bootstrap=(address,)))
    anonymous.open()  # versions are told to anybody
    with pytest.raises(KafkaClientError):
        anonymous.ask(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": []})


def test_the_secret_of_the_nodes_is_told_over_a_private_socket_and_shown_nowhere(wire: Wire) -> None:
    cluster = wire.cluster
    path = cluster.data_dir / ".nodes.socket"
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    channel = connect(str(path))
    channel.send(encode(["secret"]))
    answer = channel.receive(5.0)
    channel.close()
    assert answer is not None
    secret = decode(answer)[1]
    port = wire.ports_of_nodes()[0]
    for user, is_node in (("node-1", True), ("node-9", False)):
        config = ClientConfig(bootstrap=(("127.0.0.1", port),), sasl=Sasl(MECHANISM, user, secret))
        connection = Connection(("127.0.0.1", port), config)
        if is_node:
            connection.open()
            assert () == connection.ask(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": []}).markers
            with pytest.raises(KafkaClientError):  # it serves no clients
                connection.ask(ApiKey.METADATA, 8, {"topics": [], "allow_auto_topic_creation": False})
        else:
            with pytest.raises(AuthenticationError):
                connection.open()
    assert secret not in cluster.output
    for pid in [cluster.process.pid, *cluster.pids().values()]:
        for shown in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{pid}/{shown}").read_bytes()
    for file in cluster.data_dir.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()


def test_while_the_coordinator_stands_still_producers_are_told_to_try_again(wire: Wire) -> None:
    topic, me = wire.topic(), wire.begin(0)
    partition, group = partition_at(topic, 1), name_at(1, f"group{next(_numbers)}")
    with wire.cluster.standing_still(1):
        told = wire.write(me, topic, partition)
        assert told == ErrorCode.not_enough_replicas
        told = wire.commit_offset(1, me, group, topic, 5, 5)
        assert told == ErrorCode.coordinator_not_available
        assert [] == wire.open_at(topic, partition)
    wait_for(lambda: ErrorCode.none == wire.write(me, topic, partition))
    wait_for(lambda: ErrorCode.none == wire.commit_offset(1, me, group, topic, 5, 5))
    assert me[1:] == wire.open_at(topic, partition)[0]
    wire.end(0, me, True)
    assert [] == wire.open_at(topic, partition)
    assert 5 == wire.offset(1, group, topic)


@pytest.mark.parametrize("commit", [True, False])
def test_the_producers_of_a_job_end_their_transactions_by_one_decision(wire: Wire, commit: bool) -> None:
    topic, job = wire.topic(), f"job{next(_numbers)}"
    place, group = coordinator_of(job, COUNT), name_at(next(_numbers) % COUNT, job)
    members = [wire.begin(place, name) for name in (job, *(f"{job}/{task}/0" for task in range(3)))]
    for number, me in enumerate(members):
        for partition in range(COUNT):
            assert ErrorCode.none == wire.write(me, topic, partition), number
    assert ErrorCode.none == wire.commit_offset(coordinator_of(group, COUNT), members[0], group, topic, 5, 5)
    identities = [Identity(*me) for me in members]
    with KafkaCluster(ClientConfig.from_properties({"bootstrap.servers": wire.cluster.address})) as cluster:
        assert can_end_together(cluster.routing, job)
        end_together(cluster.routing, identities, commit)
    wait_for(lambda: {"CompleteCommit" if commit else "CompleteAbort"} == {wire.state(place, me) for me in members})
    for partition in range(COUNT):
        assert [] == wire.open_at(topic, partition)
    assert (5 if commit else -1) == wire.offset(coordinator_of(group, COUNT), group, topic)


def test_a_joint_decision_about_ids_of_several_nodes_is_refused(wire: Wire) -> None:
    members = [wire.begin(place) for place in range(COUNT)]
    asked = [own_apis.Member(*me) for me in members]
    address = parts(wire.cluster.address)
    connection = Connection(address, ClientConfig(bootstrap=(address,)))
    connection.open()
    answer = connection.exchange(
        ApiKey.END_TXNS, lambda number: own_apis.request(number, "test", asked, True), own_apis.parse_response, 5000
    )
    connection.close()
    assert (ErrorCode.not_coordinator, 1) == (answer.error, answer.error_index)
