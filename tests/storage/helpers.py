"""What the tests of the storage share: a clock that is set by hand, a disk that fails on demand, batches, and a storage that
can be opened, stopped and killed again and again."""

import errno
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.disk import Buffer, File, SystemDisk, SystemFile, sync_each
from broker.storage.config import StorageConfig
from broker.storage.log.append import AppendInfo
from broker.storage.log.log import Log
from broker.storage.log.log_config import LogConfig
from broker.storage.log_manager import LogManager
from protocol.frames import crc32c
from protocol.kafka.records.batch import HEADER, batches, check_crc, read_header
from protocol.kafka.records.records import Record, build_batch, records, varint

NOW_MS = 1_700_000_000_000
TOPIC = "t"


class HandClock:
    """Both clocks stand still until they are moved."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ms(self) -> int:
        return self.now_ms

    def sleep_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.now_s += ms / 1000


class CountingEntropy:
    """Identifiers that are the same at every run."""

    def __init__(self) -> None:
        self._count = 0

    def bytes(self, n: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(n, "big")

    def uuid(self) -> uuid.UUID:
        self._count += 1
        return uuid.UUID(int=self._count)


class FaultyFile(SystemFile):
    """Asks its disk before every operation."""

    disk: "FaultyDisk"

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        room = self.disk.room
        growth = max(0, offset + len(data) - self.size())
        if room is not None and growth > room:
            super().pwrite(
                [data[: len(data) - growth + room]], offset
            )  # as much as there was room for, as the kernel does
            self.disk.room = 0
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        if room is not None:
            self.disk.room = room - growth
        self.disk.check("write", self.path)
        return super().pwrite(buffers, offset)

    def pread(self, size: int, offset: int) -> bytes:
        self.disk.check("read", self.path)
        self.disk.read_bytes += size
        return super().pread(size, offset)

    def truncate(self, size: int) -> None:
        self.disk.check("truncate", self.path)
        super().truncate(size)

    def sync(self, data_only: bool = True) -> None:
        self.disk.check("sync", self.path)
        self.disk.synced.append(self.path)
        super().sync(data_only)


class FaultyDisk(SystemDisk):
    """The real disk, with errors on demand. ``fail[(what, part of the path)] = errno``; ``room``: bytes until it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.fail: dict[tuple[str, str], int] = {}
        self.room: int | None = None
        self.synced: list[str] = []
        self.read_bytes = 0
        self.before: Callable[[str, str], None] = lambda what, path: None

    def check(self, what: str, path: str) -> None:
        self.before(what, path)
        for (operation, part), code in self.fail.items():
            if operation == what and part in path:
                raise OSError(code, f"{what} fails", path)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> FaultyFile:
        self.check("open", path)
        file = super().open(path, create=create, read_only=read_only)
        fd, file._fd = file._fd, -1
        faulty = FaultyFile(fd, path)
        faulty.disk = self
        return faulty

    def file_size(self, path: str) -> int:
        self.check("stat", path)
        return super().file_size(path)

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        self.synced.append(path)
        super().sync_dir(path)

    def sync_all(self, files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None]]:
        return sync_each(files)  # by `FaultyFile.sync`

    def makedirs(self, path: str) -> None:
        self.check("makedirs", path)
        super().makedirs(path)

    def lock(self, path: str) -> FaultyFile:
        return super().lock(path)  # type: ignore[return-value]  # made by open()


