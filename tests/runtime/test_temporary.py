"""Temporary directories: which go, when, and what is left alone."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.runtime import temporary
from broker.runtime.temporary import TemporaryDirectory, remove_abandoned

OWNER = """
import os, sys, time
from broker.runtime.temporary import TemporaryDirectory
one = TemporaryDirectory()
open(os.path.join(one.path, "file"), "w").close()
print(one.path, flush=True)
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary directories are made, in this process and its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def run(program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def killed(how: signal.Signals = signal.SIGKILL) -> Path:
    """The directory of a process that was killed."""
    with run(OWNER + "time.sleep(600)") as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert (path / "file").exists()
        process.send_signal(how)
        assert -how == process.wait(30)
    return path.parent


def test_it_is_removed_with_what_is_in_it(directory: Path) -> None:
    one = TemporaryDirectory()
    (Path(one.path) / "sub").mkdir()
    (Path(one.path) / "sub" / "file").write_text("x")
    one.remove()
    one.remove()
    assert [] == list(directory.iterdir())


@pytest.mark.parametrize(
    "end", ["", "raise ValueError", "sys.exit(3)", "import signal; signal.raise_signal(signal.SIGINT)"]
)
def test_directory_goes_with_process_that_ends_by_itself(directory: Path, end: str) -> None:
    with run(OWNER + end) as process:
        process.wait(30)
    assert [] == list(directory.iterdir())


def test_required_cleanup_runs_first(directory: Path) -> None:
    program = """
import os
from broker.runtime.temporary import TemporaryDirectory
one = TemporaryDirectory(before_exit=lambda: print(os.path.isdir(one.path)))
"""
    with run(program) as process:
        assert process.stdout is not None
        assert "True\n" == process.stdout.read()
    assert [] == list(directory.iterdir())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_directory_of_killed_process_is_removed_by_next(directory: Path, how: signal.Signals) -> None:
    root = killed(how)
    assert root.exists()
    one = TemporaryDirectory()
    assert not root.exists()
    one.remove()
    assert [] == list(directory.iterdir())


def test_directories_of_living_processes_and_this_one_stay() -> None:
    mine = TemporaryDirectory()
    with run(OWNER + "time.sleep(600)") as other:
        assert other.stdout is not None
        path = Path(other.stdout.readline().strip())
        remove_abandoned()
        assert (path / "file").exists()
        assert os.path.isdir(mine.path)
        other.kill()
    mine.remove()


def test_directory_stays_until_last_forked_process_is_gone(directory: Path) -> None:
    """Which may be using it: it has the lock as well."""
    with run(OWNER + "child = os.fork()\nif child: print(child, flush=True)\ntime.sleep(600)") as process:
        assert process.stdout is not None
        root, child = Path(process.stdout.readline().strip()).parent, int(process.stdout.readline())
        process.kill()
        process.wait(30)
        remove_abandoned()
        assert root.exists()
        os.kill(child, signal.SIGKILL)
    while root.exists():  # the kernel takes a moment to let go of the lock
        remove_abandoned()


def test_a_forked_process_that_ends_removes_nothing() -> None:
    one = TemporaryDirectory()
    child = os.fork()
    if child == 0:
        try:
            one.remove()
            one._at_exit()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.path.isdir(one.path)
    one.remove()


def test_what_is_not_ours_stays(directory: Path) -> None:
    """Names like ours without the mark, marks of others, and what links lead to."""
    precious = directory / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (directory / "broker-2024").mkdir()
    (directory / "broker-2024" / "data").mkdir()
    for name, mark in (
        ("broker-notes", b"mine\n"),
        ("broker-longer", temporary._MARK + b"more"),
        ("broker-empty", b""),
    ):
        (directory / name / "data").mkdir(parents=True)
        (directory / name / "owner").write_bytes(mark)
    root = killed()
    os.symlink(root, directory / "broker-link")
    (directory / "broker-linked" / "data").mkdir(parents=True)
    os.symlink(root / "owner", directory / "broker-linked" / "owner")
    os.mkfifo(directory / "broker-2024" / "owner")
    before = sorted(path for path in directory.rglob("*") if root not in path.parents and path != root)
    remove_abandoned()
    assert before == sorted(path for path in directory.rglob("*") if path != directory)


def test_links_in_an_abandoned_directory_are_not_followed(directory: Path) -> None:
    precious = directory / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    root = killed()
    os.symlink(precious, root / "data" / "link")
    remove_abandoned()
    assert not root.exists()
    assert (precious / "file").exists()


def test_what_somebody_has_put_beside_the_data_stays() -> None:
    root = killed()
    (root / "notes").write_text("x")
    remove_abandoned()
    assert ["notes"] == [path.name for path in root.iterdir()]


def test_linked_data_directory_stays_with_its_target(directory: Path) -> None:
    precious = directory / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    root = killed()
    (root / "data" / "file").unlink()
    (root / "data").rmdir()
    os.symlink(precious, root / "data")
    remove_abandoned()
    assert (precious / "file").exists()


def test_interrupted_removal_is_completed_by_next_process(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = killed()
    monkeypatch.setattr(temporary.shutil, "rmtree", lambda *_, **__: None)  # as if it had not got to the end
    remove_abandoned()
    assert (root / "owner").exists()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    remove_abandoned()
    assert not root.exists()
