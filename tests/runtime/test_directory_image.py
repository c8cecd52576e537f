"""A directory that is put back is what it was, whatever was done to it."""

import os
import shutil
import stat
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from broker.runtime.directory_image import DirectoryImage

_NAMES = st.sampled_from(["a", "b", "c"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _PATHS, st.binary(max_size=3)),
        st.tuples(st.just("mkdir"), _PATHS, st.none()),
        st.tuples(st.just("remove"), _PATHS, st.none()),
        st.tuples(st.just("link"), _PATHS, st.none()),
    )
)


def change(root: Path, changes: list[tuple[str, str, bytes | None]]) -> None:
    for kind, name, content in changes:
        path = root / name
        try:
            if kind == "write":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content or b"")
            elif kind == "mkdir":
                path.mkdir(parents=True, exist_ok=True)
            elif kind == "link":
                path.symlink_to(root.parent / "outside")
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError:
            pass  # a file in the place of a directory, or the reverse


def state(root: Path) -> dict[str, bytes | None]:
    paths = [path for path in root.rglob("*") if not path.is_symlink()]
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in paths}


@given(_CHANGES, _CHANGES)
def test_everything_is_put_back(
    first: list[tuple[str, str, bytes | None]], then: list[tuple[str, str, bytes | None]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "inside"
        root.mkdir()
        change(root, first)
        before = state(root)
        image = DirectoryImage.of(str(root))
        for _ in range(2):
            change(root, then)
            image.put_back(str(root))
            assert before == state(root)
            assert not [path for path in root.rglob("*") if path.is_symlink()]


def test_unchanged_files_are_not_written(tmp_path: Path) -> None:
    for name in ("same", "other"):
        (tmp_path / name).write_bytes(b"before")
        os.utime(tmp_path / name, ns=(1, 1))
    image = DirectoryImage.of(str(tmp_path))
    (tmp_path / "other").write_bytes(b"after!")
    os.utime(tmp_path / "other", ns=(1, 1))
    image.put_back(str(tmp_path))
    assert 1 == (tmp_path / "same").stat().st_mtime_ns != (tmp_path / "other").stat().st_mtime_ns
    assert b"before" == (tmp_path / "other").read_bytes()


def test_private_files_stay_private(tmp_path: Path) -> None:
    secret = tmp_path / "private" / "secret"
    secret.parent.mkdir(0o700)
    secret.touch(0o600)
    image = DirectoryImage.of(str(tmp_path))
    shutil.rmtree(secret.parent)
    image.put_back(str(tmp_path))
    assert (0o700, 0o600) == (stat.S_IMODE(secret.parent.stat().st_mode), stat.S_IMODE(secret.stat().st_mode))