class Storage:
    """A data directory and the broker's storage over it."""

    def __init__(self, directory: Path | str, **settings: Any) -> None:
        self.directory = str(directory)
        self.clock = HandClock()
        self.entropy = CountingEntropy()
        self.disk = FaultyDisk()
        self.settings = settings
        self.ident = 0  # of the thread that the test plays
        self.manager: LogManager
        self.catalogue: SqliteCatalogue
        self.open()

    def open(self) -> "Storage":
        defaults = self.settings.pop("defaults", None)
        if defaults is not None:
            self.settings["defaults"] = LogConfig.from_overrides(LogConfig(), defaults)
        self.catalogue = SqliteCatalogue(f"{self.directory}/catalogue.sqlite")
        config = StorageConfig(data_dir=self.directory, **self.settings)
        self.manager = LogManager(self.disk, self.clock, self.entropy, config, self.catalogue, lambda: self.ident)
        try:
            self.manager.open()
        except BaseException:
            self.catalogue.close()
            raise
        return self

    def stop(self) -> None:
        """In order, as SIGTERM does."""
        self.manager.close()
        self.catalogue.close()

    def kill(self) -> None:
        """As kill -9: the page cache stays, nothing else is done."""
        self.manager.files.close_all()
        self.manager._release_directory()
        self.manager._opened = False
        self.catalogue.close()

    def restart(self) -> "Storage":
        self.stop()
        return self.open()

    def crash(self) -> "Storage":
        self.kill()
        return self.open()

    def log(self, topic: str = TOPIC, partition: int = 0) -> Log:
        found = self.manager.get(topic, partition)
        assert found is not None
        return found

    def create(self, topic: str = TOPIC, partitions: int = 1, **configs: object) -> Log:
        """``segment_bytes=1000`` is the topic's ``segment.bytes``."""
        texts = {name.replace("_", "."): str(value) for name, value in configs.items()}
        self.manager.create_topic(topic, partitions, texts)
        return self.log(topic)

    def path(self, topic: str = TOPIC, partition: int = 0) -> Path:
        return Path(self.directory) / f"{topic}-{partition}"

    def files(self, suffix: str, topic: str = TOPIC) -> list[str]:
        return sorted(path.name for path in self.path(topic).iterdir() if path.name.endswith(suffix))

    def housekeep(self) -> None:
        """Everything that the background threads have to do, now."""
        while self.manager.flusher.threads[0].step(0):
            pass
        self.manager.housekeeper.hurry()
        while self.manager.housekeeper.step(0):
            pass
        while self.manager.flusher.threads[0].step(0):
            pass


def batch(
    *values: bytes | None,
    keys: Sequence[bytes | None] | None = None,
    timestamp: int = NOW_MS,
    timestamps: Sequence[int] | None = None,
    producer: tuple[int, int, int] | None = None,
    **options: Any,
) -> memoryview:
    """A batch as a client sends it. ``producer`` is (id, epoch, base sequence)."""
    times = timestamps or [timestamp] * len(values)
    rows = [(keys[i] if keys else None, value, (), times[i]) for i, value in enumerate(values)]
    if producer is not None:
        options |= dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    return memoryview(build_batch(rows, **options))


def garbage(data: bytes, codec: int) -> bytes:
    """Records of which only what an append looks at is as it should be: their lengths, or the beginning of a codec."""
    if codec:
        return data[:10] + b"\xff" * max(1, len(data) - 10)
    out = bytearray()
    while len(out) < len(data):
        size, at = varint(data, len(out))
        out += data[len(out) : at] + b"\xff" * size
    return bytes(out)


def lying(view: memoryview, body: Callable[[bytes], bytes] = bytes, **fields: int) -> memoryview:
    """The batch with something else in it, or in its header, and the checksum of that."""
    header = read_header(view)
    data = bytearray(bytes(view[:61]) + body(bytes(view[61:])))
    HEADER.pack_into(data, 0, *header._replace(batch_length=len(data) - 12, **fields))
    HEADER.pack_into(data, 0, *read_header(data)._replace(crc=crc32c(memoryview(data)[21:])))
    return memoryview(data)


def append(log: Log, *values: bytes | None, **options: Any) -> AppendInfo:
    now_ms = options.pop("now_ms", log.around.clock.time_ms())
    return log.append(batch(*values, **options), now_ms=now_ms)


def append_many(log: Log, count: int, size: int = 20, **options: Any) -> None:
    """``count`` batches of one record each; the value is the offset, padded to ``size``."""
    for _ in range(count):
        append(log, b"%d" % log.log_end_offset + b"." * size, **options)


def read_bytes(log: Log, offset: int, max_bytes: int = 1 << 30, **options: Any) -> bytes:
    result = log.read(offset, max_bytes, **options)
    data = b"".join(region.file.pread(region.size, region.offset) for region in result.regions)
    assert len(data) == result.size
    return data


def records_in(data: bytes) -> list[Record]:
    """Every batch is whole and its checksum right."""
    found = []
    for position, header in batches(data):
        check_crc(data, position, header)
        found.extend(records(data, position))
    return found


def read_records(log: Log, max_bytes: int = 1 << 30, start: int | None = None) -> list[Record]:
    """As a consumer does: from the log start offset to the end, each read where the one before ended."""
    offset = log.log_start_offset if start is None else start
    found: list[Record] = []
    while offset < log.high_watermark:
        data = read_bytes(log, offset, max_bytes)
        if not data:  # gaps up to the end
            break
        found.extend(record for record in records_in(data) if record.offset >= offset)
        offset = list(batches(data))[-1][1].next_offset
    return found


def offsets(found: Iterable[Record]) -> list[int]:
    return [record.offset for record in found]


def values(log: Log, **options: Any) -> list[bytes | None]:
    return [record.value for record in read_records(log, **options)]
