"""``write.save()`` without a mode, whether this package or PySpark is imported first. Without a JVM."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'reactor-broker[spark]'")

ROOT = Path(__file__).parents[3]


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "" == done.stderr
    assert 0 == done.returncode


def test_hook_works_before_and_after_pysparks_import() -> None:
    for program in ("import broker.spark, pyspark.sql", "import pyspark.sql, broker.spark"):
        run(f"{program}; from pyspark.sql.readwriter import DataFrameWriter as w; assert w.save._broker_appends")


def test_hook_needs_an_import_of_ours() -> None:
    run(
        """
import pyspark.sql
from pyspark.sql.readwriter import DataFrameWriter
assert not hasattr(DataFrameWriter.save, "_broker_appends")
"""
    )


def test_hook_works_with_pyspark_in_a_zip(tmp_path: Path) -> None:
    """All modules of a zip file share a loader."""
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/sql/__init__.py", "from pyspark.sql import readwriter, catalog")
        archive.writestr("pyspark/sql/readwriter.py", "class DataFrameWriter:\n    def save(self): pass\n")
        archive.writestr("pyspark/sql/catalog.py", "")
    run(
        f"""
import sys
import broker.spark
sys.path.insert(0, {str(tmp_path / "pyspark.zip")!r})
import pyspark.sql
assert pyspark.sql.readwriter.DataFrameWriter.save._broker_appends
assert pyspark.sql.readwriter.__loader__ is pyspark.sql.catalog.__loader__ is pyspark.sql.readwriter.__spec__.loader
import inspect
assert "class DataFrameWriter" in inspect.getsource(pyspark.sql.readwriter)
"""
    )


def test_another_pyspark_is_left_alone(tmp_path: Path) -> None:
    for name in ("pyspark", "pyspark/sql", "pyspark/sql/readwriter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    run(f"import sys, broker.spark\nsys.path.insert(0, {str(tmp_path)!r})\nimport pyspark.sql.readwriter")


def test_old_finder_is_skipped() -> None:
    """Old copies of ``six`` have such a finder."""
    run(
        """
import sys
import broker.spark
class Old:
    def find_module(self, name, path=None): return None
sys.meta_path.insert(1, Old())
from pyspark.sql.readwriter import DataFrameWriter
assert DataFrameWriter.save._broker_appends
"""
    )


def test_writer_is_patched_once() -> None:
    run(
        """
import sys
import broker.spark
from broker.spark.sink import save_hook
from pyspark.sql.readwriter import DataFrameWriter
save_hook.install()
assert 1 == sum(isinstance(one, save_hook._Finder) for one in sys.meta_path)
assert not hasattr(DataFrameWriter.save.__wrapped__, "_broker_appends")
"""
    )
