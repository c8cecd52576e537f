"""Kafka's own administration client (Java 4.3) and the cluster: settings, the quorum, features, and what is not there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.clients.node import cache
from tests.compat.conftest import new_name

SCENARIOS = ["config-resources", "metadata-quorum", "features"]
SCENARIOS += ["no-streams-groups", "no-streams-members", "no-offsets-topic"]


@pytest.fixture(scope="module")
def jars() -> Path:
    where = Path(os.environ.get("BROKER_JAVA_JARS") or cache() / "java")
    if shutil.which("java") is None or not list(where.glob("kafka-clients-*.jar")):
        pytest.skip(f"java is not installed, or Kafka's jars are not in {where}: `make java-clients` gets them")
    return where


def test_java_administers_the_cluster(jars: Path, servers: str) -> None:
    source = Path(__file__).parent / "java" / "ClusterAdmin.java"
    command = ["java", "-cp", f"{jars}/*", str(source), servers, new_name("java")]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=180)
    assert SCENARIOS == result.stdout.split(), result.stderr[-5000:]
    assert result.returncode == 0
