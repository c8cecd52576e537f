"""Many fsyncs with one call. On a system that does not offer it, only that is tested."""

import errno
import gc
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.runtime import kernel_aio
from broker.runtime.disk import SystemDisk
from broker.runtime.kernel_aio import KernelAio, KernelSyncQueue
from tests.process.failing_disk import FailingDisk


@pytest.fixture
def aio() -> KernelAio:
    try:
        return KernelAio(64)
    except OSError as error:
        pytest.skip(f"no asynchronous I/O here: {error}")


@pytest.fixture
def descriptors(tmp_path: Path) -> Iterator[list[int]]:
    opened = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(64)]
    for descriptor in opened:
        os.write(descriptor, b"abc")
    yield opened
    for descriptor in opened:
        os.close(descriptor)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that are synced by ``os.fdatasync``."""
    synced: list[int] = []
    right = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        synced.append(descriptor)
        right(descriptor)

    monkeypatch.setattr(kernel_aio.os, "fdatasync", fdatasync)
    return synced


def test_the_kernel_syncs_them_all(aio: KernelAio, descriptors: list[int], one_by_one: list[int]) -> None:
    for count in (64, 1, 0, 7, 64):
        done = list(aio.fdatasync(descriptors[:count], 30.0))
        assert sorted(each[0] for each in done if each) == list(range(count))
        assert not any(each[1] for each in done if each)
    assert one_by_one == []


def test_sync_refused_by_kernel_runs_and_fails_alone(
    aio: KernelAio, descriptors: list[int], one_by_one: list[int]
) -> None:
    read_end, write_end = os.pipe()  # has no fsync
    try:
        done = dict(each for each in aio.fdatasync([*descriptors[:5], read_end, *descriptors[5:9]], 30.0) if each)
    finally:
        os.close(read_end)
        os.close(write_end)
    failed = done.pop(5)
    assert isinstance(failed, OSError)
    assert failed.errno == errno.EINVAL
    assert done == dict.fromkeys([0, 1, 2, 3, 4, 6, 7, 8, 9])
    assert one_by_one[-4:] == descriptors[5:9]


def test_short_patience_reports_that_nothing_is_done_yet(aio: KernelAio, descriptors: list[int]) -> None:
    waited = 0
    for _ in range(50):
        for descriptor in descriptors:
            os.write(descriptor, b"abc")
        done = list(aio.fdatasync(descriptors, 0.0))
        assert len([each for each in done if each]) == 64
        waited += done.count(None)
        if waited:
            return
    pytest.fail("3,200 fsyncs took no time at all")


def test_results_of_abandoned_call_are_not_taken_later(
    aio: KernelAio, descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        next(aio.fdatasync(descriptors[:9], 30.0))
        done = [each[0] for each in aio.fdatasync(descriptors[9:30], 30.0) if each]
        assert sorted(done) == list(range(21))
    next(aio.fdatasync(descriptors[:9], 30.0))
    (data, *_) = kernel_aio._IOCB.unpack_from(aio._requests, 3 * kernel_aio._IOCB.size)
    late = [kernel_aio._EVENT.pack(data, 0, -errno.EIO, 0)]
    right = aio._call

    def call(number: int, *arguments: object) -> int:
        if number != aio._get_events or not late:
            return right(number, *arguments)
        aio._events[: kernel_aio._EVENT.size] = late.pop()
        return 1

    monkeypatch.setattr(aio, "_call", call)
    done = dict(each for each in aio.fdatasync(descriptors[9:30], 30.0) if each)
    assert done == dict.fromkeys(range(21))


def test_kernel_error_is_not_taken_for_success(
    aio: KernelAio, descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = aio._call

    def call(number: int, *arguments: object) -> int:
        if number != aio._get_events:
            return right(number, *arguments)
        kernel_aio.ctypes.set_errno(errno.EFAULT)
        return -1

    monkeypatch.setattr(aio, "_call", call)
    done = dict(each for each in aio.fdatasync(descriptors[:3], 30.0) if each)
    assert {number: error and error.errno for number, error in done.items()} == dict.fromkeys(range(3), errno.EFAULT)


def test_context_is_reused_unless_requests_are_outstanding(
    aio: KernelAio, descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_aio, "_idle", [])
    first = KernelAio(64)
    context = first._context.value
    assert len(list(first.fdatasync(descriptors, 30.0))) >= 64
    del first
    gc.collect()
    other = KernelAio(32)
    assert other._context.value != context
    again = KernelAio(64)
    assert again._context.value == context
    assert sorted(each[0] for each in again.fdatasync(descriptors, 30.0) if each) == list(range(64))
    next(again.fdatasync(descriptors[:9], 30.0))  # not read to its end
    again._outstanding[0] = 8
    del again
    gc.collect()
    assert context not in [idle.value for _, idle in kernel_aio._idle]  # there may be some of other tests' brokers


class Descriptor(NamedTuple):
    number: int

    def fileno(self) -> int:
        return self.number


@pytest.fixture
def queue(aio: KernelAio) -> Iterator[KernelSyncQueue[str]]:
    queue = KernelSyncQueue[str](8)
    yield queue
    queue.close()


def bell(queue: KernelSyncQueue[str]) -> bool:
    return bool(select.select([queue], [], [], 30.0)[0])


def test_a_thread_is_told_of_each_end(
    queue: KernelSyncQueue[str], descriptors: list[int], one_by_one: list[int]
) -> None:
    for count in (1, 8, 3):
        names = {f"{number}" for number in range(count)}
        requests = [(name, Descriptor(descriptors[int(name)])) for name in sorted(names)]
        assert queue.start(requests) == count
        assert (queue.pending, queue.room) == (count, 8 - count)
        while names:
            assert bell(queue)
            for name, error in queue.results():
                assert error is None
                names.remove(name)
        assert (queue.pending, queue.room) == (0, 8)
    assert one_by_one == []


def test_queue_takes_no_more_than_its_room(queue: KernelSyncQueue[str], descriptors: list[int]) -> None:
    requests = [(str(number), Descriptor(descriptors[number])) for number in range(5)]
    assert queue.start([*requests, ("bad", Descriptor(1 << 20)), requests[0]]) == 5
    got: list[str] = []
    while queue.pending:
        got += [name for name, _ in queue.results(30.0)]
    assert sorted(got) == ["0", "1", "2", "3", "4"]
    assert queue.start([("bad", Descriptor(1 << 20))]) == 0
    assert queue.pending == 0
    assert queue.results(30.0) == []


def test_file_may_be_closed_during_sync(queue: KernelSyncQueue[str], tmp_path: Path) -> None:
    for number in range(50):
        descriptor = os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT)
        os.write(descriptor, b"abc")
        assert queue.start([("file", Descriptor(descriptor))]) == 1
        os.close(descriptor)
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        assert bell(queue)
        while queue.pending:
            assert queue.results(30.0) == [("file", None)]
        os.close(other)


def test_unknown_result_is_error_of_all_pending(
    queue: KernelSyncQueue[str], descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert queue.start([(str(number), Descriptor(descriptors[number])) for number in range(3)]) == 3
    right = queue._aio._call

    def call(number: int, *arguments: object) -> int:
        if number != queue._aio._get_events:
            return right(number, *arguments)
        kernel_aio.ctypes.set_errno(errno.EFAULT)
        return -1

    monkeypatch.setattr(queue._aio, "_call", call)
    done = queue.results(30.0)
    assert {name: error and error.errno for name, error in done} == dict.fromkeys("012", errno.EFAULT)
    assert queue.pending == 0


def test_an_error_of_the_file_is_its_own(queue: KernelSyncQueue[str], descriptors: list[int]) -> None:
    read, write = os.pipe()  # has no fsync
    try:
        assert queue.start([("pipe", Descriptor(write)), ("file", Descriptor(descriptors[0]))]) in (0, 2)
        done: dict[str, OSError | None] = {}
        while queue.pending:
            done.update(queue.results(30.0))
        assert done == {} or (done["pipe"] is not None and done["file"] is None)
    finally:
        os.close(read)
        os.close(write)


def test_unavailable_kernel_aio_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_aio.platform, "machine", lambda: "pdp11")
    with pytest.raises(OSError, match="asynchronous"):
        KernelAio(64)
    disk = SystemDisk()
    assert disk.sync_queue() is None
    assert disk.syncs_at_once() == 1


def test_who_replaces_fdatasync_gets_every_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SystemDisk()
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(3)]
    queue = disk.sync_queue()
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append, raising=False)
    assert disk.syncs_at_once() == 1
    assert disk.sync_queue() is None
    if queue is not None:
        assert queue.start([("file", files[0])]) == 0
        queue.close()
    assert list(disk.sync_all(files, 1.0)) == [(0, None), (1, None), (2, None)]
    assert synced == [file.fileno() for file in files]


def test_a_preloaded_library_gets_every_fsync(tmp_path: Path, aio: KernelAio) -> None:
    script = "from broker.runtime.disk import SystemDisk; print(SystemDisk().syncs_at_once())"
    (tmp_path / "both").mkdir()
    environments = [
        ("128\n", dict(os.environ)),
        ("1\n", os.environ | FailingDisk(tmp_path).environment),
        ("128\n", os.environ | FailingDisk(tmp_path / "both", kernel_aio=True).environment),  # it gets those, too
    ]
    for expected, environment in environments:
        command = [sys.executable, "-c", script]
        assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == expected
