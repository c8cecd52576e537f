"""A hunt, with bodies whose failures are known: which plan it shrinks to, in how many runs, and what it says."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.chaos.hunt import RUNS_MAX, SECONDS_MAX, Found, Hunt, Plan, told
from broker.client.chaos.plan import FAULTS_MAX
from broker.faults.fault import Entity, Fault, Passing
from broker.faults.faults import Faults
from broker.kafka.faulting.faulting import vocabulary

# One for each group, so that a body can ask which are there.
NAMES = "abcdefgh"


def fault(name: str, count: int = 1) -> Fault:
    return Fault(kind="lost", group=name, count=count)


class Machine:
    """Stands for a broker: a body's requests are about groups, and each fault is met by those of its group."""

    def __init__(self, fails: Callable[["Machine"], object]) -> None:
        self.faults = Faults(lambda: {"kafka": vocabulary()})
        self.now_ms = 0
        self.resets = 0
        self.runs = 0
        self._fails = fails
        self.hunt = Hunt(self.faults, self.body, self.reset, clock=self)

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def time_ms(self) -> int:
        return self.now_ms

    def reset(self) -> None:
        self.resets += 1

    def body(self) -> None:
        self.runs += 1
        self._fails(self)

    def meets(self, name: str) -> bool:
        """A request about this group is faulted."""
        self.now_ms += 1
        passing = Passing(self.now_ms, "HEARTBEAT", "client", "User:a", (Entity(group=name),), "kafka")
        return self.faults.take(passing) is not None

    def found(self, *plans: Plan) -> Found:
        found = self.hunt.hunt(enumerate(plans))
        assert found is not None
        return found


def groups(plan: Plan) -> str:
    return "".join(str(fault.group) for fault in plan)


@given(*[st.sets(st.sampled_from(NAMES[:FAULTS_MAX]), min_size=1)] * 2)
def test_smallest_plan_is_what_the_failure_needs(planned: set[str], needed: set[str]) -> None:
    def fails(machine: Machine) -> None:
        met = {name for name in NAMES if machine.meets(name)}
        assert not needed <= met

    machine = Machine(fails)
    plan = tuple(map(fault, sorted(planned)))
    found = machine.hunt.hunt([(3, plan)])
    assert (found is not None) == (needed <= planned)
    if found is not None:
        assert 3 == found.seed
        assert plan == found.first.plan
        assert "".join(sorted(needed)) == groups(found.smallest.plan)
        assert found.is_whole
        assert machine.runs == found.runs + 1 == machine.resets + 1
    assert [] == machine.faults.list()


def test_faults_that_nothing_meets_go_at_once() -> None:
    def fails(machine: Machine) -> None:
        assert not machine.meets("c")

    found = Machine(fails).found(tuple(map(fault, NAMES)))
    assert "c" == groups(found.smallest.plan)
    assert 4 == found.runs  # three without any fault, one with that


def test_failure_of_another_kind_is_another_failure() -> None:
    def fails(machine: Machine) -> None:
        if not machine.meets("b"):
            raise TimeoutError
        assert not machine.meets("a")

    found = Machine(fails).found((fault("a"), fault("b")))
    assert "ab" == groups(found.smallest.plan)
    assert isinstance(found.smallest.error, AssertionError)


def test_rare_failure_is_tried_again() -> None:
    def fails(machine: Machine) -> None:
        assert not machine.meets("a") or machine.runs % 3

    machine = Machine(fails)
    found = machine.hunt.hunt([(seed, (fault("a"), fault("b"))) for seed in range(5)])
    assert found is not None
    assert 2 == found.seed
    assert "a" == groups(found.smallest.plan)


def test_failure_without_faults_is_said() -> None:
    def fails(_machine: Machine) -> None:
        raise ValueError("always")

    found = Machine(fails).found((fault("a"),))
    assert () == found.smallest.plan
    assert "It fails without any fault as well (run 1 after the failure)." in told(found, "pytest")


def test_counts_shrink_as_well() -> None:
    def fails(machine: Machine) -> None:
        assert not (machine.meets("a") and machine.meets("b") and machine.meets("b"))

    found = Machine(fails).found((fault("a", 5), fault("b", 2), fault("c", 2)))
    assert [("a", 1), ("b", 2)] == [(each.group, each.count) for each in found.smallest.plan]


def test_search_is_bounded_in_time() -> None:
    def fails(machine: Machine) -> None:
        machine.now_ms += round(SECONDS_MAX * 1000 / 2)
        assert {machine.meets(name) for name in NAMES} != {True}

    found = Machine(fails).found(tuple(map(fault, NAMES)))
    assert not found.is_whole
    assert found.runs < 5
    assert "No smaller plan was found" in told(found, "pytest")


def test_search_is_bounded_in_runs() -> None:
    machine = Machine(lambda machine: machine.meets("z"))
    names = [f"{number}" for number in range(40)]

    def fails(machine: Machine) -> None:
        assert {machine.meets(name) for name in names} != {True}

    machine = Machine(fails)
    found = machine.found(tuple(map(fault, names)))
    assert RUNS_MAX == found.runs
    assert not found.is_whole


def test_what_ends_the_test_is_raised() -> None:
    def fails(_machine: Machine) -> None:
        raise KeyboardInterrupt

    machine = Machine(fails)
    with pytest.raises(KeyboardInterrupt):
        machine.hunt.run((fault("a"),))
    assert machine.hunt.last is not None
    assert [] == machine.faults.list()


def test_only_new_faults_end_with_a_run() -> None:
    def adds(machine: Machine) -> None:
        machine.faults.add("lost", group="x")

    machine = Machine(adds)
    kept = machine.faults.add("observe")
    machine.hunt.run((fault("a"),))
    assert [kept] == machine.faults.list()


def test_failed_body_keeps_nothing_alive() -> None:
    """Its clients would take part in the next run."""
    alive: list[int] = []

    class Client:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def fails(machine: Machine) -> None:
        assert [] == alive
        client = Client()
        try:
            raise ValueError
        except ValueError:
            raise RuntimeError(client) if machine.runs < 0 else RuntimeError from None

    found = Machine(fails).found((fault("a"),))
    assert isinstance(found.smallest.error, RuntimeError)
    assert [] == alive


def test_report_tells_in_order_what_met_what() -> None:
    def fails(machine: Machine) -> None:
        machine.now_ms += 20
        assert {machine.meets(name) for name in "ba"} != {True}

    found = Machine(fails).found((fault("a"), fault("b"), fault("c")))
    assert [
        "Seed 0 fails. Its plan:",
        '    broker.faults.add("lost", group="a")',
        '    broker.faults.add("lost", group="b")',
        '    broker.faults.add("lost", group="c")',
        "",
        "The fewest faults with which it fails (10 more runs):",
        '    broker.faults.add("lost", group="a")',
        '    broker.faults.add("lost", group="b")',
        "",
        "What happened (ms since the start of that run):",
        "        21  HEARTBEAT of group 'b' from 'client': lost (fault 2)",
        "        22  HEARTBEAT of group 'a' from 'client': lost (fault 1)",
        "",
        "Again: pytest --seed",
        "The plan is drawn from the seed. The client's threads are not, so a run may differ.",
    ] == told(found, "pytest --seed").splitlines()
