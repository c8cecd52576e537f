"""Files of partitions: restarts, damage, races."""

import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.runtime.disk import FileRegion, SystemDisk
from broker.shuffle.partition import holdings
from broker.shuffle.partition.budget import IN_FILE_BYTES, SUBPARTITION_BYTES, Budget
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.serving.view import Credit, View
from broker.shuffle.spill.directory import SpillDirectory, SpillIndex
from broker.shuffle.spill.spiller import Spiller
from protocol.shuffle import writer_frames as w
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import IndexSet, ResultPartitionID
from protocol.shuffle.writer_frames import WriterErrorCode
from tests.clocks import ManualClock
from tests.shuffle.harness import BLOCKING, PIPELINED, MoodyDisk, new_id, serving
from tests.shuffle.test_reading import payloads
from tests.shuffle.test_writing import read
from tests.sim.disk import Medium, SimDisk
from tests.sim.world import Killed, World
from tests.waiting import wait_for

BUFFERS = [b"first", b"", b"x" * 40_000, b"last"]


def stored_by_an_earlier_broker(data_dir: Path, **options: Any) -> ResultPartitionID:
    with serving(data_dir, leave=True) as server:
        return server.store(*BUFFERS, **options)


def test_a_finished_blocking_partition_survives_a_restart(tmp_path: Path) -> None:
    partition = stored_by_an_earlier_broker(tmp_path, owner="somebody")
    for last in (False, True):
        with serving(tmp_path, leave=not last, shuffle_quota_bytes=1 << 20) as server:
            assert read(server, partition) == BUFFERS
            (info,) = server.partitions.list("")
            assert info[1:5] == (BLOCKING, 1, 1, sum(map(len, BUFFERS)) + 9)
            assert (
                server.partitions.budget.owned("somebody")
                == info.bytes + server.partitions._by_id[partition].holdings.index_bytes
            )
            assert (server.partitions.budget.memory, server.partitions.budget.disk) == (0, info.bytes)


def test_restart_keeps_finished_partition_and_its_victory(tmp_path: Path) -> None:
    partition = stored_by_an_earlier_broker(tmp_path)
    with serving(tmp_path) as server:
        client = server.connect()
        for wanted, code in (
            (partition, WriterErrorCode.FINISHED_ALREADY),
            (partition.with_attempt(1), WriterErrorCode.ANOTHER_ATTEMPT_WON),
        ):
            client.send(w.encode_open_partition(b"w" * 16, wanted, 1, BLOCKING))
            assert client.writer_error().code == code


def test_unfinished_partitions_are_removed_at_next_start(tmp_path: Path) -> None:
    with serving(tmp_path, leave=True, shuffle_memory_bytes=1 << 20) as server:
        for kind in (BLOCKING, PIPELINED):
            client = server.connect()
            writer = client.open(new_id(), 1, kind)
            for _ in range(27):
                writer.push_with_credit(b"x" * 30_000)
        wait_for(lambda: server.files)
        client.sync()
    with serving(tmp_path) as server:
        assert server.files == []
        assert server.partitions.list("") == []


def test_foreign_files_are_left_alone_at_start(tmp_path: Path) -> None:
    with serving(tmp_path, leave=True, shuffle_memory_bytes=1 << 20) as server:
        client = server.connect()
        client.open(new_id(), 1, BLOCKING).push(*[b"x" * 100_000] * 8)
        wait_for(lambda: server.files)
        client.sync()
    mine = {"notes.txt", "a.data", "backup-1.index", "photos"}
    for name in mine - {"photos"}:
        (tmp_path / "shuffle" / name).write_text(name)
    (tmp_path / "shuffle" / "photos").mkdir()
    with serving(tmp_path):
        assert mine == {path.name for path in (tmp_path / "shuffle").iterdir()}
        shutil.rmtree(tmp_path / "shuffle")


