"""Loses a broker's machine many times under all kinds of load, and says what was checked and how long the take-overs took.

``python -m tests.durable.cycles --cycles 100`` (or ``make durable``). Each five are a round on a state of its own, which is
compared with what the clients were told at the end of the round. All brokers of a round are
started before its load, under which a start takes long.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from tests.durable.durable_broker import DurableBroker, durable_postgres
from tests.durable.mixed_load import SCHEMES, SETTINGS, MixedLoad, first_acknowledged
from tests.durable.postgres import PostgresServer

ROUND = 5


@attrs.define
class Outcome:
    """``take_overs_s``: from the kill to the first send that was begun after it and acknowledged."""

    take_overs_s: list[float] = attrs.Factory(list)
    checked: list[dict[str, str]] = attrs.Factory(list)


def lose_machines(
    directory: Path,
    postgres: PostgresServer,
    cycles: int,
    seed: int,
    *settings: str,
    tell: Callable[[str], None] = print,
) -> Outcome:
    """One round. AssertionError if anything that was acknowledged is not as it was said to be."""
    chance = random.Random(seed)
    outcome = Outcome()
    with DurableBroker(directory, postgres, *SETTINGS, *settings, schemes=SCHEMES, standbys=cycles) as broker:
        with MixedLoad(broker, seed) as load:
            for _ in range(cycles):
                load.go_on()
                time.sleep(chance.uniform(0.0, 0.5))
                broker.kill()
                began = time.monotonic()
                first_acknowledged(broker.address)
                outcome.take_overs_s.append(time.monotonic() - began)
                broker.start()
            load.go_on()
            load.finish()
            outcome.checked.append(load.check())
        assert broker.stop() == 0
        assert [] == broker.errors
    tell(f"seed {seed}: {outcome.checked[0]}")
    return outcome


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durable.cycles")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    took: list[float] = []
    root = Path(tempfile.mkdtemp(prefix="durable-"))
    with durable_postgres() as postgres:
        for number, first in enumerate(range(0, given.cycles, ROUND)):
            settings = f"catalogue_schema=round_{number}"
            directory = root / f"round-{number}"
            count = min(ROUND, given.cycles - first)
            outcome = lose_machines(directory, postgres, count, given.seed + number, settings)
            took += outcome.take_overs_s
            shutil.rmtree(directory)
            print(
                f"{len(took)} machines lost; take-overs {[round(one, 2) for one in outcome.take_overs_s]}", flush=True
            )
    p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
    print(f"{len(took)} machines were lost, and nothing else. Take-over: p50 {p50:.2f} s, p99 {p99:.2f} s")
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
