"""Files of released partitions are written again: by whom, when not, and for how long they are kept."""

import os
from pathlib import Path

import pytest

from broker.runtime.disk import FileRegion
from broker.shuffle.result_partition import ResultPartition
from broker.shuffle.spare_files import SPARE_S
from protocol.shuffle.buffer_response import BufferResponse
from tests.shuffle.harness import BLOCKING, MoodyDisk, serving, wait_for
from tests.shuffle.test_spill import Recording, Setup


def inode(partition: ResultPartition) -> int:
    assert partition.named_file is not None
    return os.stat(partition.named_file.path).st_ino


def contents(partition: ResultPartition) -> bytes:
    """The first buffer, from the file."""
    assert partition.file is not None
    buffer = partition.subpartitions[0].at(0)
    assert buffer is not None
    assert isinstance(buffer.payload, int)
    return partition.file.get().pread(buffer.size, buffer.payload)


@pytest.mark.parametrize("size", [10, 500, 900])
def test_the_file_of_a_released_partition_is_written_again(tmp_path: Path, size: int) -> None:
    setup = Setup(tmp_path, spare_bytes=1000)
    first = setup.finished(b"x" * 500)
    written = inode(first)
    setup.release(first)
    assert list(setup.files.values()) == [509]
    second = setup.finished(b"y" * size)
    assert inode(second) == written
    assert contents(second) == b"y" * size
    # Nothing of the other partition is left, and another broker finds what is there.
    assert second.named_file is not None
    assert os.path.getsize(second.named_file.path) == size + 9
    later = Setup(tmp_path)
    ((found, _),) = later.spiller.load(later.budget, 60)
    assert found.id == second.id
    assert contents(found) == b"y" * size


def test_a_file_that_somebody_still_reads_is_not_written_again(tmp_path: Path) -> None:
    setup = Setup(tmp_path, spare_bytes=1000)
    first = setup.finished(b"x" * 500)
    written = inode(first)
    assert first.file is not None
    region = FileRegion(first.file.get(), 0, 500)
    setup.release(first)
    second = setup.finished(b"y" * 500)
    assert inode(second) != written
    assert region.file.pread(region.size, region.offset) == b"x" * 500
    del region
    assert inode(setup.finished(b"z")) == written


def test_who_comes_too_late_is_not_given_a_file_that_may_be_another_ones(tmp_path: Path) -> None:
    setup = Setup(tmp_path, spare_bytes=1000)
    first = setup.finished(b"x" * 500)
    file = first.file
    assert file is not None
    setup.release(first)
    with pytest.raises(FileNotFoundError):
        file.get()
    setup.finished(b"y" * 500)
    with pytest.raises(FileNotFoundError):
        file.get()


def test_a_file_is_not_written_again_before_its_old_name_is_durably_gone(tmp_path: Path) -> None:
    """A power failure could bring the old index back, and it would name another one's bytes."""
    disk = Recording()
    setup = Setup(tmp_path, disk, spare_bytes=1000)
    setup.release(setup.finished(b"x"))
    disk.log.clear()
    setup.finished(b"y")
    assert disk.log[:3] == [("sync", "directory"), ("rename", "data"), ("write", "data")]


def test_spares_are_bounded_and_go_when_nobody_wants_them(tmp_path: Path) -> None:
    setup = Setup(tmp_path, spare_bytes=1100)
    partitions = [setup.finished(b"x" * 500) for _ in range(3)]
    for partition in partitions:
        setup.release(partition)
    assert [509, 509] == list(setup.files.values())
    setup.clock.now = SPARE_S - 1
    setup.spiller.step(0)
    assert 2 == len(setup.files)
    setup.clock.now = SPARE_S
    setup.spiller.step(0)
    assert {} == setup.files


def test_a_disk_quota_is_for_partitions_first(tmp_path: Path) -> None:
    setup = Setup(tmp_path, spare_bytes=10_000, disk_max=1000)
    first = setup.finished(b"x" * 500)
    assert first.file is not None
    held = first.file.get()
    setup.release(first)  # and cannot be taken, since it is held
    assert 509 == setup.spiller.spares.bytes
    second = setup.partition(BLOCKING, b"y" * 600)
    setup.spiller.step(0)
    assert second.disk == 600
    assert 0 == setup.spiller.spares.bytes
    assert held.pread(500, 0) == b"x" * 500


def test_a_full_disk_gets_the_spares_back(tmp_path: Path) -> None:
    setup = Setup(tmp_path, spare_bytes=10_000)
    first = setup.finished(b"x" * 500)
    assert first.file is not None
    held = first.file.get()
    setup.release(first)  # and cannot be taken, since it is held
    assert isinstance(setup.disk, MoodyDisk)
    disk = setup.disk

    class UntilRemoved(OSError):
        pass

    disk.error = UntilRemoved("full")
    remove = disk.remove

    def removed(path: str) -> None:
        disk.error = None
        remove(path)

    disk.remove = removed  # type: ignore[method-assign]
    second = setup.finished(b"y" * 900)
    assert contents(second) == b"y" * 900
    assert held.pread(500, 0) == b"x" * 500


def test_spares_go_with_the_broker(tmp_path: Path) -> None:
    setup = Setup(tmp_path, spare_bytes=1000)
    setup.release(setup.finished(b"x"))
    assert setup.files
    setup.spiller.close()
    assert {} == setup.files


def test_what_is_on_its_way_to_a_slow_reader_is_not_written_over(tmp_path: Path) -> None:
    size = 256 * 1024
    with serving(tmp_path, shuffle_memory_bytes=1 << 20) as server:
        first = server.store(*[bytes([number]) * size for number in range(32)])
        reader = server.connect(receive_buffer=4096)
        reader.request(first, credit=32)
        wait_for(lambda: any(c.outgoing_bytes for p in server.sockets.processors for c in list(p.connections)))
        assert server.connect().release(first)
        for _ in range(3):
            server.store(*[b"\xff" * size] * 32)
        came = 0
        while True:
            message = reader.next()
            if not isinstance(message, BufferResponse):
                break
            assert message.payload == bytes([came]) * size
            came += 1
        assert 0 < came < 32
