"""``python -m tests.sim``: run seeds by hand, replay one."""

import argparse
import sys
import time
from contextlib import ExitStack

from tests.sim.cluster import CLUSTER_STEPS, ClusterSimulation
from tests.sim.planted import PLANTED
from tests.sim.simulation import DEFAULT_STEPS, Simulation
from tests.sim.sweep import FOUND_BY, record


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulate the broker from a seed.")
    parser.add_argument("--seed", type=int, help="one seed, with the last events if it fails")
    parser.add_argument("--seeds", help="a range, as 1-200")
    parser.add_argument(
        "--steps", type=int, help=f"steps with faults (default {DEFAULT_STEPS}, of several nodes {CLUSTER_STEPS})"
    )
    parser.add_argument("--verbose", action="store_true", help="print every event")
    parser.add_argument("--plant", choices=sorted(PLANTED), help="with this bug planted into the broker")
    parser.add_argument("--vault", action="store_true", help="machines may be lost with every seed")
    parser.add_argument("--nodes", type=int, default=1, help="so many whole nodes of one cluster (default %(default)s)")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds even if one fails")
    parser.add_argument(
        "--record", action="store_true", help=f"search for all planted bugs, write the seeds to {FOUND_BY.name}"
    )
    arguments = parser.parse_args()
    if arguments.steps is None:
        arguments.steps = CLUSTER_STEPS if arguments.nodes > 1 else DEFAULT_STEPS
    if arguments.record:
        seeds = record()
        print(*(f"{name}: {seed or 'not found'}" for name, seed in seeds.items()), sep="\n")
        return 1 if None in seeds.values() else 0
    if (arguments.seed is None) == (arguments.seeds is None):
        parser.error("give --seed, --seeds or --record")
    if arguments.seed is not None:
        seeds = [arguments.seed]
    else:
        first, _, last = arguments.seeds.partition("-")
        seeds = list(range(int(first), int(last or first) + 1))
    failed = 0
    began = time.monotonic()
    for seed in seeds:
        simulation: Simulation | ClusterSimulation
        if arguments.nodes > 1:
            simulation = ClusterSimulation(seed, arguments.steps, nodes=arguments.nodes, verbose=arguments.verbose)
        else:
            simulation = Simulation(seed, arguments.steps, verbose=arguments.verbose, vault=arguments.vault or None)
        with ExitStack() as stack:
            if arguments.plant:
                stack.enter_context(PLANTED[arguments.plant].plant())
            result = simulation.run()
        faults = " ".join(f"{kind}:{count}" for kind, count in sorted(result.faults.items()))
        print(
            f"seed {seed}: trace {result.hash}, {result.steps} steps, {result.lives} lives, {result.simulated_s:.0f} s, "
            f"{result.acknowledged} records, {faults or 'no faults'}"
        )
        if result.violation is not None:
            failed += 1
            if len(seeds) == 1 and not arguments.verbose:
                print(*list(simulation.world.recent)[-60:], sep="\n")
            print(f"seed {seed}: {result.violation}")
            mode = f" --nodes {arguments.nodes}" if arguments.nodes > 1 else " --vault" if arguments.vault else ""
            print(f"replay: python -m tests.sim --seed {seed} --steps {arguments.steps}{mode} --verbose")
            if not arguments.keep_going:
                break
    print(f"{len(seeds)} seeds, {failed} failed, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
