"""Programs that use Kafka's own Java clients: ``tests/compat/java``.

`java/fetch_jars.py` gets the clients' jars; ``BROKER_JAVA_JARS`` names another directory with those of today's version.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.clients.node import cache

_PROGRAMS = Path(__file__).parent.parent / "java"
# Each program is compiled when it starts, and runs for seconds: a JVM that compiles well takes much longer for that.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def jars_in(folder: str = "java") -> Path:
    """Where the jars of a version are to be: "java" for today's."""
    return Path((os.environ.get("BROKER_JAVA_JARS") if folder == "java" else None) or cache() / folder)


def has_java(folder: str = "java") -> bool:
    return shutil.which("java") is not None and bool(list(jars_in(folder).glob("kafka-clients-*.jar")))


def jars_or_skip(folder: str = "java") -> Path:
    """Skips the test where they, or Java itself, are not there."""
    if not has_java(folder):
        pytest.skip(
            f"java is not installed, or Kafka's jars are not in {jars_in(folder)}: `make java-clients` gets them"
        )
    return jars_in(folder)


def command(jars: Path, program: str, *arguments: str) -> list[str]:
    return ["java", *QUICK, "-cp", f"{jars}/*", str(_PROGRAMS / f"{program}.java"), *arguments]


def run(jars: Path, program: str, *arguments: str, timeout_s: float = 280) -> list[str]:
    """The words that the program prints, which are the scenarios that it has passed. AssertionError if it fails."""
    result = subprocess.run(
        command(jars, program, *arguments), capture_output=True, encoding="utf-8", check=False, timeout=timeout_s
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-5000:]}"
    return result.stdout.split()
