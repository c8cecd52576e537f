"""What only the real disk has to do: descriptors, short writes, the kernel's answers. The rest is tests/contract/test_disk.py."""

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.runtime import disk as module
from broker.runtime.disk import FileRegion, SystemDisk

DISK = SystemDisk()


def test_dropped_file_closes_with_its_last_region(tmp_path: Path) -> None:
    file = DISK.open(f"{tmp_path}/a", create=True)
    file.pwrite([b"abc"], 0)
    fd = file.fileno()
    region = FileRegion(file, 0, 3)
    del file
    gc.collect()
    assert os.pread(fd, 3, 0) == b"abc"
    del region
    gc.collect()
    with pytest.raises(OSError) as closed:
        os.fstat(fd)
    assert closed.value.errno == errno.EBADF


def test_files_are_not_inherited_by_child_processes(tmp_path: Path) -> None:
    file = DISK.open(f"{tmp_path}/a", create=True)
    assert not os.get_inheritable(file.fileno())


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    real_vector = os.pwritev
    monkeypatch.setattr(module.os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:7], offset))
    monkeypatch.setattr(module.os, "pwritev", lambda fd, buffers, offset: real_vector(fd, buffers[:1], offset))
    file = DISK.open(f"{tmp_path}/a", create=True)
    data = bytes(range(100))
    assert file.pwrite([data], 10) == 100
    assert file.pwrite([data[:50], data[50:]], 200) == 100
    assert file.pread(100, 10) == data
    assert file.pread(100, 200) == data


def test_many_buffers_are_one_system_call_or_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwritev, []

    def pwritev(fd: int, buffers: Any, offset: int) -> int:
        calls.append(len(buffers))
        return real(fd, buffers, offset)

    monkeypatch.setattr(module.os, "pwritev", pwritev)
    file = DISK.open(f"{tmp_path}/a", create=True)
    assert file.pwrite([b"%d" % (n % 10) for n in range(100)], 3) == 100
    assert file.pread(100, 3) == b"0123456789" * 10
    # More than the kernel takes at once, and larger than a piece.
    assert file.pwrite([b"x"] * 3000, 200) == 3000
    assert file.pwrite([bytes(200_000)] * 2, 4000) == 400_000
    assert file.pread(3000, 200) == b"x" * 3000
    assert calls == [100]


def test_a_write_that_writes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "pwrite", lambda fd, data, offset: 0)
    file = DISK.open(f"{tmp_path}/a", create=True)
    with pytest.raises(OSError, match="nothing could be written"):
        file.pwrite([b"abc"], 0)


def test_a_large_write_goes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = os.pwrite, []

    def pwrite(fd: int, data: Any, offset: int) -> int:
        sizes.append(len(data))
        return real(fd, data, offset)

    monkeypatch.setattr(module.os, "pwrite", pwrite)
    file = DISK.open(f"{tmp_path}/a", create=True)
    file.pwrite([bytes(600_000)], 0)
    assert sizes == [262_144, 262_144, 75_712]


def test_a_short_read_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DISK.open(f"{tmp_path}/a", create=True)
    data = bytes(range(100))
    file.pwrite([data], 0)
    real = os.pread
    monkeypatch.setattr(module.os, "pread", lambda fd, size, offset: real(fd, min(size, 7), offset))
    assert file.pread(1000, 0) == data


def test_range_outside_of_memory_is_recognised(tmp_path: Path) -> None:
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this system cannot tell")
    file = DISK.open(f"{tmp_path}/a", create=True)
    size = 4 << 20
    file.pwrite([os.urandom(size)], 0)
    file.sync(data_only=False)
    os.posix_fadvise(file.fileno(), 1 << 20, 2 << 20, os.POSIX_FADV_DONTNEED)
    # The kernel may read ahead of where it is asked, so this is the only question about what follows.
    if file.is_resident(2 << 20, 4096):
        pytest.skip("this file system kept the pages, or is in memory")
    assert not file.is_resident(0, size)
    assert file.is_resident(0, 1 << 20)
    file.pread(size, 0)
    assert file.is_resident(0, size)


def test_everything_counts_as_resident_if_kernel_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(fd: int, buffers: Any, offset: int, flags: int) -> int:
        raise OSError(errno.EOPNOTSUPP, "no")

    file = DISK.open(f"{tmp_path}/a", create=True)
    monkeypatch.setattr(module.os, "preadv", preadv)
    assert file.is_resident(0, 10)


def test_a_lock_excludes_other_processes(tmp_path: Path) -> None:
    held = DISK.lock(f"{tmp_path}/.lock")
    code = f"from broker.runtime.disk import SystemDisk; SystemDisk().lock({f'{tmp_path}/.lock'!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "BlockingIOError" in result.stderr
    assert (tmp_path / ".lock").read_text() == f"pid {os.getpid()}\n"
    held.close()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_sync_that_has_begun_changes_nothing(tmp_path: Path) -> None:
    file = SystemDisk().open(str(tmp_path / "f"), create=True)
    file.pwrite([b"data"], 0)
    for offset, size in ((0, 4), (100, 1 << 40), (-1, -1)):
        file.begin_sync(offset, size)
    file.sync()
    assert b"data" == file.pread(10, 0)
    file.close()


def test_a_link_is_one_whatever_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    for target in ("directory", "nothing"):
        (tmp_path / f"to-{target}").symlink_to(tmp_path / target)
        assert DISK.is_link(f"{tmp_path}/to-{target}")
    assert DISK.is_dir(f"{tmp_path}/to-directory")


def test_region_is_read_exactly_to_its_end() -> None:
    asked: list[tuple[int, int]] = []

    class Asked:
        path = "asked"
        is_remote = False

        def pread(self, size: int, offset: int) -> bytes:
            asked.append((offset, size))
            return b""

    FileRegion(Asked(), 5, (2 << 20) + 3).warm()  # type: ignore[arg-type]
    assert [(5, 1 << 20), (5 + (1 << 20), 1 << 20), (5 + (2 << 20), 3)] == asked


def test_short_region_is_error_that_names_the_file(tmp_path: Path) -> None:
    file = DISK.open(f"{tmp_path}/a", create=True)
    file.pwrite([b"0123456789"], 0)
    assert FileRegion(file, 3, 5).read() == b"34567"
    with pytest.raises(OSError, match=r"a ends before byte 11"):
        FileRegion(file, 8, 3).read()
