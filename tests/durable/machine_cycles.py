"""Loses machines of a cluster, stops them, has them stand still, cuts them off from the database or the object store, and kills
the database, again and again under load.

``python -m tests.durable.machine_cycles --cycles 20 --machines 3 --nodes 4`` says what happened and how long it took until every
partition had taken records again; in the end, what is stored is compared with what clients were told. ``--only "standing still"
--longest 60`` does one of these things, for up to so long.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.durable.durable_broker import durable_postgres, wait_until
from tests.durable.machine_load import PARTITIONS, Changing, Late, Reading, Transacting, Writing, make, stored
from tests.durable.machines import Cluster, Machine
from tests.durable.postgres import PostgresServer
from tests.durable.s3_server import shared_seaweed

# Within the lease, and longer than it.
_SHORT_S, STILL_S = 3.0, 12.0


def _lose(_cluster: Cluster, machine: Machine, _away_s: float) -> None:
    machine.lose()


def _kill(_cluster: Cluster, machine: Machine, _away_s: float) -> None:
    machine.kill()


def _stop(_cluster: Cluster, machine: Machine, _away_s: float) -> None:
    assert 0 == machine.stop()


def _stand_still(cluster: Cluster, machine: Machine, away_s: float) -> None:
    late = _late(cluster, machine)
    machine.stand_still()
    _send(late)
    time.sleep(away_s)
    others_serve = all(name != machine.name for name in cluster.serving().values())
    machine.go_on()
    assert not others_serve or [0, 0] == [each.acknowledged() for each in late]


def _cut_off(way: str, cluster: Cluster, machine: Machine, away_s: float) -> None:
    """Nobody is told."""
    late = _late(cluster, machine)
    machine.ways[way].hold()
    _send(late)
    time.sleep(away_s)
    others_serve = all(name != machine.name for name in cluster.serving().values())
    machine.ways[way].let_go()
    assert not others_serve or [0, 0] == [each.acknowledged() for each in late]


def _refuse(way: str, _cluster: Cluster, machine: Machine, away_s: float) -> None:
    machine.ways[way].refuse()
    time.sleep(away_s)
    machine.ways[way].refusing = False


def _kill_database(cluster: Cluster, _machine: Machine, _away_s: float) -> None:
    cluster.postgres.kill()
    time.sleep(0.5)
    cluster.postgres.start()


def _late(cluster: Cluster, machine: Machine) -> list[Late]:
    """To the nodes that this machine has."""
    return [Late("late", cluster.owners("late", PARTITIONS, machine)) for _ in range(2)]


def _send(late: list[Late]) -> None:
    for acks, each in zip((1, -1), late, strict=True):
        each.send(acks=acks)


TROUBLES: dict[str, Callable[[Cluster, Machine, float], None]] = {
    "lost": _lose,
    "killed": _kill,
    "stopped": _stop,
    "standing still": _stand_still,
    "cut off from the database": partial(_cut_off, "engine"),
    "cut off from the store": partial(_cut_off, "store"),
    "refused by the database": partial(_refuse, "engine"),
    "refused by the store": partial(_refuse, "store"),
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
    only: tuple[str, ...] = (),
    longest_s: float = STILL_S,
    tell: Callable[[str], None] = print,
) -> list[float]:
    """Returns how long (s) each trouble lasted. AssertionError if anything that was acknowledged is not as it was said to be.

    ``only``: of ``TROUBLES``; none: all. ``longest_s``: for how long machines stand still or are cut off at most.
    """
    chance = random.Random(seed)
    cluster = Cluster(
        directory,
        postgres,
        nodes,
        "log_segment_bytes=1000000",
        "remote_log_manager_task_interval_ms=500",
        "auto_create_topics_enable=false",  # a producer would make again what was deleted
        store=shared_seaweed(),
    )
    took = []
    try:
        running = cluster.start(machines)
        for topic in ("t", "large", "lists", "late"):
            make(cluster, topic)
        writing, large = Writing(cluster, "t"), Writing(cluster, "large", size=100_000)
        reading = [Reading(cluster, "t", protocol) for protocol in ("classic", "consumer")]
        transacting, changing = Transacting(cluster, "lists"), Changing(cluster, seed)
        for load in (writing, large, *reading, transacting, changing):
            load.start()
        for _ in range(cycles):
            for load in (writing, large, *reading, transacting):
                load.go_on()
            time.sleep(chance.uniform(0.0, 1.0))
            name, machine = chance.choice(only or list(TROUBLES)), chance.choice(running)
            away_s = chance.choice((_SHORT_S, longest_s))
            began = time.monotonic()
            TROUBLES[name](cluster, machine, away_s)
            writing.go_on()
            took.append(time.monotonic() - began)
            tell(
                f"{name} ({away_s:.0f} s): {took[-1]:.1f} s; {writing.count} records, {transacting.count} transactions, "
                f"{changing.changes} changes of topics"
            )
            if machine.process.poll() is not None:
                machine.launch()
                machine.wait_until_ready()
            cluster.wait_for_balance(running)
        changing.finish()
        tell(f"transactions: {transacting.finish()}")
        assert large.finish() == stored(cluster, "large")
        acknowledged = writing.finish()
        assert acknowledged == stored(cluster, "t")
        for each in reading:
            wait_until(partial(each.has_read, acknowledged), "not everything is read")
            assert acknowledged == each.stop()
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
    parser.add_argument("--only", action="append", choices=TROUBLES, default=[])
    parser.add_argument(
        "--longest", type=float, default=STILL_S, help="seconds for which machines stand still or are cut off"
    )
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
            only=tuple(given.only),
            longest_s=given.longest,
            tell=lambda line: print(line, flush=True),
        )
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
