"""Packages from PyPI that must not change the environment of the tests: each set in one of its own, made in the user's cache the
first time."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.compat.clients.node import cache

ROOT = Path(__file__).parents[3]
_INSTALL_S = 600.0


@functools.cache
def python_with(*packages: str) -> Path | str:
    """A Python with these packages, what the broker needs, and pytest, or why there is none. The broker itself is to come
    from PYTHONPATH, so that it is the one under test."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], "pytest<9.2", *packages]
    state = hashlib.sha256(f"{sys.version} {sys.executable} {wanted}".encode()).hexdigest()[:16]
    target = cache() / f"python-{state}"
    if (target / "complete").exists():
        return target / "bin" / "python"
    try:
        cache().mkdir(parents=True, exist_ok=True)
        requirements = Path(tempfile.mkdtemp(dir=cache())) / "requirements"
        requirements.write_text("\n".join(wanted), "utf-8")
        shutil.rmtree(target, ignore_errors=True)  # it cannot be moved, and one that was begun may lack anything
        install = [str(target / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(requirements)]
        for command in ([sys.executable, "-m", "venv", str(target)], install):
            done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=_INSTALL_S)
            if done.returncode:
                return f"they could not be installed: {' '.join(done.stderr.split())[-300:]}"
        shutil.rmtree(requirements.parent)
        (target / "complete").touch()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"they could not be installed: {error}"
    return target / "bin" / "python"


def with_broker() -> dict[str, str]:
    """The variables of a process that is to import this broker."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}
