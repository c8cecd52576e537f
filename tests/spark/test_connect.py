"""Spark Connect: the format and the sink work as on a local session, the exchange does not. Skipped without grpc."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")
pytest.importorskip("grpc", reason="Spark Connect is not installed: pip install 'pyspark[connect]'")

from broker.client import Broker
from broker.spark import java

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(java.find() is None, reason="no Java")
@pytest.mark.timeout(900)
def test_spark_connect_supports_all_but_named_features(tmp_path: Path) -> None:
    with Broker() as running:
        command = [sys.executable, "-m", "tests.spark.connect_job", running.bootstrap_servers, running.shuffle_address]
        done = subprocess.run(
            [*command, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == done.returncode, done.stderr[-4000:]
        told = json.loads(done.stdout.splitlines()[-1])
    assert [f"batch {n}" for n in range(3)] == told["batch"]
    assert [f"stream {n}" for n in range(3)] == told["stream"]
    assert 0 == told["lag"]
    assert [f"{topic} {n}" for topic in ("left", "right") for n in range(3)] == told["foreachBatch"]
    assert "txnVersion 0 of txnAppId 'both' is in 'left' already: its 3 rows are not written again" in done.stderr
    assert "A topic cannot be written in the mode 'overwrite', only appended to" in told["overwrite"]
    assert "Spark Connect" in told["exchange"]
