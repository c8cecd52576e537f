"""How far a stream is behind, from its progress."""

import json
from types import SimpleNamespace

from broker.spark.source.offsets import Lag, lag

PROGRESS = {
    "sources": [
        {
            "latestOffset": {"orders": {"0": 10, "1": 7, "2": 3}, "#topics": {"orders": "ab"}},
            "endOffset": {"orders": {"0": 4, "1": 7}},
        },
        {"latestOffset": None, "endOffset": None},
        {"latestOffset": 5, "endOffset": 3},  # another source
    ]
}


def test_lag_is_the_distance_to_each_end() -> None:
    orders, unknown, other = lag(PROGRESS)
    assert {("orders", 0): 6, ("orders", 1): 0, ("orders", 2): 3} == orders.by_partition
    assert (9, 6, 0, 3.0) == (orders.total, orders.most, orders.least, orders.mean)
    assert Lag({}) == unknown == other
    assert (0, 0, 0, 0.0) == (unknown.total, unknown.most, unknown.least, unknown.mean)


def test_progress_is_taken_in_each_form() -> None:
    texts = [{name: json.dumps(value) for name, value in source.items()} for source in PROGRESS["sources"]]
    listeners = SimpleNamespace(sources=[SimpleNamespace(**source) for source in texts])
    assert "Broker[Subscribe[" in lag(PROGRESS)[0].source
    assert lag(PROGRESS) == lag(json.dumps(PROGRESS)) == lag(listeners)
