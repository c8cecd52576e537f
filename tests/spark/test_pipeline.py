"""docs/examples/pipeline.py: topic to topic, exactly once, killed hard in the middle."""

import importlib.util
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
from kafka import KafkaConsumer, TopicPartition

from broker.client import Broker

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # demo imports pipeline
    spec.loader.exec_module(module)
    return module


# Spark starts twice, which takes minutes on a busy machine.
@pytest.mark.timeout(900)
def test_counts_are_exact_despite_a_killed_spark(tmp_path: Path) -> None:
    pipeline = load("pipeline")
    demo = load("demo")
    with Broker() as broker:
        partial, counts = demo.killed_and_restarted(
            broker.bootstrap_servers, str(tmp_path / "checkpoint"), tmp_path / "spark.log"
        )
        history = every_count(broker.bootstrap_servers, pipeline.PARTITIONS)
    assert 0 < partial.total() < counts.total(), "it was not killed in the middle"
    assert demo.expected() == counts
    # These words are in every batch, so a batch written twice would repeat their counts.
    for word, _ in counts.most_common(10):
        assert sorted(set(history[word])) == history[word]


def every_count(servers: str, partitions: int) -> dict[str, list[int]]:
    """All committed counts of each word, in the order of the topic."""
    history: dict[str, list[int]] = defaultdict(list)
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False)
    ends = consumer.end_offsets([TopicPartition("counts", number) for number in range(partitions)])
    consumer.assign(list(ends))
    consumer.seek_to_beginning()
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                history[record.key.decode()].append(int(record.value))
    consumer.close()
    return history
