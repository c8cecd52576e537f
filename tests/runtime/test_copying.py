"""Copies of files, and what cannot be copied."""

from pathlib import Path

import pytest

from broker.runtime import copying
from protocol.frames import crc32c


def test_copy_stops_at_size_and_returns_the_checksum(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(b"older and longer" * 1_000_000)
    ticks: list[int] = []
    checksum = copying.copy_file(f"{tmp_path}/a", f"{tmp_path}/b", 2_000_001, ticks.append)
    assert data[:2_000_001] == (tmp_path / "b").read_bytes()
    assert crc32c(data[:2_000_001]) == checksum
    assert 2_000_001 == sum(ticks)
    assert (2_000_001, checksum) == copying.checksum_of(f"{tmp_path}/b")


def test_source_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(OSError, match="ends 2 bytes too early"):
        copying.copy_file(f"{tmp_path}/a", f"{tmp_path}/b", 5)


def test_a_new_copy_is_for_its_user_only(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    copying.copy_file(f"{tmp_path}/a", f"{tmp_path}/b", 0)
    copying.make_private_directory(f"{tmp_path}/c/d")
    assert 0o600 == (tmp_path / "b").stat().st_mode & 0o777
    assert 0o700 == (tmp_path / "c" / "d").stat().st_mode & 0o777


def test_a_changed_file_has_another_identity(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    before = copying.identity(f"{tmp_path}/a")
    assert before == copying.identity(f"{tmp_path}/a")
    (tmp_path / "a").write_bytes(b"abcd")
    assert before != copying.identity(f"{tmp_path}/a")


def test_second_name_replaces_file_and_needs_a_source(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"old")
    assert copying.link_or_none(f"{tmp_path}/a", f"{tmp_path}/b")
    assert b"abc" == (tmp_path / "b").read_bytes()
    assert not copying.link_or_none(f"{tmp_path}/missing", f"{tmp_path}/c")


def test_files_below_are_named_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    for name in ("t-0/b", "t-0/a", "z"):
        (tmp_path / name).touch()
    copying.append_line(f"{tmp_path}/z", "line")
    assert ["z", "t-0/a", "t-0/b"] == list(copying.files_below(str(tmp_path)))
    assert "line\n" == (tmp_path / "z").read_text()
