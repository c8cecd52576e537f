"""Compares the costs of this tree's broker with those of an earlier commit's, and fails if they have grown.

Each round measures both brokers, one after the other and in turn first, with the same drivers, which are those of this tree. The
figures are the broker's CPU per request, buffer or message. The ratio of a round is that of its two figures; the median over the
rounds decides, because the machine's speed changes from minute to minute, and both figures of a round with it. A line that is
above the limit is measured again, as often as before, and counts only if it stays above it.

Without ``--base``, the commit of the newest tag, which is that of the last release. Exit code 1: something is dearer by more than
the limit.

``--sample`` is the short form for CI (`sample.py`). Without a tag it compares with a commit of the day before; if there is none,
it says so and passes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench import sample
from tests.bench.process import ROOT

# What is measured: arguments of ``python -m tests.bench``.
CASES = {
    "kafka": "kafka produce fetch --scale 0.25 --rounds 1",
    "connections": "connections 100-small 100-small-a-topic-each 3-small small-and-16-KB small-and-runs --seconds 1 --rounds 1",
    "shuffle": "shuffle read --rounds 3",
    "shuffle clients": "shuffle clients",
    "pulsar": "pulsar exclusive --scale 0.2 --rounds 1",
}

Ratios = dict[str, list[tuple[float, float]]]  # by name: (before, now) of each round, us of CPU


def compare(before: float, now: float) -> float:
    return now / before if before else 1.0


def verdicts(figures: Ratios, limit: float) -> Iterator[tuple[str, float, float, float, bool]]:
    """Name, median before, median now, median ratio, and whether the ratio is above the limit."""
    for name, pairs in figures.items():
        ratio = statistics.median(compare(*pair) for pair in pairs)
        yield name, statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs), ratio, ratio > limit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="broker-bench-base-") as directory:
        tree = Path(directory) / "tree"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _measure(case: str, tree: Path) -> dict[str, float]:
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", prefix="broker-bench-") as file:
        environment = {**os.environ, "BROKER_BENCH_TREE": str(tree), "BROKER_BENCH_FIGURES": file.name}
        command = [sys.executable, "-m", "tests.bench", *CASES[case].split()]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        figures: dict[str, float] = dict(json.loads(line) for line in file)
    return {name: cost for name, cost in figures.items() if not name.endswith(", loop")}


def measure(cases: Iterable[str], base: Path, rounds: int) -> Ratios:
    figures: Ratios = {}
    for case in cases:
        for number in range(rounds):
            trees = [base, ROOT] if number % 2 == 0 else [ROOT, base]
            measured = {tree: _measure(case, tree) for tree in trees}
            for name, before in measured[base].items():
                if name in measured[ROOT]:
                    figures.setdefault(f"{case}: {name.strip()}", []).append((before, measured[ROOT][name]))
    return figures


def _release() -> str | None:
    return next(iter(_git("tag", "--sort=-creatordate", "--merged").splitlines()), None)


def _day_before() -> str | None:
    """The newest commit that is a day older than this one."""
    day = int(_git("log", "-1", "--format=%ct")) - 24 * 3600
    return _git("rev-list", "-1", f"--before={day}", "--first-parent", "HEAD") or None


def _sample(base: str | None) -> int:
    try:
        base = base or _release() or _day_before()
        if base is None:
            print("Not compared: this clone has no earlier commit.")
            return 0
        with _checked_out(base) as tree:
            print(f"us of the broker's CPU a request at {base} and now, and the ratio")
            findings = list(sample.measure(tree))
    except (OSError, subprocess.CalledProcessError) as error:  # no git, or a copy without its history
        print(f"Not compared: {error}")
        return 0
    print(*findings, sep="\n")
    return 1 if any(finding.is_dearer for finding in findings) else 0


def main(arguments: Sequence[str]) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.bench check", description=__doc__, formatter_class=formatter)
    parser.add_argument("--base", default=None, help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=1.10, help="the largest ratio that passes")
    parser.add_argument("--only", default="", help="only the cases with this in their name: " + ", ".join(CASES))
    parser.add_argument("--sample", action="store_true", help=f"a minute's comparison, with a limit of {sample.LIMIT}")
    options = parser.parse_args(arguments)
    if options.sample:
        return _sample(options.base)
    base = options.base or _release()
    if base is None:
        parser.error("No release is tagged: name the commit to compare with, as in make bench-check BASE=HEAD~20.")
    cases = [case for case in CASES if options.only in case]
    with _checked_out(base) as tree:
        figures = measure(cases, tree, options.rounds)
        dearer = {name.partition(":")[0] for name, *_, is_dearer in verdicts(figures, options.limit) if is_dearer}
        if dearer:
            for name, pairs in measure(sorted(dearer), tree, options.rounds).items():
                figures.setdefault(name, []).extend(pairs)
    print(f"us of the broker's CPU at {base} and now; the ratio is the median of {options.rounds} rounds or more")
    rows = list(verdicts(figures, options.limit))
    for name, before, now, ratio, is_dearer in rows:
        print(f"{name:70} {before:9.2f} {now:9.2f}  {ratio:5.2f}{'  DEARER' if is_dearer else ''}")
    return 1 if any(is_dearer for *_, is_dearer in rows) else 0
