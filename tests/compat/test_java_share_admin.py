"""Kafka's own administration client with share groups (Java, from 4.1 on)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.clients.node import cache
from tests.compat.conftest import new_name

SCENARIOS = ["listed-by-type", "shared-partition", "lag", "altered-before-it-exists", "offsets-deleted"]
SCENARIOS += ["members-in-the-way", "absent", "settings"]


@pytest.fixture(scope="module")
def jars() -> Path:
    where = Path(os.environ.get("BROKER_JAVA_JARS") or cache() / "java")
    if shutil.which("java") is None or not list(where.glob("kafka-clients-*.jar")):
        pytest.skip(f"java is not installed, or Kafka's jars are not in {where}: `make java-clients` gets them")
    return where


def test_java_administers_share_groups(jars: Path, servers: str) -> None:
    source = Path(__file__).parent / "java" / "ShareAdmin.java"
    command = ["java", "-cp", f"{jars}/*", str(source), servers, new_name("java")]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=180)
    assert SCENARIOS == result.stdout.split(), result.stderr[-5000:]
    assert result.returncode == 0
