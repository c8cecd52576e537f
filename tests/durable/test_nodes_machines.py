"""Several machines that are one cluster: whichever is lost, stands still or stops, the others have its nodes, whole."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.durable.durable_broker import durable_postgres, wait_until
from tests.durable.machine_load import PARTITIONS, Reading, Transacting, Writing, client, make, stored
from tests.durable.machines import Cluster, Machine
from tests.process import test_nodes_hops as hops
from tests.process.broker_process import PATIENCE_S, runs

NODES = 3


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with durable_postgres() as postgres:
        made = Cluster(tmp_path, postgres, NODES, *getattr(request, "param", ()))
        yield made
        made.end()


def test_topics_and_records_are_at_any_machine(cluster: Cluster) -> None:
    cluster.start(2)
    for place in range(NODES):
        metadata = AdminClient(client(cluster)).list_topics()
        brokers = {(node_id - 1) % NODES: broker for node_id, broker in metadata.brokers.items()}
        assert [0, 1, 2] == sorted(brokers)
        assert {1, 2, 3} != set(metadata.brokers)  # those on the second machine have other ids
        broker = brokers[place]
        admin = AdminClient({"bootstrap.servers": f"{broker.host}:{broker.port}"})
        [made] = admin.create_topics([NewTopic(f"t{place}", PARTITIONS)]).values()
        made.result(PATIENCE_S)
        for other in metadata.brokers.values():  # whoever is asked next knows
            elsewhere = AdminClient({"bootstrap.servers": f"{other.host}:{other.port}"})
            found = elsewhere.list_topics().topics[f"t{place}"].partitions
            assert sorted(metadata.brokers) == sorted({each.leader for each in found.values()})
    writing = Writing(cluster, "t0")
    writing.start()
    writing.go_on()
    assert writing.finish() == stored(cluster, "t0")


@pytest.mark.parametrize("cluster", [hops.SETTINGS], indirect=True, ids=["acl"])
def test_a_client_that_hops_between_machines_lives_as_well_as_any_other(cluster: Cluster) -> None:
    cluster.start(2)
    brokers = AdminClient(client(cluster)).list_topics().brokers
    assert NODES == len(brokers)
    addresses = {node_id: f"{broker.host}:{broker.port}" for node_id, broker in brokers.items()}
    for place in range(NODES):
        hops.live(addresses, place)


def test_a_machine_is_lost_and_comes_back(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    make(cluster, "t")
    writing = Writing(cluster, "t")
    groups = [Reading(cluster, "t", protocol) for protocol in ("classic", "consumer")]
    for thread in (writing, *groups):
        thread.start()
    for lost, other in ((first, second), (second, first)):
        for thread in (writing, *groups):
            thread.go_on()
        lost.lose()
        cluster.wait_for_all([other])
        for thread in (writing, *groups):
            thread.go_on()
        lost.launch()
        lost.wait_until_ready()
        cluster.wait_for_balance([first, second])
    acknowledged = writing.finish()
    assert acknowledged == stored(cluster, "t")
    for group in groups:
        wait_until(partial(group.has_read, acknowledged), "not everything is read")
        assert acknowledged == group.stop()


def test_transactions_over_nodes_are_whole_when_a_machine_is_lost(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    make(cluster, "t")
    transacting = Transacting(cluster, "t")
    transacting.start()
    for lost, other in ((first, second), (second, first)):
        transacting.go_on()
        lost.lose()
        cluster.wait_for_all([other])
        transacting.go_on()
        lost.launch()
        lost.wait_until_ready()
        cluster.wait_for_balance([first, second])
    transacting.go_on()
    transacting.finish()


def test_a_supervisor_that_is_killed_takes_its_nodes_along(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    family = first.family
    assert 1 + NODES == len(family)
    first.kill()
    cluster.wait_for_all([second])
    wait_until(lambda: not any(map(runs, family)), "a node has survived")


def test_a_machine_that_stops_hands_its_nodes_over(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    make(cluster, "t")
    writing = Writing(cluster, "t")
    writing.start()
    writing.go_on()
    assert 0 == first.stop()
    cluster.wait_for_all([second])
    writing.go_on()
    assert writing.finish() == stored(cluster, "t")
    assert [] == first.errors + second.errors


def test_a_machine_that_stood_still_does_no_harm(cluster: Cluster) -> None:
    first, second = cluster.start(2)
    make(cluster, "t")
    writing = Writing(cluster, "t")
    writing.start()
    writing.go_on()
    first.stand_still()
    cluster.wait_for_all([second])
    writing.go_on()
    first.go_on()
    cluster.wait_for_balance([first, second])
    writing.go_on()
    assert writing.finish() == stored(cluster, "t")


def test_the_engine_is_away_at_the_start_and_in_the_middle(cluster: Cluster) -> None:
    cluster.postgres.kill()
    machine = cluster.machine()
    machine.launch()
    wait_until(lambda: "waiting_for_engine" in machine.output, "it does not say what it waits for")
    cluster.postgres.start()
    machine.wait_until_ready()
    make(cluster, "t")
    writing = Writing(cluster, "t")
    writing.start()
    writing.go_on()
    cluster.postgres.kill()
    time.sleep(1.0)
    cluster.postgres.start()
    writing.go_on()
    make(cluster, "u")
    assert writing.finish() == stored(cluster, "t")


def test_the_number_of_nodes_cannot_be_changed(cluster: Cluster) -> None:
    cluster.start(1)
    other = cluster.machine()
    other.options = ("--nodes", str(NODES + 1))
    other.launch()
    assert 2 == other.process.wait(PATIENCE_S)
    assert "Start the broker with --nodes 3" in other.output


def test_a_listener_that_only_its_own_machine_knows_is_refused(cluster: Cluster) -> None:
    machine = cluster.machine()
    machine.listener = "kafka://0.0.0.0:0"
    machine.launch()
    assert 2 == machine.process.wait(PATIENCE_S)
    assert "Give the listener kafka the address of this machine" in machine.output


def test_a_broker_alone_is_refused_the_catalogue_of_several(cluster: Cluster) -> None:
    cluster.start(1)[0].stop()
    alone: Machine = cluster.machine()
    alone.options = ()
    alone.launch()
    assert 2 == alone.process.wait(PATIENCE_S)
    assert "Start the broker with --nodes 3" in alone.output


def test_users_that_one_node_makes_are_known_to_all(cluster: Cluster) -> None:
    cluster.start(2)
    brokers = AdminClient(client(cluster)).list_topics().brokers
    admins = [AdminClient({"bootstrap.servers": f"{each.host}:{each.port}"}) for _, each in sorted(brokers.items())]
    made = UserScramCredentialUpsertion("anna", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")
    admins[0].alter_user_scram_credentials([made])["anna"].result(PATIENCE_S)
    for admin in admins:
        wait_until(partial(_knows, admin, "anna"), "a node has not heard of it")


def _knows(admin: AdminClient, user: str) -> bool:
    try:
        return bool(admin.describe_user_scram_credentials([user])[user].result(PATIENCE_S).scram_credential_infos)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.RESOURCE_NOT_FOUND:
            return False
        raise
