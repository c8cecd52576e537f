"""What a micro-batch takes from trigger to commit: ``python -m tests.bench.bench_trigger [--seconds N] [--rate N]``.

A producer writes all the time; a streaming query reads the topic as fast as triggers come, without a sink, into another topic,
and into another topic exactly once. Medians of Spark's own ``durationMs`` over all batches with rows, the first five left out.
"""

import argparse
import shutil
import statistics
import tempfile
import threading
import time

import pyarrow as pa
from pyspark.sql import DataFrame

from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.columns.batch_builder import build
from tests.bench.spark import create, session
from tests.bench.process import BrokerProcess

_WARM = 5
_EVERY_S = 0.02


class Source:
    """Writes ``rate`` records a second to the topic, while its context lasts."""

    def __init__(self, address: str, topic: str, rate: int) -> None:
        self._address = address
        self._topic = topic
        self._values = pa.array([b"x" * 100] * max(1, int(rate * _EVERY_S)))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with (
            Cluster(ClientConfig.from_properties({"bootstrap.servers": self._address})) as cluster,
            cluster.producer() as producer,
        ):
            while not self._stopped.wait(_EVERY_S):
                for one in build(self._values, now_ms=int(time.time() * 1000)):
                    producer.send(self._topic, 0, one.data, one.count)
                producer.flush()


def measure(df: DataFrame, directory: str, name: str, seconds: float, **options: str) -> None:
    writer = df.writeStream.option("checkpointLocation", f"{directory}/{name.replace(' ', '-')}").options(**options)
    query = writer.format("broker" if options else "noop").start()
    durations: dict[int, dict[str, int]] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        query.awaitTermination(1)
        for progress in query.recentProgress:
            if progress.numInputRows:
                durations[progress.batchId] = dict(progress.durationMs)
    query.stop()
    measured = [durations[batch] for batch in sorted(durations)[_WARM:]]
    steps = sorted({step for one in measured for step in one} - {"triggerExecution"})
    medians = {step: statistics.median(one.get(step, 0) for one in measured) for step in ["triggerExecution", *steps]}
    print(f"{name:14} {len(measured):4} batches, median ms:", *(f"{k} {v:.0f}" for k, v in medians.items()), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=30)
    arguments.add_argument("--rate", type=int, default=10_000, help="records a second")
    options = arguments.parse_args()
    directory = tempfile.mkdtemp()
    try:
        with BrokerProcess(directory=directory) as broker:
            with Cluster(ClientConfig.from_properties({"bootstrap.servers": broker.address})) as cluster:
                create(cluster, "source", 1)
                create(cluster, "sink", 1)
            spark = session(directory, [])
            source = spark.readStream.format("broker").option("kafka.bootstrap.servers", broker.address)
            df = source.option("subscribe", "source").load()
            to = {"kafka.bootstrap.servers": broker.address, "topic": "sink"}
            with Source(broker.address, "source", options.rate):
                measure(df, directory, "no sink", options.seconds)
                values = df.select("value")
                measure(values, directory, "at least once", options.seconds, **to, deliveryGuarantee="at-least-once")
                measure(values, directory, "exactly once", options.seconds, **to)
            spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
