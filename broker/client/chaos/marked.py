"""A test with ``@pytest.mark.broker_chaos``: its options, and its hunt with the fixture ``broker``. The plugin
(broker/client/pytest_plugin.py) imports this when it runs the first such test.

Tests: tests/client/test_pytest_plugin_chaos.py.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import pytest

from broker.client.chaos.hunt import Hunt, Plan, told, told_run
from broker.client.chaos.plan import DEFAULT, Template, as_code, check, plan_of
from broker.client.embedded import Broker
from broker.errors import ConfigError

if TYPE_CHECKING:
    from broker.faults.fault import Vocabularies

_SEEDS = 50


@attrs.frozen
class Options:
    """Of the marker and of the command line."""

    seeds: Sequence[int]
    faults: Sequence[Template]

    @classmethod
    def of(cls, marker: pytest.Mark, config: pytest.Config) -> "Options":
        """Raises ConfigError."""
        given: dict[str, Any] = dict(marker.kwargs)
        seeds, faults = given.pop("seeds", _SEEDS), given.pop("faults", DEFAULT)
        if marker.args or given:
            wrong = ", ".join(map(repr, [*marker.args, *given]))
            raise ConfigError(f"@pytest.mark.broker_chaos takes seeds=50 and faults=[...], not {wrong}.")
        seed, total = config.getoption("broker_chaos_seed"), config.getoption("broker_chaos_seeds")
        if seed is not None:
            seeds = [seed]
        elif total is not None:
            seeds = total
        return cls(_seeds(seeds), faults)

    def plans(self, vocabulary: "Vocabularies") -> Iterator[tuple[int, Plan]]:
        for seed in self.seeds:
            yield seed, plan_of(seed, self.faults, vocabulary)


def _seeds(seeds: object) -> Sequence[int]:
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        return range(seeds)
    if isinstance(seeds, list | tuple | range) and seeds and all(isinstance(seed, int) for seed in seeds):
        return seeds
    raise ConfigError(
        f"Give the seeds of @pytest.mark.broker_chaos as a number from 1 on, or as a list of seeds, not {seeds!r}."
    )


def run(item: pytest.Function, marker: pytest.Mark, body: Callable[[], object], said: list[str]) -> None:
    """Run the body under the plan of each seed. Raises the failure with the fewest faults; ``said`` then has what to report."""
    broker = item.funcargs.get("broker")
    if not isinstance(broker, Broker):
        _refuse("A test with @pytest.mark.broker_chaos needs the fixture `broker`: its faults are the broker's.")
    try:
        options = Options.of(marker, item.config)
        check(options.faults, broker.faults.vocabulary)
        prepared = broker.snapshot()
        _put_back(broker, prepared)  # raises ConfigError now if the broker cannot go back
    except ConfigError as error:
        _refuse(str(error))
    hunt = Hunt(broker.faults, body, lambda: _put_back(broker, prepared), is_failure)
    for seed, plan in options.plans(broker.faults.vocabulary):
        # In case the test ends from outside, such as by a timeout.
        said[:] = [f"Seed {seed}. Its plan:", *(f"    {as_code(fault)}" for fault in plan)]
        first = hunt.run(plan)
        if first.error is not None:
            said.extend(["", *told_run(first)])
            found = hunt.shrunk(seed, first)
            said[:] = told(found, f"pytest '{item.nodeid}' --broker-chaos-seed {seed}").splitlines()
            assert found.smallest.error is not None
            raise found.smallest.error


def is_failure(error: BaseException) -> bool:
    """An exception or ``pytest.fail``; not a skip, an interruption, or the end of the time for the whole test."""
    if isinstance(error, pytest.fail.Exception):
        return not isinstance(error, pytest.xfail.Exception) and not str(error).startswith("Timeout ")
    return isinstance(error, Exception)


def _put_back(broker: Broker, prepared: Any) -> None:
    """As the fixtures left it; also if the body stopped it."""
    broker.stop()
    broker.reset(prepared)
    broker.start()


def _refuse(sentence: str) -> NoReturn:
    raise pytest.fail.Exception(sentence, pytrace=False) from None
