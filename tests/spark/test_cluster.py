"""Reads on a cluster: driver, executors and broker share neither memory nor a directory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.topics import Topics

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # three JVMs start
def test_cluster_executors_read_the_drivers_plan(topics: Topics, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")
    name = topics.fill(2, 20)
    job = subprocess.run(
        [sys.executable, "-m", "tests.spark.cluster_job", topics.bootstrap_servers, name, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
        env=os.environ | {"SPARK_LOCAL_DIRS": str(tmp_path / "local")},
    )
    assert 0 == job.returncode, job.stderr
    said = json.loads(job.stdout.splitlines()[-1])
    every = sorted(f"{partition}:{number}" for partition in range(2) for number in range(20))
    assert {"batch": every, "stream": every, "executors": 2} == said
