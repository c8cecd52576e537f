"""What lets ``write.save()`` do without a mode, from the start of a Python to the import of PySpark. No JVM."""

import shutil
import subprocess
import sys
import zipfile
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


def test_it_is_there_in_spark_s_workers_whose_pyspark_is_in_a_zip_file(installed: str, tmp_path: Path) -> None:
    """All modules of a zip file have one loader."""
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/sql/__init__.py", "from pyspark.sql import readwriter, catalog")
        archive.writestr("pyspark/sql/readwriter.py", "class DataFrameWriter:\n    def save(self): pass\n")
        archive.writestr("pyspark/sql/catalog.py", "")
    run(
        installed
        + f"""
sys.path.insert(0, {str(tmp_path / "pyspark.zip")!r})
import pyspark.sql
assert pyspark.sql.readwriter.DataFrameWriter.save._broker_appends
assert pyspark.sql.readwriter.__loader__ is pyspark.sql.catalog.__loader__ is pyspark.sql.readwriter.__spec__.loader
import inspect
assert "class DataFrameWriter" in inspect.getsource(pyspark.sql.readwriter)
"""
    )


def test_a_pyspark_that_is_another_one_is_left_alone(installed: str, tmp_path: Path) -> None:
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    for name in ("pyspark", "pyspark/sql", "pyspark/sql/readwriter"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
    run(installed + f"sys.path.insert(0, {str(tmp_path)!r})\nimport pyspark.sql.readwriter")


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
