"""Runs a scenario: ``python -m tests.bench SCENARIO [SECTION...] [options]``. Without a scenario, lists them.

Two noisy cores: compare figures within one line or run, and prefer CPU to rates.
"""

import argparse
import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench import frame

SCENARIOS = (
    "kafka connections fsync durable cluster scale rest pieces shuffle flink pulsar groups queues security parts spark check"
).split()


def summary(scenario: str) -> str:
    """The first line of its module, which need not be imported for it."""
    module = ast.parse(Path(__file__).with_name(f"{scenario}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(module) or "").partition("\n")[0]


def listing() -> str:
    return "\n".join(f"  {scenario:12} {summary(scenario)}" for scenario in SCENARIOS)


def run(scenario: str, arguments: Sequence[str]) -> list[frame.Row]:
    module = importlib.import_module(f"tests.bench.{scenario}")
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.bench {scenario}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(module.SECTIONS)
    parser.add_argument("sections", nargs="*", choices=[*names, []], default=[], help="all of them if none is given")
    parser.add_argument("--rounds", type=int, default=3, help="how often each figure is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more requests, connections, partitions")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a rate is kept up in each round")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this in their names")
    parser.add_argument("--directory", help="where brokers write: its file system is measured")
    parser.add_argument("--json", action="store_true")
    if hasattr(module, "add_options"):
        module.add_options(parser)
    return frame.run(module.SECTIONS, parser.parse_args(arguments, frame.Options()))


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in SCENARIOS:
        print(f"{__doc__}\n{listing()}")
        return 2
    if sys.argv[1] == "check":
        from tests.bench import check

        return check.main(sys.argv[2:])
    run(sys.argv[1], sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
