"""`broker backup` of several nodes of one machine, while transactions span them: one moment of all of them, which is restored for
any number of nodes, and nothing half-done if a node is lost meanwhile.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.compat.clients.librdkafka import settings
from tests.process.broker_process import PATIENCE_S, BrokerProcess
from tests.process.nodes import Nodes
from tests.process.test_backup import (
    SMALL_SEGMENTS,
    back_up_under_load,
    check,
    command,
    ends,
    fill,
    make_topics,
)
from tests.process.test_kill import inspect

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, *SMALL_SEGMENTS, schemes=["pulsar"]) as running:
        make_topics(running.address)
        yield running


def staging(nodes: Nodes) -> list[Path]:
    places = [nodes.data_dir, *nodes.data_dir.glob("nodes/*")]
    return [place / ".backup" for place in places if (place / ".backup").exists()]


def test_a_backup_under_load_is_restored_for_any_number(nodes: Nodes, tmp_path: Path) -> None:
    taken = back_up_under_load(nodes, tmp_path, list(nodes.nodes().values()))
    assert [] == staging(nodes)
    assert 0 == nodes.stop()
    for count, (target, before) in zip((1, 2, 4), taken, strict=True):
        directory = tmp_path / f"n{count}"  # a short name, as there is a socket below
        directory.mkdir()
        command("restore", target, directory / "data")
        restored = check(directory, before, ("--nodes", str(count)))
        if count == 1:
            inspect(restored)
    assert [] == nodes.errors


def test_a_node_that_stands_still_fails_the_backup(nodes: Nodes, tmp_path: Path) -> None:
    fill(nodes.address, 100, 100)
    with nodes.standing_still(3):
        said = command("backup", "-b", nodes.address, tmp_path / "backup", fails=1)
    assert "Node 3 does not take part" in said or "Node 3 stands still" in said
    assert not (tmp_path / "backup" / "backup.json").exists()
    assert [] == staging(nodes)
    again(nodes, tmp_path)


def test_a_node_that_is_killed_fails_the_backup_or_does_not_matter(nodes: Nodes, tmp_path: Path) -> None:
    fill(nodes.address, 1000, 100)
    outcomes = set()
    for number in range(6):
        target = tmp_path / f"backup-{number}"
        line = [sys.executable, "-m", "broker", "backup", "-b", nodes.address, str(target)]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + PATIENCE_S
        while not staging(nodes) and process.poll() is None:
            assert time.monotonic() < deadline
        before = nodes.pids()
        os.kill(before[2 + number % 2], signal.SIGKILL)
        said = process.communicate(timeout=2 * PATIENCE_S)[0].decode()
        outcomes.add(process.returncode)
        assert (process.returncode == 0) == (target / "backup.json").exists(), said
        if process.returncode == 0:
            command("backup", "--verify", target)
        else:
            assert "has ended while the backup was made" in said or "are there, and a backup needs" in said
        nodes.wait_for_all()
    again(nodes, tmp_path)


def test_the_asked_node_is_killed_and_nothing_stays(nodes: Nodes, tmp_path: Path) -> None:
    fill(nodes.address, 1000, 100)
    line = [sys.executable, "-m", "broker", "backup", "-b", nodes.address, str(tmp_path / "backup")]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + PATIENCE_S
    while not staging(nodes):
        assert time.monotonic() < deadline and process.poll() is None
    os.kill(nodes.pids()[1], signal.SIGKILL)
    process.communicate(timeout=2 * PATIENCE_S)
    assert (process.returncode == 0) == (tmp_path / "backup" / "backup.json").exists()
    nodes.wait_for_all()
    while staging(nodes):
        assert time.monotonic() < deadline, "what was left over is still there"
        time.sleep(0.02)
    again(nodes, tmp_path)


def test_a_backup_in_a_store_is_of_all_nodes(nodes: Nodes, tmp_path: Path) -> None:
    fill(nodes.address, 100, 100)
    url = f"file://{tmp_path}/store"
    said = json.loads(command("backup", url, "-b", nodes.nodes()[3], "--output", "json"))
    assert (6, []) == (said["partitions"], said["offline"])
    command("backup", "--verify", url)
    command("restore", "--from", url, tmp_path / "new" / "data")
    restored = BrokerProcess(tmp_path / "new")
    restored.options = ("--nodes", "2")
    with restored:
        assert (0, 100) == ends(restored.address, "second")


def again(nodes: Nodes, tmp_path: Path) -> None:
    """A backup is made now, and has all that was acknowledged."""
    nodes.wait_for_all()
    count = ends(nodes.address, "second")[1]
    producer = Producer(settings(nodes.address))
    producer.produce("second", b"%d" % count)
    assert 0 == producer.flush(PATIENCE_S)
    command("backup", "-b", nodes.address, tmp_path / "again")
    command("backup", "--verify", tmp_path / "again")
    said = json.loads(command("restore", tmp_path / "again", tmp_path / "new" / "data", "--output", "json"))
    assert 6 == said["partitions"]
    with BrokerProcess(tmp_path / "new") as restored:
        assert (0, count + 1) == ends(restored.address, "second")
