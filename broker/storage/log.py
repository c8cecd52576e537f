"""One topic partition (thin first version: one segment file, positions in memory)."""

import struct
import uuid
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from broker.errors import RequestError, StorageError
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, FileRegion
from broker.runtime.threads import Lock
from broker.storage.log_config import LogConfig
from protocol.checksum import crc32c
from protocol.kafka.errors import ErrorCode

_HEADER = struct.Struct(">qiibIhiqqqhii")
_STAMP = struct.Struct(">qii")


class AppendInfo(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class ReadResult(NamedTuple):
    regions: list[FileRegion]
    size: int
    high_watermark: int
    log_start_offset: int
    resident: bool


class Log:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: LogConfig,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.dir = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.leader_epoch = 0
        self.offline: StorageError | None = None
        self.slow_until = 0.0
        self.lock = Lock()
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.durable_offset = 0
        self._watchers: dict[int, Callable[[], None]] = {}
        self._next_token = 0
        disk.makedirs(directory)
        self._file = disk.open(f"{directory}/{0:020d}.log", create=True)
        self._size = 0
        self._bases: list[int] = []
        self._positions: list[int] = []
        self._timestamps: list[int] = []
        self._load()

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    def _load(self) -> None:
        data = self._file.pread(self._file.size(), 0)
        while self._size + 61 <= len(data):
            header = _HEADER.unpack_from(data, self._size)
            end = self._size + 12 + header[1]
            if end > len(data) or crc32c(data[self._size + 21 : end]) != header[4]:
                break
            self._bases.append(header[0])
            self._positions.append(self._size)
            self._timestamps.append(header[8])
            self.log_end_offset = self.high_watermark = header[0] + header[6] + 1
            self._size = end
        self._file.truncate(self._size)

    def append(self, records: memoryview, *, now_ms: int) -> AppendInfo:
        if self.offline is not None:
            raise self.offline
        position = 0
        batches = []
        while position < len(records):
            if len(records) - position < 61:
                raise RequestError(ErrorCode.corrupt_message, "a batch is cut short")
            header = _HEADER.unpack_from(records, position)
            end = position + 12 + header[1]
            if header[3] != 2 or header[1] < 49 or end > len(records):
                raise RequestError(ErrorCode.corrupt_message, "not a record batch")
            if end - position > self.config.max_message_bytes:
                raise RequestError(ErrorCode.message_too_large, "the batch is larger than max.message.bytes")
            if crc32c(records[position + 21 : end]) != header[4]:
                raise RequestError(ErrorCode.corrupt_message, "the batch's checksum is wrong")
            batches.append((position, header))
            position = end
        with self.lock:
            base = offset = self.log_end_offset
            for position, header in batches:
                _STAMP.pack_into(records, position, offset, header[1], self.leader_epoch)
                offset += header[6] + 1
            try:
                self._file.pwrite([records], self._size)
            except OSError as error:
                self._file.truncate(self._size)
                raise StorageError(str(error)) from error
            offset = base
            for position, header in batches:
                self._bases.append(offset)
                self._positions.append(self._size + position)
                self._timestamps.append(header[8])
                offset += header[6] + 1
            self._size += len(records)
            self.log_end_offset = self.high_watermark = offset
        self._wake()
        return AppendInfo(base, offset - 1, -1, self.log_start_offset, False)

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True, up_to: int | None = None) -> ReadResult:
        if self.offline is not None:
            raise self.offline
        with self.lock:
            end = self.high_watermark if up_to is None else min(up_to, self.high_watermark)
            if not self.log_start_offset <= offset <= self.high_watermark:
                raise RequestError(ErrorCode.offset_out_of_range, f"{offset} is not in the log")
            regions: list[FileRegion] = []
            size = 0
            if offset < end:
                first = bisect_right(self._bases, offset) - 1
                start = self._positions[first]
                stop = first
                while stop < len(self._bases) and self._bases[stop] < end:
                    after = self._positions[stop + 1] if stop + 1 < len(self._positions) else self._size
                    if after - start > max_bytes and not (at_least_one and stop == first):
                        break
                    size = after - start
                    stop += 1
                if size:
                    regions.append(FileRegion(self._file, start, size))
            return ReadResult(regions, size, self.high_watermark, self.log_start_offset, True)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        for base, found in zip(self._bases, self._timestamps, strict=True):
            if found >= timestamp:
                return base, found
        return None

    def max_timestamp_offset(self) -> tuple[int, int] | None:
        if not self._bases:
            return None
        largest = max(self._timestamps)
        return self._bases[self._timestamps.index(largest)], largest

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(leader epoch, end offset); (-1, -1) where the epoch is not known."""
        return (epoch, self.log_end_offset) if epoch == self.leader_epoch else (-1, -1)

    def delete_records(self, before: int) -> int:
        """New log start offset. -1: up to the high watermark."""
        if before == -1:
            before = self.high_watermark
        if before > self.high_watermark:
            raise RequestError(ErrorCode.offset_out_of_range, f"{before} is not in the log")
        self.log_start_offset = max(self.log_start_offset, before)
        return self.log_start_offset

    def watch(self, callback: Callable[[], None]) -> int:
        """``callback()`` runs after each append, with no lock held, on the appending thread; also when the log goes away."""
        with self.lock:
            token = self._next_token
            self._next_token += 1
            self._watchers[token] = callback
        return token

    def unwatch(self, token: int) -> None:
        with self.lock:
            self._watchers.pop(token, None)

    def _wake(self) -> None:
        if self._watchers:
            with self.lock:
                callbacks = list(self._watchers.values())
            for callback in callbacks:
                callback()

    def size_bytes(self) -> int:
        return self._size

    def flush_to(self, offset: int) -> None:
        """fsync at least up to ``offset``."""
        end = self.log_end_offset
        self._file.sync()
        self.durable_offset = end
