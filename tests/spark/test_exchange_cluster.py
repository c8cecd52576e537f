"""An exchange on a cluster, where driver, executors and broker share nothing: a killed executor does not lose finished work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client import Broker

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["stage", "after"])
def said(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> dict[str, object]:
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")
    job = subprocess.run(
        [sys.executable, "-m", "tests.spark.exchange_job", broker.shuffle_address, str(tmp_path), request.param],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
        env=os.environ | {"SPARK_LOCAL_DIRS": str(tmp_path / "local")},
    )
    assert 0 == job.returncode, job.stderr
    return {"when": request.param} | json.loads(job.stdout.splitlines()[-1])


@pytest.mark.slow
def test_killed_executor_costs_only_its_work(said: dict[str, object]) -> None:
    assert {"same": [True, True], "winners_left": True, "left": 0} == {
        name: said[name] for name in ("same", "winners_left", "left")
    }
    attempts, finished = said["attempts"], said["finished_at_the_kill"]
    assert isinstance(attempts, dict) and isinstance(finished, list)
    if said["when"] == "after":
        assert [1, 1, 1, 1] == list(attempts.values())
    else:
        assert [1, 1] == [attempts[str(number)] for number in finished]
        assert 5 == sum(attempts.values())