def test_time_to_live_continues_over_a_restart(tmp_path: Path) -> None:
    stored_by_an_earlier_broker(tmp_path, ttl_ms=1)
    with serving(tmp_path) as server:
        wait_for(lambda: server.partitions.list("") == [])
        wait_for(lambda: server.files == [])


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "cut":
        path.write_bytes(data[:-1])
    elif how == "bit":
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "missing":
        path.unlink()
    else:
        other = "0" * len(path.stem.partition("-")[0]) + "-1"
        path.rename(path.with_stem(other))


@pytest.mark.parametrize(
    ("suffix", "how"),
    [(".index", how) for how in ("cut", "bit", "empty", "missing", "renamed")]
    + [(".data", how) for how in ("cut", "empty", "missing", "renamed")],
)
def test_only_damaged_partitions_are_removed_at_start(tmp_path: Path, suffix: str, how: str) -> None:
    with serving(tmp_path, leave=True) as server:
        victim, healthy = server.store(*BUFFERS), server.store(*BUFFERS)
    (path,) = (p for p in (tmp_path / "shuffle").iterdir() if p.name.startswith(victim.hex()) and p.suffix == suffix)
    damage(path, how)
    with serving(tmp_path, shuffle_partition_request_timeout_ms=10) as server:
        assert [info.partition for info in server.partitions.list("")] == [healthy]
        assert len(server.files) == 2
        assert read(server, healthy) == BUFFERS


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from([1, 8, 2, 10]), st.booleans(), st.integers(0, 9), st.integers(0, 5)
        )
    ),
    st.integers(-1, 2**40),
    st.text(max_size=5),
    st.data(),
)
def test_index_is_read_back_and_others_are_refused(
    entries: list[Any], ttl_ms: int, owner: str, data: st.DataObject
) -> None:
    index = SpillIndex(ResultPartitionID.of(b"i" * 16), ttl_ms, 12345, 4, owner, entries)
    encoded = index.encode()
    assert attrs.evolve(SpillIndex.parse(encoded), entries=[]) == attrs.evolve(index, entries=[])
    assert [tuple(map(int, entry)) for entry in SpillIndex.parse(encoded).entries] == [
        tuple(map(int, e)) for e in entries
    ]
    position = data.draw(st.integers(0, len(encoded) - 1))
    broken = bytearray(encoded)
    broken[position] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(broken), encoded[:position]):
        with pytest.raises(ValueError, match="index"):
            SpillIndex.parse(wrong)


# -- races, played step by step -----------------------------------------------------------------------------------------


class Setup:
    """A spiller that the test steps itself."""

    def __init__(
        self, tmp_path: Path, disk: SystemDisk | None = None, *, released_bytes: int = 0, disk_max: int = -1
    ) -> None:
        self.budget = Budget(1150, disk_max, -1)
        self.disk = disk or MoodyDisk()
        self.directory = tmp_path / "shuffle"
        self.clock = ManualClock()
        self.spiller = Spiller(self.disk, str(self.directory), self.budget, self.clock, released_bytes)
        self.done: list[OSError | None] = []

    def partition(self, kind: Any, *payloads: bytes) -> ResultPartition:
        partition = ResultPartition(new_id(), kind, 1, self.budget)
        self.budget.memory_max += SUBPARTITION_BYTES
        self.spiller.add(partition)
        for number, payload in enumerate(payloads):
            partition.append(0, number, DataType.DATA_BUFFER, False, memoryview(payload))
        return partition

    def finished(self, *payloads: bytes) -> ResultPartition:
        partition = self.partition(BLOCKING, *payloads)
        partition.end_subpartitions()
        self.spiller.finish(partition, self.done.append)
        self.spiller.step(0)
        assert self.done.pop() is None
        assert partition.finish()
        return partition

    def release(self, partition: ResultPartition) -> None:
        partition.release()
        self.budget.memory_max -= SUBPARTITION_BYTES
        self.spiller.remove(partition)
        self.spiller.step(0)

    @property
    def files(self) -> dict[str, int]:
        """Name and size."""
        return {path.name: path.stat().st_size for path in self.directory.iterdir()}

    @property
    def accounts(self) -> tuple[int, int]:
        return self.budget.memory, self.budget.disk


