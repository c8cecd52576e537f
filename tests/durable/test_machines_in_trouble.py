"""Machines of a cluster that are set up wrongly, or lose a part of what they need: each says so, and nothing that was
acknowledged is lost or doubled."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cluster.nodes import owner_of
from broker.metadata.postgres_cluster import SEEN_S
from tests.durable.durable_broker import durable_postgres, wait_until
from tests.durable.machine_load import PARTITIONS, Late, Transacting, Writing, make, stored
from tests.durable.machines import Cluster, Machine
from tests.durable.postgres import PostgresServer, shared_server
from tests.durable.proxy import Proxy
from tests.durable.s3_server import S3Server
from tests.process.broker_process import PATIENCE_S

NODES = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with durable_postgres() as postgres:
        made = Cluster(tmp_path, postgres, NODES)
        yield made
        made.end()


@pytest.fixture
def far(tmp_path: Path, seaweed: S3Server) -> Iterator[Cluster]:
    """Machines whose ways to the engine and to the store can be cut."""
    with durable_postgres() as postgres:
        made = Cluster(tmp_path, postgres, NODES, store=seaweed)
        yield made
        made.end()


@pytest.fixture
def proxies() -> Iterator[list[Proxy]]:
    made: list[Proxy] = []
    yield made
    for proxy in made:
        proxy.close()


def writing_to(cluster: Cluster, topic: str = "t") -> Writing:
    make(cluster, topic)
    writing = Writing(cluster, topic)
    writing.start()
    writing.go_on()
    return writing


def set_read_only(postgres: PostgresServer, value: str) -> None:
    with postgres.connect() as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        connection.execute("SELECT pg_reload_conf()")


def test_a_data_directory_is_used_by_one_machine(cluster: Cluster) -> None:
    first = cluster.start(1)[0]
    second = cluster.machine()
    second.data_dir = first.data_dir
    second.launch()
    assert 2 == second.process.wait(PATIENCE_S)
    assert f"uses {first.data_dir}: stop it" in second.output
    assert first.process.poll() is None
    assert len(cluster.serving()) == NODES


def test_nothing_is_handed_over_to_a_machine_that_was_just_lost(cluster: Cluster) -> None:
    first, second = cluster.start(2)

    def handed_over() -> int:
        return [event["event"] for event in second.events].count("node_handed_over")

    before = handed_over()
    first.lose()
    cluster.wait_for_all([second])
    time.sleep(SEEN_S)  # for so long the other one counts as being there
    assert before == handed_over()


def test_machines_of_different_versions_say_so(cluster: Cluster) -> None:
    machine = cluster.start(1)[0]
    with cluster.postgres.connect() as connection:
        connection.execute(
            "INSERT INTO broker.machines VALUES ('old', %s, '0.0.1', clock_timestamp() + interval '1 hour')", (NODES,)
        )
    wait_until(lambda: "versions_differ" in machine.output, "nothing is said")
    (event,) = [event for event in machine.events if event["event"] == "versions_differ"]
    assert ["0.0.1"] == event["others"]
    writing = writing_to(cluster)  # a machine that takes no node does not hold up the others
    assert writing.finish() == stored(cluster, "t")


def test_a_machine_whose_clock_is_an_hour_off_takes_over_and_is_taken_over(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(
        "import time\nright = time.time_ns\ntime.time_ns = lambda: right() + 3_600_000_000_000\n"
        "time.time = lambda: time.time_ns() / 1e9\n"
    )
    path = os.pathsep.join([str(tmp_path / "clock"), *filter(None, [os.environ.get("PYTHONPATH")])])
    ahead = cluster.machine(environment={"PYTHONPATH": path})
    ahead.start()
    right = cluster.start(1)[0]
    cluster.wait_for_balance([ahead, right])
    writing = writing_to(cluster)
    for lost, other in ((ahead, right), (right, ahead)):
        lost.lose()
        cluster.wait_for_all([other])
        writing.go_on()
        lost.launch()
        lost.wait_until_ready()
        cluster.wait_for_balance([ahead, right])
        writing.go_on()
    assert writing.finish() == stored(cluster, "t")


def test_an_engine_that_takes_no_writes_is_waited_for(cluster: Cluster) -> None:
    set_read_only(cluster.postgres, "on")
    machine = cluster.machine()
    machine.launch()
    wait_until(lambda: "waiting_for_engine" in machine.output, "it does not say what it waits for")
    assert "read-only" in machine.output
    set_read_only(cluster.postgres, "off")
    machine.wait_until_ready()
    writing = writing_to(cluster)
    set_read_only(cluster.postgres, "on")
    wait_until(lambda: "read-only" in machine.output.rpartition('"broker_started"')[2], "nothing is said", PATIENCE_S)
    set_read_only(cluster.postgres, "off")
    writing.go_on()
    assert writing.finish() == stored(cluster, "t")


def through(proxy: Proxy, machine: Machine, port: int) -> None:
    """The machine reaches the engine by the proxy."""
    machine.settings[0] = machine.settings[0].replace(f":{port}/", f":{proxy.port}/")


def test_a_machine_without_the_engine_leaves_its_nodes_to_others(cluster: Cluster, proxies: list[Proxy]) -> None:
    proxy = Proxy(cluster.postgres.port)
    proxies.append(proxy)
    cut = cluster.machine()
    through(proxy, cut, cluster.postgres.port)
    cut.start()
    other = cluster.start(1)[0]
    writing = writing_to(cluster)
    make(cluster, "whole")
    transacting = Transacting(cluster, "whole")
    transacting.start()
    transacting.go_on()
    proxy.lose_clients()
    cluster.wait_for_all([other])
    writing.go_on()
    transacting.go_on()
    assert writing.finish() == stored(cluster, "t")
    transacting.finish()


@pytest.mark.timeout(480)
def test_a_machine_that_the_network_cuts_off_from_the_engine_acknowledges_nothing_late(far: Cluster) -> None:
    """Nobody is told of the cut. What was sent meanwhile arrives after it."""
    cut, other = far.start(2)
    writing = writing_to(far)
    make(far, "late")
    late = Late("late", far.owners("late", PARTITIONS, cut))
    of_acks_1 = Late("late", far.owners("late", PARTITIONS, cut))
    cut.ways["engine"].hold()
    late.send()
    of_acks_1.send(acks=1)
    far.wait_for_all([other])
    writing.go_on()
    cut.ways["engine"].let_go()
    assert (0, 0) == (late.acknowledged(), of_acks_1.acknowledged())
    far.wait_for_balance([cut, other])
    writing.go_on()
    assert writing.finish() == stored(far, "t")
    assert [[]] * PARTITIONS == stored(far, "late")


def writing_large(cluster: Cluster) -> Writing:
    """Records to the topic ``large``, each too large for a row: it waits for the store."""
    make(cluster, "large")
    writing = Writing(cluster, "large", size=100_000)
    writing.start()
    writing.go_on()
    return writing


@pytest.mark.timeout(480)
def test_a_machine_without_the_store_holds_up_its_own_partitions_only(far: Cluster) -> None:
    cut, other = far.start(2)
    writing = writing_large(far)
    elsewhere = far.owners("large", PARTITIONS, other)
    cut.ways["store"].hold()
    before = [len(each) for each in writing.acknowledged]
    wait_until(
        lambda: all(len(writing.acknowledged[each]) > before[each] + 5 for each in elsewhere), "others are held up"
    )
    cut.ways["store"].let_go()
    writing.go_on()
    assert writing.finish() == stored(far, "large")


def taken_over(machine: Machine) -> int:
    return [event["event"] for event in machine.events].count("state_taken_over")


@pytest.mark.timeout(480)
def test_a_take_over_waits_for_the_store(far: Cluster) -> None:
    cut, other = far.start(2)
    writing = writing_large(far)
    far.wait_for_standbys(other)  # which has needed the store to start
    before = taken_over(cut)
    cut.ways["store"].refuse()
    other.lose()
    wait_until(lambda: taken_over(cut) > before, "it does not take the other one's node over")
    refused = cut.ways["store"].refused
    wait_until(lambda: cut.ways["store"].refused > refused, "it does not ask the store")
    time.sleep(1.0)
    assert len(far.serving()) < NODES  # what the node has is in the store
    cut.ways["store"].refusing = False
    far.wait_for_all([cut])
    writing.go_on()
    assert writing.finish() == stored(far, "large")


def put_between(cluster: Cluster, proxies: list[Proxy], listener: str) -> None:
    """A proxy before this listener of each node, by its place. It holds until a node is taken over, or topics change."""
    with cluster.postgres.connect() as connection:
        for node, about in connection.execute("SELECT node, about FROM broker.nodes ORDER BY node").fetchall():
            told = json.loads(str(about))
            host, port = told["endpoints"][listener]
            proxies.append(Proxy(port, host))
            told["endpoints"][listener] = ["127.0.0.1", proxies[-1].port]
            connection.execute("UPDATE broker.nodes SET about = %s WHERE node = %s", (json.dumps(told), node))


def cut(proxy: Proxy) -> None:
    proxy.refusing = True
    proxy.cut()


def test_transactions_are_whole_when_nodes_do_not_reach_each_other(cluster: Cluster, proxies: list[Proxy]) -> None:
    cluster.start(2)
    make(cluster, "t")
    put_between(cluster, proxies, "nodes")
    transacting = Transacting(cluster, "t")
    transacting.start()
    transacting.go_on()
    wait_until(lambda: any(proxy.answers for proxy in proxies), "nodes ask each other some other way")
    for _ in range(3):
        for proxy in proxies:
            cut(proxy)
        time.sleep(1.0)
        for proxy in proxies:
            proxy.refusing = False
        transacting.go_on()
    transacting.finish()


def test_a_node_that_clients_do_not_reach_holds_up_its_own_partitions_only(
    cluster: Cluster, proxies: list[Proxy]
) -> None:
    cluster.start(1)
    make(cluster, "t")
    put_between(cluster, proxies, "kafka")
    writing = Writing(cluster, "t")
    writing.start()
    writing.go_on()
    cut(proxies[0])
    elsewhere = [partition for partition in range(PARTITIONS) if owner_of("t", partition, NODES) != 0]
    before = [len(each) for each in writing.acknowledged]
    wait_until(
        lambda: all(len(writing.acknowledged[each]) > before[each] + 20 for each in elsewhere), "others are held up"
    )
    proxies[0].refusing = False
    writing.go_on()
    assert writing.finish() == stored(cluster, "t")


def test_a_directory_that_is_deleted_by_hand_costs_no_record(cluster: Cluster) -> None:
    """Its partition may go offline, until another machine has the node."""
    first, second = cluster.start(2)
    writing = writing_to(cluster)
    for directory in first.data_dir.glob("nodes/*/t-*"):
        shutil.rmtree(directory)
    time.sleep(1.0)  # it goes on, as far as it can
    first.lose()
    cluster.wait_for_all([second])
    writing.go_on()
    assert writing.finish() == stored(cluster, "t")


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of its own for PostgreSQL."""
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a disk")
    for parent in [disk, *disk.parents]:  # its own user has to reach it
        if parent.stat().st_uid == os.getuid() and str(parent) != "/":
            parent.chmod(parent.stat().st_mode | 0o011)
    shared_server()  # what all servers are copied from is made elsewhere
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_nothing_is_lost_while_the_engine_s_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    with durable_postgres() as postgres:
        cluster = Cluster(tmp_path, postgres, NODES)
        try:
            machine = cluster.start(1)[0]
            writing = writing_to(cluster)
            filler = fill(small_disk)
            wait_until(lambda: "No space left" in machine.output, "nothing is said")
            filler.unlink()
            writing.go_on()
            make(cluster, "u")
            assert writing.finish() == stored(cluster, "t")
        finally:
            cluster.end()


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler
