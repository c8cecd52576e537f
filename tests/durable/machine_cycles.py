"""Loses machines of a cluster, stops them, has them stand still, and kills the database, again and again under load.

``python -m tests.durable.machine_cycles --cycles 20 --machines 3 --nodes 4`` says what happened and how long it took until every
partition had taken records again; in the end, what is stored is compared with what clients were told.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.durable.durable_broker import durable_postgres, wait_until
from tests.durable.machine_load import Changing, Reading, Writing, make, stored
from tests.durable.machines import Cluster, Machine
from tests.durable.postgres import PostgresServer

# Longer than the lease.
STILL_S = 12.0


def _lose(_cluster: Cluster, machine: Machine) -> None:
    machine.lose()


def _kill(_cluster: Cluster, machine: Machine) -> None:
    machine.kill()


def _stop(_cluster: Cluster, machine: Machine) -> None:
    assert 0 == machine.stop()


def _stand_still(_cluster: Cluster, machine: Machine) -> None:
    machine.stand_still()
    time.sleep(STILL_S)
    machine.go_on()


def _kill_database(cluster: Cluster, _machine: Machine) -> None:
    cluster.postgres.kill()
    time.sleep(0.5)
    cluster.postgres.start()


TROUBLES: dict[str, Callable[[Cluster, Machine], None]] = {
    "lost": _lose,
    "killed": _kill,
    "stopped": _stop,
    "standing still": _stand_still,
    "without database": _kill_database,
}


def trouble_machines(
    directory: Path,
    postgres: PostgresServer,
    cycles: int,
    seed: int,
    *,
    machines: int = 2,
    nodes: int = 3,
    tell: Callable[[str], None] = print,
) -> list[float]:
    """Returns how long (s) each trouble lasted. AssertionError if anything that was acknowledged is not as it was said to be."""
    chance = random.Random(seed)
    cluster = Cluster(
        directory,
        postgres,
        nodes,
        "log_segment_bytes=200000",
        "remote_log_manager_task_interval_ms=500",
        "auto_create_topics_enable=false",  # a producer would make again what was deleted
    )
    took = []
    try:
        running = cluster.start(machines)
        make(cluster, "t")
        writing, reading, changing = Writing(cluster, "t"), Reading(cluster, "t"), Changing(cluster, seed)
        for thread in (writing, reading, changing):
            thread.start()
        for _ in range(cycles):
            writing.go_on()
            time.sleep(chance.uniform(0.0, 1.0))
            name, machine = chance.choice(list(TROUBLES)), chance.choice(running)
            began = time.monotonic()
            TROUBLES[name](cluster, machine)
            writing.go_on()
            took.append(time.monotonic() - began)
            tell(f"{name}: {took[-1]:.1f} s; {writing.count} records, {changing.changes} changes of topics")
            if machine.process.poll() is not None:
                machine.launch()
                machine.wait_until_ready()
            cluster.wait_for_balance(running)
        changing.finish()
        acknowledged = writing.finish()
        assert acknowledged == stored(cluster, "t")
        wait_until(lambda: reading.has_read(acknowledged), "not everything is read")
        assert acknowledged == reading.stop()
        tell(
            f"seed {seed}: {sum(map(len, acknowledged))} records, none lost, none twice; {changing.changes} changes of topics"
        )
    finally:
        cluster.end()
    return took


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durable.machine_cycles")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--machines", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="machines-"))
    with durable_postgres() as postgres:
        trouble_machines(
            root,
            postgres,
            given.cycles,
            given.seed,
            machines=given.machines,
            nodes=given.nodes,
            tell=lambda line: print(line, flush=True),
        )
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
