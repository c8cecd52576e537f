"""Quotas in half of the simulations: set before the broker starts, so small that their clients are throttled again and again.

What must hold is looked after by the clients (`clients/client.py`): nothing is answered on a connection before its throttle time
is over, and everything is answered in the end.

Tests: tests/sim/test_simulation.py.
"""

from typing import Any

from broker.metadata.catalogue import QuotaRow
from broker.security.client_quotas import Entity, Kind
from tests.sim.catalogue import Tables


def draw_quotas(rng: Any, tables: Tables, producers: list[str], readers: list[str], largest_batch: int) -> bool:
    """Whether there are any. The longest throttle takes some 0.5 s of a client's time."""
    if rng.random() < 0.5:
        return False
    rows = []
    for name in producers:
        if rng.random() < 0.7:
            rows.append((Entity(client_id=name), Kind.PRODUCE, largest_batch * rng.choice((2.0, 5.0, 20.0))))
    for name in readers:
        if rng.random() < 0.7:
            rows.append((Entity(client_id=name), Kind.FETCH, largest_batch * rng.choice((5.0, 20.0))))
        if rng.random() < 0.2:
            rows.append((Entity(client_id=name), Kind.REQUEST, 5.0))
    for entity, kind, value in rows:
        tables.quotas[str(entity), str(kind)] = QuotaRow(str(entity), str(kind), value)
    return bool(rows)