class Interrupting(SystemDisk):
    """Does something else whenever it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Any = None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        disk, file = self, super().open(path, create=create, read_only=read_only)

        class File:
            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def pwrite(self, buffers: Any, offset: int) -> int:
                written = file.pwrite(buffers, offset)
                if disk.meanwhile is not None:
                    disk.meanwhile()
                return written

        return File()


@pytest.mark.parametrize("end", ["release", "fail"])
@pytest.mark.parametrize("kind", [PIPELINED, BLOCKING])
def test_partition_released_while_spilled_leaves_nothing(tmp_path: Path, kind: Any, end: str) -> None:
    disk = Interrupting()
    setup = Setup(tmp_path, disk)
    partition = setup.partition(kind, b"x" * 600, b"y" * 300)

    def meanwhile() -> None:
        if end == "release":
            partition.release()
        else:
            partition.fail("no")
        setup.spiller.remove(partition)

    disk.meanwhile = meanwhile
    setup.spiller.step(0)
    disk.meanwhile = None
    setup.spiller.step(0)
    assert setup.accounts == (0, 0)
    assert os.listdir(setup.directory) == []


def test_partition_released_while_stored_leaves_nothing(tmp_path: Path) -> None:
    disk = Interrupting()
    setup = Setup(tmp_path, disk)
    partition = setup.partition(BLOCKING, b"x" * 600)
    writes = []

    def meanwhile() -> None:
        writes.append(1)
        if len(writes) == 2:  # of the index
            partition.release()
            setup.spiller.remove(partition)

    disk.meanwhile = meanwhile
    setup.spiller.finish(partition, setup.done.append)
    setup.spiller.step(0)
    setup.spiller.step(0)
    assert len(writes) == 2
    assert setup.accounts == (0, 0)
    assert os.listdir(setup.directory) == []
    assert not partition.finish()


def test_buffer_sent_while_spilled_is_counted_once(tmp_path: Path) -> None:
    disk = Interrupting()
    setup = Setup(tmp_path, disk)
    partition = setup.partition(PIPELINED, b"x" * 300, b"y" * 300, b"z" * 300)
    part = partition.part(0)
    View(partition, IndexSet(0, 0), Credit(0), lambda: None)

    def sent(count: int) -> None:
        with partition.lock:
            start = part.dropped_before
            in_file = min(count, max(0, part.memory_from - start))
            size = part.bytes_between(start, start + count)
            from_file = part.bytes_between(start, start + in_file)
            partition.holdings.sent(part, start + count, size - from_file, count - in_file, in_file, from_file)
        partition.holdings.settle()

    disk.meanwhile = lambda: sent(2)
    setup.spiller.step(0)
    disk.meanwhile = None
    assert setup.accounts == (0, 300)
    sent(1)
    assert setup.accounts == (0, 0)
    assert partition.holdings.file is None


def test_failing_disk_is_retried_later_without_loss(tmp_path: Path) -> None:
    disk = MoodyDisk()
    setup = Setup(tmp_path, disk)
    partition = setup.partition(BLOCKING, *[b"%d" % n * 220 for n in range(3)])
    disk.error = OSError(errno.ENOSPC, "full")
    assert not setup.spiller.step(0)
    assert setup.spiller.broken is disk.error
    setup.spiller.press()
    assert not setup.spiller._wake.is_set()
    disk.error = None
    setup.spiller.finish(partition, setup.done.append)
    partition.end_subpartitions()
    setup.spiller.step(0)
    assert setup.done == [None]
    assert setup.accounts == (0, 669)
    assert len(os.listdir(setup.directory)) == 2


def test_concurrent_readers_writers_and_spiller_lose_nothing(tmp_path: Path) -> None:
    """Many small partitions, memory for a few, everything on its own thread; every reader gets its bytes."""
    errors: list[BaseException] = []
    with serving(
        tmp_path,
        network_threads=3,
        shuffle_memory_bytes=1 << 20,
        shuffle_write_credit_buffers=8,
        # On a busy machine a blocking partition may take longer than the default of 10 s until it is stored.
        shuffle_partition_request_timeout_ms=60_000,
    ) as server:

        def work(number: int) -> None:
            try:
                for turn in range(4):
                    kind = BLOCKING if (number + turn) % 2 else PIPELINED
                    buffers = [bytes([number, turn]) * size for size in (10, 5000, 20_000, 0, 33) * 8]
                    partition = new_id()
                    reader, client = server.connect(), server.connect()
                    receiver = reader.request(partition, 0, 1, credit=turn)
                    writer = client.open(partition, 2, kind)
                    pushing = threading.Thread(target=push, args=(writer, buffers))
                    pushing.start()
                    came = []
                    ends = 0
                    while ends < 2:
                        message: Any = reader.next()
                        if hasattr(message, "backlog") and not hasattr(message, "payload"):
                            reader.add_credit(receiver, message.backlog)
                            continue
                        came.append(message)
                        ends += message.data_type is DataType.END_OF_PARTITION
                        if message.data_type.is_buffer and (turn or message.backlog):
                            reader.add_credit(receiver)
                    pushing.join()
                    client.wait_finished()
                    for index in range(2):
                        got = payloads([b for b in came if b.subpartition == index and b.data_type.is_buffer])
                        assert got == buffers[index::2]
                    if kind is BLOCKING:
                        assert client.release(partition)
                    reader.close()
                    client.close()
            except BaseException as error:
                errors.append(error)
                raise

        def push(writer: Any, buffers: list[bytes]) -> None:
            for position, buffer in enumerate(buffers):
                writer.push_with_credit(buffer, position % 2)
            writer.finish()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        wait_for(lambda: server.partitions.list("") == [])
        wait_for(lambda: server.partitions.budget.memory == server.partitions.budget.disk == 0)


# -- the file of a pipelined partition whose readers lag ------------------------------------------------------------------


class Lagging:
    """A pipelined partition; the test says how many buffers its readers take, and all go through the file."""

    def __init__(self, setup: Setup, subpartitions: int) -> None:
        self.setup = setup
        self.partition = ResultPartition(new_id(), PIPELINED, subpartitions, setup.budget)
        setup.budget.memory_max += subpartitions * SUBPARTITION_BYTES
        setup.spiller.add(self.partition)
        self.views = [View(self.partition, IndexSet(n, n), Credit(1 << 30), lambda: None) for n in range(subpartitions)]
        self.pushed: list[list[bytes]] = [[] for _ in range(subpartitions)]
        self.taken: list[list[bytes]] = [[] for _ in range(subpartitions)]

    def push(self, subpartition: int, size: int) -> None:
        number = len(self.pushed[subpartition])
        payload = bytes([number % 256]) * size
        self.partition.append(subpartition, number, DataType.DATA_BUFFER_WITH_CLEAR_END, False, memoryview(payload))
        self.pushed[subpartition].append(payload)

    def spill(self) -> None:
        while self.setup.spiller.spill_piece(self.setup.spiller._spills[self.partition]):
            pass

    def take(self, subpartition: int, count: int) -> None:
        for _, _, _, payload, size, _ in self.views[subpartition].take(count, 1 << 30):
            region = payload.file.pread(size, payload.offset) if isinstance(payload, FileRegion) else bytes(payload)
            self.taken[subpartition].append(region)

    def check(self) -> None:
        for pushed, taken in zip(self.pushed, self.taken, strict=True):
            assert taken == pushed[: len(taken)]
        partition, budget = self.partition, self.setup.budget
        assert budget.disk == partition.holdings.disk >= partition.holdings.live_bytes
        wanted = sum(
            len(payload)
            for part, pushed, taken in zip(partition.subpartitions, self.pushed, self.taken, strict=True)
            for payload in (pushed[len(taken) : part.memory_from] if part is not None else [])
        )
        assert partition.holdings.live_bytes == wanted
        file = partition.holdings.file
        if file is not None:
            assert file.get().size() == partition.holdings.file_end


def test_pipelined_file_is_bounded_by_unread_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readers are always ten buffers behind, and one is further behind; a hundred times that goes through the file."""
    monkeypatch.setattr(holdings, "_GARBAGE_BYTES", 5_000)
    setup = Setup(tmp_path, SystemDisk())
    setup.budget.memory_max = 1 << 20
    lagging = Lagging(setup, 3)
    largest = 0
    for number in range(1000):
        for subpartition in range(3):
            lagging.push(subpartition, 100)
        lagging.spill()
        if number >= 10:
            lagging.take(0, 1)
            lagging.take(1, 1)
        if number % 100 == 99:
            lagging.take(2, 95)
        setup.spiller.step(0)
        assert lagging.partition.holdings.file is not None
        file_size = lagging.partition.holdings.file.get().size()
        largest = max(largest, file_size)
        assert file_size <= 2 * lagging.partition.holdings.live_bytes + 5_000
        lagging.check()
    assert largest < 60_000
    for subpartition in range(3):
        lagging.take(subpartition, 1000)
    assert lagging.taken == lagging.pushed
    assert lagging.partition.holdings.file is None
    assert setup.accounts == (0, 0)


