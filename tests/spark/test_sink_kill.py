"""A real streaming query killed with -9 at every step of a batch, and the broker with it: each record is stored exactly once.

The suite kills it three times in all; ``ALL_KILLS=1`` (``make kill-sink``) at every point, each once with the broker.
The same commit without Spark, far more often: tests/spark/sink/test_commit.py.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

from broker.spark import java
from tests.process.broker_process import BrokerProcess
from tests.spark.topics import Topics

pytestmark = [
    pytest.mark.skipif(java.find() is None, reason="no Java"),
    pytest.mark.skipif(sys.platform != "linux", reason="the job finds its own processes in /proc"),
    pytest.mark.timeout(1800),
]

ROOT = Path(__file__).parents[2]
# The point and the batch. After "decided" the batch is done, whatever Spark knows, so the next kill is in a later batch.
FEW = [("decided", 0), ("broker", 1)]
ALL = [
    *[(point, 0) for point in ("before", "produced", "written", "leftovers", "begun", "number", "decided")],
    *[(f"broker+{point}", 1) for point in ("before", "produced", "written", "leftovers", "begun", "number", "decided")],
    ("broker", 2),
]
# For a foreachBatch that writes to two topics: the kill, and the number of batches in each topic afterwards.
FEW_BETWEEN = [(("between", 0), 1, 0)]
MORE_BETWEEN = [(("decided", 1), 2, 2), (("number", 2), 3, 2), (("leftovers", 3), 4, 3)]
BATCHES = 4
ROWS_A_BATCH = 40
PARTITIONS = 2
PATIENCE_S = 300


def test_any_kill_leaves_each_record_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "num_partitions=2") as broker:
        topics = Topics(broker.address)
        topics.make(PARTITIONS, "in")
        topics.make(PARTITIONS, "out")
        each = BATCHES * ROWS_A_BATCH // PARTITIONS
        for partition in range(PARTITIONS):
            topics.put("in", partition, range(each), start_ms=int(time.time() * 1000))
        everything = sorted(f"{partition}:{number}" for partition in range(PARTITIONS) for number in range(each))

        for life, (point, batch) in enumerate(ALL if os.environ.get("ALL_KILLS") else FEW):
            status = run(broker, tmp_path, f"{point}:{batch}")
            assert (0 if point == "broker" else -signal.SIGKILL) == status, f"life {life} was not killed at {point}"
            seen = visible(broker.address)
            assert len(set(seen)) == len(seen)
            assert 0 == len(seen) % ROWS_A_BATCH, f"after {point} a part of a batch is visible"
        if point != "broker":
            assert 0 == run(broker, tmp_path, "")
        assert everything == sorted(visible(broker.address))


def test_killed_foreach_batch_writes_each_topic_once(tmp_path: Path) -> None:
    """Both writes have the same txnAppId and txnVersion."""
    with BrokerProcess(tmp_path, "num_partitions=2") as broker:
        topics = Topics(broker.address)
        for name in ("in", "out", "out2"):
            topics.make(PARTITIONS, name)
        each = BATCHES * ROWS_A_BATCH // PARTITIONS
        for partition in range(PARTITIONS):
            topics.put("in", partition, range(each), start_ms=int(time.time() * 1000))
        everything = sorted(f"{partition}:{number}" for partition in range(PARTITIONS) for number in range(each))

        kills = FEW_BETWEEN + (MORE_BETWEEN if os.environ.get("ALL_KILLS") else [])
        for life, ((point, batch), first, second) in enumerate(kills):
            status = run(broker, tmp_path, f"{point}:{batch}", "foreach_job", "out", "out2")
            assert -signal.SIGKILL == status, f"life {life} was not killed at {point}"
            for topic, batches in (("out", first), ("out2", second)):
                seen = visible(broker.address, topic)
                assert len(set(seen)) == len(seen) == batches * ROWS_A_BATCH
        assert 0 == run(broker, tmp_path, "", "foreach_job", "out", "out2")
        assert everything == sorted(visible(broker.address, "out"))
        assert everything == sorted(visible(broker.address, "out2"))


def run(broker: BrokerProcess, directory: Path, kill_at: str, job_name: str = "sink_job", *targets: str) -> int:
    """A life of the query; a broker that dies in it is restarted. Returns the exit status."""
    command = [sys.executable, "-m", f"tests.spark.{job_name}", broker.address, "in", *(targets or ("out",))]
    command.append(str(directory / "checkpoint"))
    environment = {**os.environ, "KILL_AT": kill_at, "BROKER_PID": str(broker.process.pid), "PYTHONPATH": str(ROOT)}
    with open(directory / "job", "ab") as output:
        job = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while job.poll() is None:
            assert time.monotonic() < deadline, (directory / "job").read_text()[-4000:]
            if broker.process.poll() is not None:
                broker.start()
            time.sleep(0.05)
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()
    if broker.process.poll() is not None:
        broker.start()
    assert job.returncode in (0, -signal.SIGKILL), (directory / "job").read_text()[-4000:]
    return job.returncode


def visible(servers: str, topic: str = "out") -> list[str]:
    """All values that a reader of committed records gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    committed: list[str] = []
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, committed
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
            continue
        value = message.value()
        assert value is not None
        committed.append(value.decode())
    consumer.close()
    return committed
