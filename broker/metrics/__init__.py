"""What the broker measures: ``names`` declares every metric, ``registry`` holds those of one broker, ``text`` writes them."""

from broker.metrics import names
from broker.metrics.registry import (
    Cell,
    Counter,
    Gauge,
    Histogram,
    HistogramCell,
    Labels,
    Read,
    ReadCounter,
    Registry,
)

__all__ = [
    "Cell",
    "Counter",
    "Gauge",
    "Histogram",
    "HistogramCell",
    "Labels",
    "Read",
    "ReadCounter",
    "Registry",
    "names",
]
