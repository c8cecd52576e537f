"""What an operator is told where a volume belongs to somebody else."""

import errno
import os
from pathlib import Path

import pytest

from broker.runtime.files import explain_access, explain_denial

DENIED = PermissionError(errno.EACCES, "Permission denied")


def test_explanation_names_user_owner_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    monkeypatch.setattr(os, "getegid", lambda: 10002)
    tmp_path.chmod(0o750)
    owner = tmp_path.stat().st_uid
    said = explain_denial(DENIED, f"{tmp_path}/new/deeper")
    assert "this process runs as uid 10001" in said
    assert f"{tmp_path} belongs to uid {owner}" in said
    assert "with mode 0750" in said
    assert f"chown -R 10001:10002 {tmp_path}" in said


def test_owner_without_rights_is_told_to_change_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert f"chmod u+rwx {tmp_path}" in explain_denial(DENIED, str(tmp_path))
    tmp_path.chmod(0o700)


def test_other_errors_are_said_as_they_are() -> None:
    assert "No space left on device" == explain_denial(OSError(errno.ENOSPC, "No space left on device"), "/data")
    assert "mounted read-only" in explain_denial(OSError(errno.EROFS, "Read-only file system"), "/data")


def test_usable_or_missing_file_needs_no_explanation(tmp_path: Path) -> None:
    (tmp_path / "catalogue").touch()
    assert explain_access(f"{tmp_path}/catalogue") is None
    assert explain_access(f"{tmp_path}/other") is None


def test_unusable_file_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catalogue").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "Permission denied" in (explain_access(f"{tmp_path}/catalogue") or "")
