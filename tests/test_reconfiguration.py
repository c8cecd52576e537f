"""How far one change of the number of threads may go.

What the changes do: tests/kafka/handlers/test_incremental_alter_configs.py.
"""

import pytest

from broker.config import load
from broker.errors import ConfigError
from broker.reconfiguration import _at_most_doubled_or_halved


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (3, 1), (3, 6), (8, 4), (8, 16), (9, 4)])
def test_a_step_may_halve_or_double_the_number_of_threads(before: int, after: int) -> None:
    _at_most_doubled_or_halved("num.io.threads", load(io_threads=before), load(io_threads=after))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 7), (8, 3), (8, 17), (1000, 1)])
def test_a_larger_step_is_refused(before: int, after: int) -> None:
    with pytest.raises(ConfigError, match=r"Change num\.network\.threads in several steps"):
        _at_most_doubled_or_halved("num.network.threads", load(network_threads=before), load(network_threads=after))