def test_read_during_file_rewrite_is_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "_GARBAGE_BYTES", 0)
    disk = Interrupting()
    setup = Setup(tmp_path, disk)
    setup.budget.memory_max = 1 << 24
    lagging = Lagging(setup, 2)
    for size in (100, 9_000, 0, 3):
        for _ in range(40):
            lagging.push(0, size)
            lagging.push(1, size)
    lagging.spill()
    old = lagging.partition.holdings.file

    def meanwhile() -> None:
        disk.meanwhile = None
        lagging.take(0, 75)  # all but a few
        lagging.take(1, 200)  # and all

    lagging.take(0, 70)
    lagging.take(1, 70)
    disk.meanwhile = meanwhile
    setup.spiller.step(0)
    assert disk.meanwhile is None
    assert lagging.partition.holdings.file not in (None, old)
    lagging.check()
    lagging.push(1, 50)
    lagging.spill()
    lagging.take(0, 100)
    lagging.take(1, 100)
    assert lagging.taken == lagging.pushed
    assert setup.accounts == (0, 0)


def test_file_stays_when_rewriting_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "_GARBAGE_BYTES", 0)
    disk = MoodyDisk()
    setup = Setup(tmp_path, disk)
    setup.budget.memory_max = 1 << 20
    lagging = Lagging(setup, 1)
    for _ in range(100):
        lagging.push(0, 100)
    lagging.spill()
    lagging.take(0, 90)
    disk.error = OSError(errno.ENOSPC, "full")
    setup.spiller.step(0)
    disk.error = None
    assert (lagging.partition.holdings.disk, lagging.partition.holdings.live_bytes) == (10_000, 1_000)
    lagging.push(0, 100)
    lagging.spill()
    lagging.take(0, 1)
    setup.spiller.step(0)
    assert (lagging.partition.holdings.disk, lagging.partition.holdings.live_bytes) == (1_000, 1_000)
    lagging.take(0, 100)
    assert lagging.taken == lagging.pushed


