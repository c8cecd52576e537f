"""The examples in docs/examples/testing pass, as a user would run them: each by a pytest of its own that knows the plugin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.clients.environment import ROOT, python_with, with_broker

EXAMPLES = ROOT / "docs" / "examples" / "testing"
# Those that would change what other tests use: their packages, as the examples name them.
OTHERS = {
    "test_faststream": ("faststream[confluent]==0.7.8",),
    "test_faust": ("faust-streaming==0.15.3",),
    "test_quixstreams": ("quixstreams==3.28.1",),
}
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("test_*.py")))
def test_example_passes(name: str, tmp_path: Path) -> None:
    python = python_with(*OTHERS[name]) if name in OTHERS else Path(sys.executable)
    if isinstance(python, str):
        pytest.skip(python)
    # The plugin by its module: a package that is not installed has no entry point.
    plugin = ["-p", "broker.client.pytest_plugin"] if name in OTHERS else []
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
        + [*plugin, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env=with_broker() | {"SPARK_SUBMIT_OPTS": _QUICK_JVM, "SPARK_LAUNCHER_OPTS": _QUICK_JVM},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
