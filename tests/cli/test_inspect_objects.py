"""`broker inspect --objects`: number and bytes of objects by the first part of their keys."""

import json
from pathlib import Path

import pytest

from broker.runtime.directory_objects import DirectoryObjects
from tests.cli.conftest import Run


@pytest.fixture
def url(tmp_path: Path) -> str:
    store = DirectoryObjects(f"{tmp_path}/objects")
    for key, size in {"journal/1/2": 10, "journal/1/3": 20, "tier/a": 0, "alone": 5}.items():
        store.put(key, [bytes(size)], size)
    return store.name


def test_objects_are_counted_by_the_first_part_of_their_keys(url: str, run_alone: Run) -> None:
    assert b"alone\t1\t5\njournal\t2\t30\ntier\t1\t0\n" == run_alone("inspect", "--objects", url).stdout


def test_counts_may_be_objects(url: str, run_alone: Run) -> None:
    lines = run_alone("inspect", "--objects", url, "--output", "json").stdout.splitlines()
    assert {"objects_under": "journal", "objects": 2, "bytes": 30} == json.loads(lines[1])


def test_a_store_without_objects_says_so_and_is_left_alone(tmp_path: Path, run_alone: Run) -> None:
    said = run_alone("inspect", "--objects", f"file://{tmp_path}/none").stdout
    assert f"There are no objects in file://{tmp_path}/none.\n".encode() == said
    assert [] == list(tmp_path.iterdir())


def test_a_wrong_url_is_refused(run_alone: Run) -> None:
    assert b"Set objects to a URL such as" in run_alone("inspect", "--objects", "bucket", fails=2).stderr


def test_it_takes_a_directory_or_objects(tmp_path: Path, run_alone: Run) -> None:
    assert b"Name DIR or --objects" in run_alone("inspect", fails=2).stderr
    both = run_alone("inspect", str(tmp_path), "--objects", "memory://", fails=2).stderr
    assert b"Name DIR or --objects" in both


def test_options_of_segments_do_not_go_with_it(run_alone: Run) -> None:
    assert (
        b"without the options of segments"
        in run_alone("inspect", "--objects", "memory://", "--records", fails=2).stderr
    )
