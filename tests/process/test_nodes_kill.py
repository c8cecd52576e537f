"""kill -9 of one node after the other under clients of many kinds: each is started again, and nothing is lost.

``BROKER_KILL_CYCLES`` says how often (5); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails). With
``BROKER_STILL_S=60``, nodes under transactions stand still for so long, in half of the cycles.
"""

import os
import random
import time
from pathlib import Path

import attrs
import pytest

from tests.durable.machine_load import Transacting, make
from tests.durable.mixed_load import SETTINGS, MixedLoad
from tests.process.nodes import IDS, Nodes
from tests.process.test_kill import CYCLES, SEED
from tests.waiting import wait_for

STILL_S = float(os.environ.get("BROKER_STILL_S", "0"))
PARTS = ("idempotent", "large", "leader", "compacted")
pytestmark = pytest.mark.timeout(240 + (30 + STILL_S) * CYCLES)


def test_nothing_is_lost_with_a_node(tmp_path: Path) -> None:
    print(f"BROKER_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    nodes = Nodes(tmp_path, *SETTINGS)
    nodes.start()
    with MixedLoad(nodes, SEED, PARTS) as load:
        for _ in range(CYCLES):
            load.go_on()
            time.sleep(chance.uniform(0.0, 0.5))
            crash(nodes, chance.choice(IDS))
        load.go_on()
        load.finish()
        print(load.check())
    assert nodes.stop() == 0
    assert {"node_ended"} >= {event["event"] for event in nodes.events if event["level"] == "error"}


def crash(nodes: Nodes, node_id: int) -> None:
    """Returns when it is started again."""
    before = nodes.pids()
    nodes.crash_node(node_id)
    wait_for(lambda: nodes.pids() != before, f"node {node_id} is not started again")


@attrs.frozen
class Served:
    addresses: str


def test_transactions_contradict_no_order_when_nodes_are_killed(tmp_path: Path) -> None:
    print(f"BROKER_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    with Nodes(tmp_path) as nodes:
        served = Served(",".join(nodes.nodes().values()))
        make(served, "lists")
        transacting = Transacting(served, "lists")
        transacting.start()
        for _ in range(CYCLES):
            transacting.go_on()
            time.sleep(chance.uniform(0.0, 0.1))
            node_id = chance.choice(IDS)
            if STILL_S and chance.random() < 0.5:
                with nodes.standing_still(node_id):
                    time.sleep(STILL_S)
            else:
                crash(nodes, node_id)
        transacting.go_on()
        print(transacting.finish())
        assert nodes.stop() == 0
