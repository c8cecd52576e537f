"""A hunt: a test's body is run under one plan after another until it fails; then the plan is shrunk to the fewest faults with
which it still fails, and the whole is told as text.

The plans are seeded, the threads of clients are not. So a smaller plan counts as harmless only after ``_TRIES`` runs without the
failure, and the search for one has a bound in runs and in time.

The body runs on the caller's thread.
"""

import gc
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

import attrs

from broker.client.chaos.plan import as_code
from broker.faults.fault import Entity, Fault, Passing
from broker.faults.faults import FaultHandle, Faults
from broker.runtime.clock import Clock, SystemClock

Plan = tuple[Fault, ...]

# How often a smaller plan is tried before it counts as harmless.
_TRIES: Final = 3
# The search for a smaller plan ends after so many runs and so many seconds. A plan has a few faults, so a dozen runs are usual.
RUNS_MAX: Final = 60
SECONDS_MAX: Final = 120.0
_LINES_MAX: Final = 60


@attrs.frozen
class Met:
    """A request that has met a fault; ``number``: of the fault in its plan, from 0 on."""

    number: int
    passing: Passing


@attrs.frozen
class Run:
    """A run of the body under a plan. ``error`` is None if it passed."""

    plan: Plan
    started_ms: int
    met: tuple[Met, ...]
    error: BaseException | None

    @property
    def of_use(self) -> Plan:
        """The faults that a request has met."""
        numbers = {each.number for each in self.met}
        return tuple(fault for number, fault in enumerate(self.plan) if number in numbers)


@attrs.frozen
class Found:
    """The failure of ``seed``. ``smallest``: the failed run with the fewest faults. ``runs``: how many the search took.
    ``is_whole``: it was not cut short."""

    seed: int
    first: Run
    smallest: Run
    runs: int
    is_whole: bool


class Hunt:
    """``run`` runs the body under a plan, ``shrunk`` looks for the fewest faults with which it fails as well."""

    def __init__(
        self,
        faults: Faults,
        body: Callable[[], object],
        reset: Callable[[], object],
        is_failure: Callable[[BaseException], bool] = lambda error: isinstance(error, Exception),
        clock: Clock | None = None,
    ) -> None:
        """``reset``: called before each run but the first, and brings the broker into the state in which that found it.
        ``is_failure``: tells failures of the body from what ends the test, such as a skip, which is raised."""
        self._faults = faults
        self._body = body
        self._reset = reset
        self._is_failure = is_failure
        self._clock = clock or SystemClock()
        self._is_fresh = True
        self.last: Run | None = None

    def run(self, plan: Plan) -> Run:
        """Raises what is no failure."""
        if not self._is_fresh:
            self._reset()
        self._is_fresh = False
        before = {handle.number for handle in self._faults.list()}
        handles = [self._faults.add(fault) for fault in plan]
        started_ms = self._clock.time_ms()
        error: BaseException | None = None
        try:
            self._body()
        except BaseException as raised:
            error = raised
        # The body's own faults end as well: the next run is to find none of them.
        for handle in self._faults.list():
            if handle.number not in before:
                handle.remove()
        self.last = Run(plan, started_ms, _met(handles), error)
        if error is not None:
            if not self._is_failure(error):
                raise error
            _drop_variables(error)
        return self.last

    def shrunk(self, seed: int, first: Run) -> Found:
        """After a failure."""
        search = _Search(self, first)
        search.shrink()
        return Found(seed, first, search.smallest, search.runs, not search.is_over)

    def hunt(self, plans: Iterable[tuple[int, Plan]]) -> Found | None:
        """Run the body under the plan of each seed, up to the first failure."""
        for seed, plan in plans:
            run = self.run(plan)
            if run.error is not None:
                return self.shrunk(seed, run)
        return None

    def now(self) -> float:
        return self._clock.monotonic()


def _drop_variables(error: BaseException) -> None:
    """The variables of a failed body hold its clients, which would go on in the next run: in the same groups, at the same
    address."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    gc.collect()


def _met(handles: Sequence[FaultHandle]) -> tuple[Met, ...]:
    """In the order in which they came, as far as the broker's clock tells (1 ms)."""
    met = [Met(number, passing) for number, handle in enumerate(handles) for passing in handle.passed]
    return tuple(sorted(met, key=lambda each: each.passing.time_ms))


