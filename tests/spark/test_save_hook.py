"""What lets ``write.save()`` do without a mode, from the start of a Python to the import of PySpark. No JVM."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

ROOT = Path(__file__).parents[2]
INSTALLED = """
import sys
before = set(sys.modules)
import site
site.addsitedir({directory!r})
assert "reactor_broker_save_hook" in sys.modules
"""


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """The beginning of a program where the package is installed, as the wheel does it."""
    shutil.copy(ROOT / "broker/spark/_save_hook.py", tmp_path / "reactor_broker_save_hook.py")
    shutil.copy(ROOT / "broker/spark/_save_hook.pth", tmp_path / "reactor_broker_save_hook.pth")
    return INSTALLED.format(directory=str(tmp_path))


def run(program: str, directory: Path = ROOT) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, check=False)
    assert "" == done.stderr
    assert 0 == done.returncode


def test_it_is_there_without_an_import_of_ours(installed: str) -> None:
    run(
        installed
        + """
from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameWriter
assert DataFrameWriter.save._broker_appends
"""
    )


def test_it_is_there_after_an_import_of_ours_before_or_after_pyspark() -> None:
    for program in ("import broker.spark, pyspark.sql", "import pyspark.sql, broker.spark"):
        run(f"{program}; from pyspark.sql.readwriter import DataFrameWriter as w; assert w.save._broker_appends")


def test_it_is_patched_once(installed: str) -> None:
    run(
        installed
        + """
import broker.spark
from pyspark.sql.readwriter import DataFrameWriter
broker.spark._save_hook.install()
assert 1 == sum(hasattr(one, "is_broker_save_hook") for one in sys.meta_path)
assert not hasattr(DataFrameWriter.save.__wrapped__, "_broker_appends")
"""
    )


def test_a_python_that_does_not_use_spark_pays_nothing(installed: str) -> None:
    run(installed + "assert {'site', 'reactor_broker_save_hook'} >= {one for one in set(sys.modules) - before}")


def test_what_is_left_of_an_installation_does_no_harm(installed: str, tmp_path: Path) -> None:
    run(
        installed
        + """
sys.modules["broker"] = None
import pyspark.sql.readwriter
assert pyspark.sql.readwriter.DataFrameWriter
""",
        tmp_path,
    )
