"""Files of released partitions are removed when others grow, after a minute, and when the disk is needed."""

from pathlib import Path

import pytest

from broker.shuffle.spill.directory import WAIT_S
from protocol.shuffle.buffer_response import BufferResponse
from tests.shuffle.harness import BLOCKING, PIPELINED, MoodyDisk, serving
from tests.shuffle.spill.test_spiller import Setup


def test_released_files_go_latest_first_as_others_grow(tmp_path: Path) -> None:
    setup = Setup(tmp_path, released_bytes=2000)
    first, second = setup.finished(b"x" * 300), setup.finished(b"x" * 500)
    setup.release(first)
    setup.release(second)
    assert sorted(setup.files.values()) == [309, 509]
    setup.finished(b"y" * 400)
    assert setup.spiller.released.bytes == 309
    # The bytes removed in advance are enough for this write.
    setup.finished(b"y" * 91)
    assert setup.spiller.released.bytes == 309
    setup.finished(b"y")
    assert setup.spiller.released.bytes == 0


def test_spilling_a_pipelined_partition_removes_released_files(tmp_path: Path) -> None:
    setup = Setup(tmp_path, released_bytes=1000)
    setup.release(setup.finished(b"x" * 900))
    partition = setup.partition(PIPELINED, b"y" * 600)
    setup.spiller.step(0)
    assert partition.holdings.disk == 600
    assert {} == setup.files


def test_they_mean_nothing_to_another_broker(tmp_path: Path) -> None:
    setup = Setup(tmp_path, released_bytes=1000)
    setup.release(setup.finished(b"x"))
    later = Setup(tmp_path)
    assert [] == list(later.spiller.load(later.budget, 60))
    assert {} == setup.files


def test_they_are_bounded_and_go_when_nobody_grows(tmp_path: Path) -> None:
    setup = Setup(tmp_path, released_bytes=1100)
    for partition in [setup.finished(b"x" * 500) for _ in range(3)]:
        setup.release(partition)
    assert [509, 509] == list(setup.files.values())
    setup.clock.now += WAIT_S - 1
    setup.spiller.step(0)
    assert 2 == len(setup.files)
    setup.clock.now += 1
    setup.spiller.step(0)
    assert {} == setup.files


def test_a_disk_quota_is_for_partitions(tmp_path: Path) -> None:
    setup = Setup(tmp_path, released_bytes=10_000, disk_max=1000)
    first, second, third = (setup.finished(b"x" * 300) for _ in range(3))
    setup.release(first)
    assert 309 == setup.spiller.released.bytes
    setup.finished(b"y" * 100)
    setup.release(second)
    setup.release(third)
    assert setup.budget.disk + setup.spiller.released.bytes <= 1000
    assert 2 == len(setup.spiller.released.paths)


@pytest.mark.parametrize("released_bytes", [0, 10_000])
def test_a_full_disk_takes_them_back(tmp_path: Path, released_bytes: int) -> None:
    setup = Setup(tmp_path, released_bytes=released_bytes)
    first, second = setup.finished(b"x" * 500), setup.finished(b"x" * 500)
    setup.release(first)
    setup.release(second)
    assert isinstance(setup.disk, MoodyDisk)
    disk = setup.disk
    disk.error = OSError("full")
    remove, removed = disk.remove, []

    def until_two_are_gone(path: str) -> None:
        removed.append(path)
        if len(removed) == 2:
            disk.error = None
        remove(path)

    disk.remove = until_two_are_gone  # type: ignore[method-assign]
    setup.partition(BLOCKING, b"y" * 560)
    setup.spiller.step(0)
    assert (setup.spiller.broken is None) is bool(released_bytes)


def test_they_go_with_the_broker(tmp_path: Path) -> None:
    setup = Setup(tmp_path, released_bytes=1000)
    setup.release(setup.finished(b"x"))
    assert setup.files
    setup.spiller.close()
    assert {} == setup.files


def test_file_being_sent_to_slow_reader_stays_unchanged(tmp_path: Path) -> None:
    size = 256 * 1024
    with serving(tmp_path, shuffle_memory_bytes=1 << 24) as server:
        first = server.store(*[bytes([number]) * size for number in range(32)])
        reader = server.connect(receive_buffer=4096)
        reader.request(first, credit=32)
        assert reader.next(BufferResponse).payload == bytes(size)
        assert server.connect().release(first)
        for _ in range(3):
            server.store(*[b"\xff" * size] * 32)
        came = 1
        while True:
            message = reader.next()
            if not isinstance(message, BufferResponse):
                break
            assert message.payload == bytes([came]) * size
            came += 1
        assert 0 < came < 32