def test_newer_of_two_indexes_is_kept(tmp_path: Path) -> None:
    """The broker died after it finished a partition and before it removed the released partition of the same id."""
    partition = stored_by_an_earlier_broker(tmp_path)
    directory = tmp_path / "shuffle"
    older = {path.name: path.read_bytes() for path in directory.iterdir()}
    with serving(tmp_path, leave=True) as server:
        client = server.connect()
        client.release(partition)
        client.finish(client.open(partition, 1, BLOCKING).push(b"the newer one"))
    for name, data in older.items():
        (directory / name).write_bytes(data)
    assert len(list(directory.iterdir())) == 4
    with serving(tmp_path, leave=True) as server:
        assert read(server, partition) == [b"the newer one"]
        assert len(server.files) == 2
    for name, data in older.items():
        (directory / name).write_bytes(data)
    damage(next(path for path in directory.iterdir() if path.suffix == ".index" and path.name not in older), "cut")
    with serving(tmp_path) as server:
        assert server.partitions.list("") == []
        assert server.files == []


def test_half_of_free_disk_is_the_default(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        most, free = server.partitions.budget.disk_max, server.disk.free_bytes(str(tmp_path))
        assert 0.3 * free < most < 0.7 * free
    with serving(tmp_path, shuffle_disk_bytes=-1) as server:
        assert server.partitions.budget.disk_left == float("inf")


class Recording(SystemDisk):
    """Records its operations, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, str]] = []

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        log, file, name = self.log, super().open(path, create=create, read_only=read_only), path.partition(".")[2]

        class File:
            def __getattr__(self, attribute: str) -> Any:
                return getattr(file, attribute)

            def pwrite(self, buffers: Any, offset: int) -> int:
                log.append(("write", name))
                return file.pwrite(buffers, offset)

            def sync(self) -> None:
                log.append(("sync", name))
                file.sync()

        return File()

    def rename(self, old: str, new: str) -> None:
        self.log.append(("rename", new.partition(".")[2]))
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        self.log.append(("sync", "directory"))
        super().sync_dir(path)


def test_data_index_and_name_are_durable_before_answer(tmp_path: Path) -> None:
    disk = Recording()
    setup = Setup(tmp_path, disk)
    for _ in range(2):
        partition = setup.partition(BLOCKING, b"data")
        partition.end_subpartitions()
        setup.spiller.finish(partition, lambda error: disk.log.append(("told", str(error))))
    setup.spiller.step(0)
    steps = [("write", "data"), ("sync", "data"), ("write", "index.tmp"), ("sync", "index.tmp"), ("rename", "index")]
    assert disk.log == [step for step in steps for _ in range(2)] + [("sync", "directory")] * 2 + [("told", "None")] * 2


def test_power_loss_leaves_a_whole_partition_or_none() -> None:
    left = set()
    for seed in range(80):
        world = World(seed)
        medium = Medium(world)
        process = world.boot()
        process.countdown = seed // 4  # disk operations until the power goes
        setup = Setup(Path("/"), SimDisk(process, medium))  # type: ignore[arg-type]
        payloads = [b"first", b"x" * 600, b"last"]
        partition = setup.partition(BLOCKING, *payloads)
        partition.end_subpartitions()
        with contextlib.suppress(Killed):
            setup.spiller.finish(partition, setup.done.append)
            setup.spiller.step(0)
        process.countdown = -1
        world.end_process()
        medium.process_died(process, power=True)
        disk = SimDisk(world.boot(), medium)
        again = SpillDirectory(disk, "/shuffle", setup.clock, 0, 4)
        there = [spill.partition.id for spill, _ in again.load(Budget(1 << 20, -1, -1), 60.0)]
        assert there in ([], [partition.id]) and (there or setup.done != [None])
        left.add(len(there))
        if there:
            stem = next(name for name in disk.listdir("/shuffle") if name.endswith(".data"))
            file = disk.open(f"/shuffle/{stem}", read_only=True)
            assert all(payload in file.pread(file.size(), 0) for payload in payloads)
    assert {0, 1} == left


def test_writers_wait_when_index_takes_all_memory(tmp_path: Path) -> None:
    """Each spilled buffer takes 16 bytes of memory and no more, however small the buffers are."""
    most = (1 << 20) // IN_FILE_BYTES
    with serving(tmp_path, shuffle_memory_bytes=1 << 20) as server:
        writers = [server.connect().open(new_id(), kind=BLOCKING) for _ in range(6)]
        first = server.store(*[b"x"] * (most // 5))

        done = threading.Event()

        def write() -> None:
            for _ in range(most // 7):
                for writer in writers:
                    writer.push_with_credit(b"y")
            done.set()

        writing = threading.Thread(target=write)
        writing.start()
        budget = server.partitions.budget
        wait_for(lambda: budget.index >= 0.95 * (1 << 20))
        assert not done.wait(0.3)
        assert budget.memory + budget.index <= 1 << 20
        assert server.connect().release(first)
        writing.join()
        assert done.is_set()
        assert budget.memory + budget.index <= 1 << 20
