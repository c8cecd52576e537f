"""`.ci/venv`: which Python the virtual environment of `make` is made of, and what happens where its packages cannot be installed.

The Pythons here are scripts: each makes an environment whose pip notes what it was asked to install, or fails.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".ci" / "venv"

# $0 is the Python of the system or, with a link to it, that of an environment.
FAKE = """#!/bin/bash
version=%s broken="%s" at=%s
case "$1 $2" in
"-c "*version_info*) [ "${version#3.}" -ge 11 ] ;;
"-c "*base_prefix*) echo "$version $at" ;;
"--version "*) echo "Python $version" ;;
"-m venv") mkdir -p "$3/bin" && cp "$at" "$3/bin/python" ;;
"-m pip")
    if [ "$3" = --version ]; then exit 0; fi
    what="${@: -1}"
    if [[ " $broken " == *" $what "* ]]; then echo "no wheel for $what"; exit 1; fi
    echo "$what" >> "$(dirname "$0")/../installed" ;;
*) exit 9 ;;
esac
"""


class Machine:
    """A machine with the Pythons that `has` has put there, and one environment."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "bin"
        self.path.mkdir()
        self.environment = directory / "environment"
        for name in ("bash", "cp", "dirname", "mkdir", "rm"):
            (self.path / name).symlink_to(shutil.which(name) or pytest.skip(f"there is no {name}"))

    def has(self, name: str, version: str, broken: str = "") -> None:
        """`broken`: what its pip cannot install."""
        file = self.path / name
        file.write_text(FAKE % (version, broken, file))
        file.chmod(0o755)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PATH": str(self.path)}
        command = [VENV, *arguments]
        return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)

    def install(self, what: str, *python: str) -> "subprocess.CompletedProcess[str]":
        return self.run(str(self.environment), what, *python)

    @property
    def version(self) -> str:
        """Of the environment's Python."""
        command = [self.environment / "bin" / "python", "--version", ""]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.strip()

    @property
    def installed(self) -> list[str]:
        return (self.environment / "installed").read_text().split()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_newest_python_is_taken_and_not_python3(machine: Machine) -> None:
    machine.has("python3", "3.11")
    machine.has("python3.12", "3.12")
    machine.has("python3.13", "3.13")

    assert 0 == machine.install(".").returncode

    assert ("Python 3.13", ["."]) == (machine.version, machine.installed)


def test_too_old_python_is_skipped(machine: Machine) -> None:
    machine.has("python3", "3.9")
    machine.has("python", "3.12")

    assert 0 == machine.install(".").returncode

    assert "Python 3.12" == machine.version


def test_missing_python_is_explained(machine: Machine) -> None:
    machine.has("python3", "3.9")

    result = machine.install(".")

    assert (1, True) == (result.returncode, "name it as in 'make run PYTHON=/path" in result.stderr)
    assert not machine.environment.exists()


def test_next_python_is_taken_without_wheels(machine: Machine) -> None:
    machine.has("python3.14", "3.14", broken=".")
    machine.has("python3.12", "3.12")

    result = machine.install(".")

    assert (0, "Python 3.12", ["."]) == (result.returncode, machine.version, machine.installed)
    assert "Python 3.14: not all packages can be installed" in result.stderr


def test_newest_python_s_error_is_shown_without_candidates(machine: Machine) -> None:
    machine.has("python3.14", "3.14", broken=".")
    machine.has("python3.12", "3.12", broken=".")

    result = machine.install(".")

    assert 1 == result.returncode
    assert "no wheel for .\nThe packages for . could not be installed for Python 3.14." in result.stderr


def test_environment_is_kept_despite_a_newer_python(machine: Machine) -> None:
    machine.has("python3.12", "3.12")
    machine.install(".")
    machine.has("python3.13", "3.13")

    assert 0 == machine.install(".[test]").returncode

    assert ("Python 3.12", [".", ".[test]"]) == (machine.version, machine.installed)


def test_broken_environment_is_rebuilt_with_another_python(machine: Machine) -> None:
    machine.has("python3.14", "3.14", broken=".[dev]")
    machine.install(".")
    machine.has("python3.13", "3.13")

    assert 0 == machine.install(".[dev]").returncode

    assert ("Python 3.13", [".[dev]"]) == (machine.version, machine.installed)


def test_the_python_that_is_asked_for_wins(machine: Machine) -> None:
    machine.has("python3.13", "3.13")
    machine.has("python3.14", "3.14")
    machine.install(".")

    assert 0 == machine.install(".", "python3.13").returncode

    assert ("Python 3.13", ["."]) == (machine.version, machine.installed)


def test_requested_python_is_never_replaced(machine: Machine) -> None:
    machine.has("python3.13", "3.13")
    machine.has("python3.14", "3.14", broken=".")

    result = machine.install(".", "python3.14")

    assert (1, True) == (result.returncode, "no wheel for ." in result.stderr)


def test_environment_of_the_requested_python_is_kept(machine: Machine) -> None:
    machine.has("python3.13", "3.13")
    machine.install(".")

    assert 0 == machine.install(".[test]", "python3.13").returncode

    assert [".", ".[test]"] == machine.installed


@pytest.mark.parametrize(("asked", "stamps"), [("python3.13", 1), ("python3.12", 0)])
def test_stamps_are_removed_for_another_python(machine: Machine, asked: str, stamps: int) -> None:
    machine.has("python3.12", "3.12")
    machine.has("python3.13", "3.13")
    machine.install(".")
    (machine.environment / ".stamp-run").touch()

    assert 0 == machine.run("--outdate", str(machine.environment), asked).returncode

    assert stamps == len(list(machine.environment.glob(".stamp-*")))