class _Search:
    """For the fewest faults: delta debugging (Zeller's ddmin) on the plan of a failed run."""

    def __init__(self, hunt: Hunt, first: Run) -> None:
        self._hunt = hunt
        self._until = hunt.now() + SECONDS_MAX
        self._kind = type(first.error)
        self._harmless: set[Plan] = set()
        self.smallest = first
        self.runs = 0

    @property
    def is_over(self) -> bool:
        return self.runs >= RUNS_MAX or self._hunt.now() >= self._until

    def shrink(self) -> None:
        if self._fails(()):
            return
        # Faults that nothing has met take no part, as far as one run can tell.
        self._fails(self.smallest.of_use)
        self._minimize()
        for number, fault in enumerate(self.smallest.plan):
            if fault.count != 1:
                plan = self.smallest.plan
                self._fails((*plan[:number], attrs.evolve(fault, count=1), *plan[number + 1 :]))

    def _minimize(self) -> None:
        parts = 2
        while len(plan := self.smallest.plan) > 1 and not self.is_over:
            parts = min(parts, len(plan))
            bounds = [len(plan) * number // parts for number in range(parts + 1)]
            pieces = [(plan[:start], plan[start:end], plan[end:]) for start, end in pairwise(bounds)]
            if any(self._fails(piece) for _, piece, _ in pieces):
                parts = 2
            elif any(self._fails(before + after) for before, _, after in pieces):
                parts = max(parts - 1, 2)
            elif parts < len(plan):
                parts = 2 * parts
            else:
                return

    def _fails(self, plan: Plan) -> bool:
        """Whether the body fails in the same way under this plan, which is then the smallest."""
        if plan == self.smallest.plan or plan in self._harmless:
            return False
        for _ in range(_TRIES):
            if self.is_over:
                return False
            self.runs += 1
            run = self._hunt.run(plan)
            if type(run.error) is self._kind:
                self.smallest = run
                return True
        self._harmless.add(plan)
        return False


# -- as text ----------------------------------------------------------------------------------------------------------


def told(found: Found, replay: str) -> str:
    """The seed, both plans, and what happened. ``replay``: the command that runs the seed again."""
    first, smallest = found.first, found.smallest
    lines = [f"Seed {found.seed} fails. Its plan:", *_code(first.plan)]
    if not smallest.plan:
        lines += ["", f"It fails without any fault as well (run {found.runs} after the failure)."]
    elif smallest is first:
        said = "No smaller plan fails" if found.is_whole else "No smaller plan was found"
        lines += ["", f"{said}, in {found.runs} more runs."]
    else:
        end = "" if found.is_whole else "; the search was cut short"
        lines += ["", f"The fewest faults with which it fails ({found.runs} more runs{end}):", *_code(smallest.plan)]
    lines += ["", *told_run(smallest)]
    lines += [
        "",
        f"Again: {replay}",
        "The plan is drawn from the seed. The client's threads are not, so a run may differ.",
    ]
    return "\n".join(lines)


def told_run(run: Run) -> list[str]:
    """What happened in this run, in order."""
    lines = ["What happened (ms since the start of that run):"]
    if not run.met:
        return [*lines, "    no request has met a fault"]
    for each in run.met[:_LINES_MAX]:
        fault, passing = run.plan[each.number], each.passing
        what = f"{fault.kind} {fault.error}" if fault.error else fault.kind
        about = ", ".join(filter(None, map(_entity, passing.entities)))
        client = f" from {passing.client_id!r}" if passing.client_id else ""
        lines.append(
            f"    {passing.time_ms - run.started_ms:>6}  {passing.api} {about}{client}: {what} (fault {each.number + 1})"
        )
    if len(run.met) > _LINES_MAX:
        lines.append(f"    and {len(run.met) - _LINES_MAX} more")
    return lines


def _entity(entity: Entity) -> str:
    place = entity.topic or ""
    if entity.partition is not None:
        place = f"{place}[{entity.partition}]"
    words = [
        place,
        entity.group and f"of group {entity.group!r}",
        entity.transactional_id and f"of {entity.transactional_id!r}",
    ]
    return " ".join(filter(None, words))


def _code(plan: Plan) -> list[str]:
    return [f"    {as_code(fault)}" for fault in plan]
