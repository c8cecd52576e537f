"""Which directory is a backup, and which is not."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.runtime.copying import Identity
from broker.runtime.disk import SystemDisk
from broker.storage.backup.layout import (
    JOURNAL,
    MANIFEST,
    BadBackup,
    Manifest,
    Plan,
    PlannedFile,
    PlannedPartition,
    StoredFile,
    journal_line,
    plan_from_json,
    read_journal,
    read_manifest,
    write_manifest,
)

DISK = SystemDisk()
PATHS = st.lists(st.text("ab.-", min_size=1).filter(lambda part: part not in (".", "..")), min_size=1).map("/".join)
NUMBERS = st.integers(0, 2**63 - 1)
PLANS = st.builds(
    Plan,
    st.text(),
    NUMBERS,
    st.text(),
    st.text(),
    st.lists(st.builds(PlannedPartition, st.text(), NUMBERS, NUMBERS, NUMBERS, st.booleans())).map(tuple),
    st.lists(st.builds(PlannedFile, PATHS, NUMBERS, st.booleans())).map(tuple),
)
FILES = [StoredFile("a-0/0.log", 5, 7, Identity(1, 5, 9)), StoredFile("catalogue.sqlite", 5, 7, None)]


@given(PLANS)
def test_a_plan_is_read_as_it_was_written(plan: Plan) -> None:
    assert plan == plan_from_json(plan.to_json())


def test_manifest_round_trip_and_removal_of_journal(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).touch()
    manifest = Manifest(Plan("id", 1, "cluster", "0.1", (PlannedPartition("a", 0, 0, 1, False),), ()), tuple(FILES))
    write_manifest(DISK, str(tmp_path), manifest)
    assert manifest == read_manifest(DISK, str(tmp_path))
    assert [MANIFEST] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format":1}', '{"format":2}', '{"format":1,"stored":[[1]]}', "\udcff"]
)
def test_a_damaged_manifest_is_no_backup(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadBackup):
        read_manifest(DISK, str(tmp_path))


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "a-0/../../outside", "a-0//0.log", ".", "", "a\0b"])
def test_file_outside_of_backup_is_refused(tmp_path: Path, path: str) -> None:
    whole = Manifest(Plan("id", 1, "cluster", "0.1", (), ()), (StoredFile(path, 5, 7, None),))
    (tmp_path / JOURNAL).touch()
    write_manifest(DISK, str(tmp_path), whole)
    with pytest.raises(BadBackup):
        read_manifest(DISK, str(tmp_path))
    with pytest.raises(ValueError, match="no path"):
        plan_from_json(Plan("id", 1, "cluster", "0.1", (), (PlannedFile(path, 5, closed=True),)).to_json())
    (tmp_path / JOURNAL).write_text(journal_line(whole.files[0]))
    assert [] == list(read_journal(DISK, str(tmp_path)))


def test_incomplete_journal_line_is_left_out(tmp_path: Path) -> None:
    lines = [journal_line(file) for file in FILES]
    (tmp_path / JOURNAL).write_text(f"\n{lines[0]}\n{lines[1][:9]}\n{lines[1]}\n")
    assert FILES == list(read_journal(DISK, str(tmp_path)))
    with pytest.raises(BadBackup, match="was not finished"):
        read_manifest(DISK, str(tmp_path))
