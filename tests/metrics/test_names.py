"""The declarations of all metrics."""

import re

from broker.metrics import names
from broker.metrics.metric import Kind, Metric
from tests.loops import loop_over

# Samples of other kinds end so; a family of such a name would be taken for another one's samples.
_RESERVED = ("_total", "_created", "_bucket", "_info")


def test_no_name_is_declared_twice() -> None:
    declared = [metric.name for metric in names.ALL]
    assert len(declared) == len(set(declared))


def test_all_declarations_are_constants_of_the_module() -> None:
    constants = [value for value in vars(names).values() if isinstance(value, Metric)]
    assert names.ALL == constants


@loop_over("metric", names.ALL)
def test_a_declaration_is_complete(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert metric.name.startswith(("broker_", "kafka_", "pulsar_"))
    assert not metric.name.endswith(_RESERVED)
    assert all(re.fullmatch(r"[a-z][a-zA-Z_]*", label) for label in metric.labels)
    assert "le" not in metric.labels
    assert len(metric.labels) == len(set(metric.labels))
    assert re.fullmatch(r"[A-Z].*\.", metric.doc), "a sentence"
    assert metric.section
    assert metric.kind is not Kind.HISTOGRAM or metric.bounds
