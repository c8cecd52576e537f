"""The broker's metrics: ``names`` declares all of them, ``registry`` holds those of one broker and writes them as
text."""

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
