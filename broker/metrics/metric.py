"""What is declared of a metric: its name, its kind, what it means, its labels, and of a histogram its ranges. Pure.

Tests: tests/metrics/test_names.py.
"""

from enum import Enum

import attrs


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@attrs.frozen
class Metric:
    """``name``: without the ``_total`` that the samples of a counter get. ``bounds``: the upper ends of a histogram's ranges,
    inclusive and ascending. ``section``: the heading under which docs/MONITORING.md lists it."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    section: str = ""

    def __attrs_post_init__(self) -> None:
        assert list(self.bounds) == sorted(set(self.bounds)), self.bounds
        assert bool(self.bounds) == (self.kind is Kind.HISTOGRAM), self.name

    @property
    def sample_name(self) -> str:
        """As Prometheus knows it, in queries."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name
