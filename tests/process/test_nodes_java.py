"""Kafka's own Java clients consume, transform and produce exactly once over three nodes, of which one is killed every 5 s.

``BROKER_KILL_CYCLES`` says how often (3), ``BROKER_KILL_SEED`` which ones (drawn anew each time, and shown when it fails).
"""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.compat.clients import java
from tests.process.nodes import IDS, Nodes
from tests.process.test_kill import SEED

CYCLES = int(os.environ.get("BROKER_KILL_CYCLES", "3"))
EVERY_S = 5.0
pytestmark = pytest.mark.timeout(240 + 15 * CYCLES)


def test_all_is_transformed_once_while_nodes_are_killed(tmp_path: Path) -> None:
    jars = java.jars_or_skip()
    print(f"BROKER_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    with Nodes(tmp_path) as cluster, (tmp_path / "errors").open("w+") as errors:
        servers = ",".join(cluster.nodes().values())
        command = java.command(jars, "ExactlyOnce", servers, "once")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            try:
                assert "started\n" == program.stdout.readline(), (tmp_path / "errors").read_text()
                for _ in range(CYCLES):
                    time.sleep(EVERY_S)
                    assert program.poll() is None, (tmp_path / "errors").read_text()
                    cluster.kill_node(chance.choice(IDS))
                program.stdin.close()
                said = program.stdout.read()
            finally:
                program.kill()
        assert said, (tmp_path / "errors").read_text()[-5000:]
        print(said)
        found = {name: int(number) for name, _, number in (word.partition("=") for word in said.split())}
        assert (found["written"], 0, 0) == (found["committed"], found["lost"], found["twice"]), said
        assert found["transactions"] > found["aborted"] > 0
        assert 0 == cluster.stop()
        assert {"node_ended"} >= {event["event"] for event in cluster.errors}
