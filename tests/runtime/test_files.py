"""Files with secrets: nobody else may read them."""

from pathlib import Path

from broker.runtime.files import create_private, make_private


def test_new_file_is_private_and_existing_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    assert create_private(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"x")
    path.chmod(0o640)
    assert not create_private(str(path))
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o640, b"x")


def test_a_file_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(b"x")
    path.chmod(0o644)
    make_private(str(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_failure_to_make_file_is_left_to_opener(tmp_path: Path) -> None:
    assert not create_private(f"{tmp_path}/none/secrets")
    make_private(f"{tmp_path}/none")
