"""The marker ``broker_chaos`` in a pytest session of a user's own."""

import re
from pathlib import Path

from tests.client.test_pytest_plugin import ROOT, Run, run_by_hand, users

__all__ = ["run_by_hand", "users"]

# A producer that must not be interrupted.
BAD_TEST = """
import pytest
from confluent_kafka import Producer


BAD = {"kind": "error", "api": "PRODUCE", "error": "INVALID_RECORD", "skip": [0, 2]}


@pytest.mark.broker_chaos(seeds=20, faults=["observe", BAD])
def test_all_arrive(broker):
    producer = Producer({**broker.client_settings, "log_level": 0})
    for number in range(5):
        producer.produce("orders", str(number))
        producer.flush()
    assert 5 == len(broker.records("orders"))
"""

ROUNDS_TESTS = """
import pytest

seen = []


@pytest.fixture
def orders(broker):
    seen.append("fixture")
    broker.create_topic("orders", 3)
    with broker.faults.add("observe", api="PRODUCE", count=None) as fault:
        yield fault
        assert [fault] == broker.faults.list()  # those of the plans and of the body are gone


@pytest.mark.broker_chaos(seeds=7, faults=["observe"])
def test_every_seed_finds_the_same_broker(broker, orders):
    assert [] == broker.records("orders")
    assert 0 == broker.produce("orders", ["one"])[0]
    assert 2 <= len(broker.faults.list())
    broker.faults.add("lost", api="PRODUCE")
    broker.stop()
    seen.append("body")


def test_ran_once_for_each_seed():
    assert ["fixture", *["body"] * 7] == seen


@pytest.mark.broker_chaos(faults=["observe"])
def test_skips(broker):
    pytest.skip("not here")


@pytest.mark.broker_chaos(faults=["observe"])
def test_known(broker):
    pytest.xfail("is known")


class TestInClass:
    bodies = 0

    @pytest.mark.broker_chaos(seeds=[5, 7, 5], faults=["observe"])
    @pytest.mark.parametrize("number", [1, 2])
    def test_arguments(self, broker, number):
        TestInClass.bodies += number

    def test_ran_for_each(self):
        assert 3 + 6 == TestInClass.bodies
"""

# As plugins for coroutines do it: one of them replaces the function, others call it.
COROUTINE_PLUGIN = """
import asyncio
import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        asyncio.run(pyfuncitem.obj(**arguments))
        return True
"""
COROUTINE_TESTS = """
import pytest

bodies = []


@pytest.mark.broker_chaos(seeds=4, faults=["observe"])
async def test_coroutine(broker):
    await broker.aio.produce("orders", ["one"])
    bodies.append(len(await broker.aio.records("orders")))


def test_ran_four_times():
    assert [1] * 4 == bodies


@pytest.mark.broker_chaos(seeds=4, faults=["observe"])
async def test_fails(broker):
    assert broker is None
"""


def section(output: str) -> str:
    """What the report says of the only failure."""
    (found,) = re.findall(r"^-+ broker_chaos -+\n(.*?)(?=^-{9}|^={9}|^_{9})", output, re.MULTILINE | re.DOTALL)
    return str(found)


def plans(text: str) -> list[list[str]]:
    """The calls of each plan in a report."""
    found = re.findall(r"^(?:(?:Seed|The fewest).*:\n)((?:    broker\.faults\.add.*\n)+)", text, re.MULTILINE)
    return [calls.split("\n")[:-1] for calls in found]


def test_failure_is_shrunk_and_can_be_replayed(run_by_hand: Run, users: Path) -> None:
    (users / "test_bad.py").write_text(BAD_TEST)
    status, output = run_by_hand(users, "--strict-markers")
    assert 1 == status, output
    said = section(output)
    first, smallest = plans(said)
    assert len(first) > 1
    assert 1 == len(smallest)
    assert re.fullmatch(
        r'    broker\.faults\.add\("error", api="PRODUCE", error="INVALID_RECORD"(, skip=2)?\)', smallest[0]
    )
    assert re.search(
        r"^ +\d+  PRODUCE orders\[0\] from 'rdkafka': error INVALID_RECORD \(fault 1\)$", said, re.MULTILINE
    )
    found = re.search(r"^Again: pytest '(\S+)' (--broker-chaos-seed (\d+))$", said, re.MULTILINE)
    assert found is not None, said
    seed = int(found[3])

    status, output = run_by_hand(users, found[1], *found[2].split())
    assert 1 == status, output
    assert [first, smallest] == plans(section(output))

    # The seeds before it pass, so the first failure is that which was reported.
    if seed:
        status, output = run_by_hand(users, "--broker-chaos-seeds", str(seed))
        assert 0 == status, output
    # What is said can be pasted.
    pasted = BAD_TEST.replace("    producer = Producer", f"{smallest[0]}\n    producer = Producer")
    (users / "test_bad.py").write_text(re.sub(r"@pytest.*\n", "", pasted))
    status, output = run_by_hand(users)
    assert 1 == status, output


