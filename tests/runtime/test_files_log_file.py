"""Rotation as logrotate does it: by renaming and a signal, and by copying and truncating."""

from pathlib import Path

import pytest

from broker.runtime.files import LogFile


def test_renamed_log_file_continues_until_opened_anew(tmp_path: Path) -> None:
    log = LogFile(f"{tmp_path}/log")
    log.write_line("one")
    (tmp_path / "log").rename(tmp_path / "log.1")
    log.write_line("two")
    log.reopen()
    log.write_line("three")
    assert ("one\ntwo\n", "three\n") == ((tmp_path / "log.1").read_text(), (tmp_path / "log").read_text())


def test_a_file_that_was_truncated_has_no_hole(tmp_path: Path) -> None:
    log = LogFile(f"{tmp_path}/log")
    log.write_line("one")
    (tmp_path / "log").write_bytes(b"")
    log.write_line("two")
    assert "two\n" == (tmp_path / "log").read_text()


def test_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    LogFile(f"{tmp_path}/log").write_line("\udcff")
    assert "before\n\\udcff\n" == (tmp_path / "log").read_text()


def test_missing_directory_is_noticed_at_start_harmless_later(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogFile(f"{tmp_path}/missing/log")
    (tmp_path / "d").mkdir()
    log = LogFile(f"{tmp_path}/d/log")
    (tmp_path / "d").rename(tmp_path / "e")
    log.reopen()
    log.write_line("one")
    assert "one\n" == (tmp_path / "e" / "log").read_text()


def test_a_full_disk_costs_lines_only() -> None:
    LogFile("/dev/full").write_line("one")