def test_every_seed_is_a_run_on_the_same_state(run_by_hand: Run, users: Path) -> None:
    (users / "test_rounds.py").write_text(ROUNDS_TESTS)
    status, output = run_by_hand(users)
    assert 0 == status, output
    assert "5 passed, 1 skipped, 1 xfailed" in output


def test_coroutines_run_by_their_plugin(run_by_hand: Run, users: Path) -> None:
    (users / "conftest.py").write_text(COROUTINE_PLUGIN)
    (users / "test_coroutines.py").write_text(COROUTINE_TESTS)
    status, output = run_by_hand(users)
    assert 1 == status, output
    assert "1 failed, 2 passed" in output
    assert "It fails without any fault as well (run 1 after the failure)." in section(output)


WRONG = {
    "seeds=0": "Give the seeds of @pytest.mark.broker_chaos as a number from 1 on, or as a list of seeds, not 0.",
    "100": "@pytest.mark.broker_chaos takes seeds=50 and faults=[...], not 100.",
    "fault=['lost']": "@pytest.mark.broker_chaos takes seeds=50 and faults=[...], not 'fault'.",
    "faults=['lots']": "There is no kind 'lots'. Did you mean lost?",
    "faults='lost'": "Give faults as a list, of names of kinds or of mappings",
}


def test_wrong_option_is_one_sentence(run_by_hand: Run, users: Path) -> None:
    tests = [
        f"@pytest.mark.broker_chaos({options})\ndef test_{n}(broker):\n    pass\n" for n, options in enumerate(WRONG)
    ]
    tests.append("@pytest.mark.broker_chaos\ndef test_without_broker():\n    pass\n")
    (users / "test_options.py").write_text("\n\n".join(["import pytest\n", *tests]))
    status, output = run_by_hand(users)
    assert 1 == status, output
    assert f"{len(tests)} failed" in output
    for sentence in (*WRONG.values(), "A test with @pytest.mark.broker_chaos needs the fixture `broker`"):
        assert 1 == output.count(f"\n{sentence}"), sentence
    assert "Traceback" not in output
    assert "marked.py" not in output


SWAPPED = """            write(producer, b"a bill for a " + order.value())
            consumer.commit(order, asynchronous=False)
"""


def test_guide_shows_a_test_that_passes_and_what_it_says_of_a_bug(run_by_hand: Run, users: Path) -> None:
    chapter = (ROOT / "docs" / "TESTING.md").read_text("utf-8").partition("\n## Chaos\n")[2].partition("\n## ")[0]
    (test,) = re.findall(r"^```python\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)
    (report,) = re.findall(r"^```\n(AssertionError.*?)^```", chapter, re.MULTILINE | re.DOTALL)
    (users / "test_bills.py").write_text(test)
    status, output = run_by_hand(users, "--strict-markers")
    assert 0 == status, output

    assert SWAPPED in test
    first, second = SWAPPED.splitlines(keepends=True)
    (users / "test_bills.py").write_text(test.replace(SWAPPED, second + first))
    status, output = run_by_hand(users)
    assert 1 == status, output
    said, shown = section(output), report.partition("-\n")[2]
    varies = re.compile(r"^ +\d+ |\d+ more runs", re.MULTILINE)
    assert varies.sub("", shown) == varies.sub("", said), said
    assert f"E           {report.splitlines()[0]}\n" in output


HANGING_TEST = """
import threading
import unittest

import pytest


@pytest.mark.timeout(3, method="signal", func_only=True)  # a busy machine starts its broker slowly
@pytest.mark.broker_chaos(seeds=1000, faults=["observe"])
def test_hangs(broker):
    threading.Event().wait()


@pytest.mark.broker_chaos
class TestUnit(unittest.TestCase):
    def test_once(self):
        pass
"""


def test_body_that_hangs_is_told_by_its_plan_and_not_shrunk(run_by_hand: Run, users: Path) -> None:
    (users / "test_hanging.py").write_text(HANGING_TEST)
    status, output = run_by_hand(users)
    assert 1 == status, output
    assert "1 failed, 1 error" in output
    said = section(output)
    assert said.startswith("Seed 0. Its plan:\n    broker.faults.add(")
    assert "fewest" not in said
    assert "not for unittest.TestCase" in output


def test_workers_hunt_side_by_side(run_by_hand: Run, users: Path) -> None:
    for name in ("test_one.py", "test_two.py"):
        (users / name).write_text(BAD_TEST)
    status, output = run_by_hand(users, "-n", "2")
    assert 1 == status, output
    assert "2 failed" in output
    one, two = re.findall(r"^-+ broker_chaos -+\n(.*?)^What happened", output, re.MULTILINE | re.DOTALL)
    assert plans(one) == plans(two) != []
