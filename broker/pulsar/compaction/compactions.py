"""Compaction: the compacted files of all topics, their format, and the choice of the messages they keep.

**Files.** A topic's file is ``TOPIC_ID-PARTITION-HORIZON.compacted`` in a directory of its own. A new file replaces the previous
file once it is durable; readers of the previous file continue, because a removed file lives as long as it is open. The log may
delete compacted messages, because they are read from the file; retention keeps the log behind the horizon (``needed_from``).

``Compactions.step`` compacts, a read batch at a time and one topic after the other, on the calling thread, which may block. All
other methods: any thread, without blocking, except ``open``.

**Choice.** Pure. Phase one notes the latest message of each key; phase two reduces each entry to its latest messages. As in
Pulsar:

- A message without a payload deletes its key, and is left out as well.
- A message without a key is left out (topicCompactionRetainNullKey=false).
- Messages of a batch that are left out become empty messages marked ``compacted_out``, so that the others keep their indexes. A
  batch that keeps no message is dropped as a whole, and a batch that keeps all messages stays as it is.
- Encrypted batches, chunks of larger messages and unreadable entries stay as they are.

A key takes some 150 bytes. There are at most ``keys_max``; a topic with more keys is not compacted.

**Format.** A file has the remaining entries up to the *horizon*, an offset of the log:

    [stored part of an entry] ...  [index]  [trailer]

The index has the offsets, positions, numbers of messages, sizes and checksums of all entries, one column after the other; the
trailer has the horizon, the number of entries, the position and the checksum of the index, and a magic number. All of it is
big-endian. The file is written under a temporary name and renamed when it is durable, so a file with this name is whole.

A writer belongs to one thread, which may block. A ``CompactedFile`` may be used from any thread that may block; ``first``,
``horizon`` and ``last`` do not block.
"""

import re
import struct
import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from hashlib import blake2b
from itertools import accumulate
from struct import Struct, error
from typing import Final, NamedTuple
from uuid import UUID

import attrs

from broker.errors import BrokerError, Refusal, StorageError
from broker.log import get_logger
from broker.pulsar.entries.log_entries import LogEntriesReader
from broker.runtime.disk import Buffer, Disk, File, FileRegion
from broker.runtime.threads import Lock
from broker.storage.log.log import Log
from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.pulsar.metadata import is_batch, is_chunk, is_encrypted, message_key, read_stored_metadata
from protocol.pulsar.payload import build_batch, compress, decompressed, split_batch
from protocol.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from protocol.pulsar.sends import MAGIC_CRC32C, read_stored_part

_TRAILER: Final = Struct(">qqqI8s")
_CHECKED: Final = Struct(">qqq")
_MARK: Final = b"PCOMPACT"
_PIECE: Final = 256 * 1024
_COLUMNS: Final = (("q", 8), ("q", 8), ("I", 4), ("I", 4), ("I", 4))


class Compacted(NamedTuple):
    """The rest of an entry after compaction."""

    offset: int
    messages: int
    data: bytes


class CompactedWriter:
    """Raises OSError."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File = disk.open(_temporary(path), create=True)
        self._file.truncate(0)
        self._columns = [array(code) for code, _ in _COLUMNS]
        self._pieces: list[Buffer] = []
        self._waiting = 0  # bytes in them
        self._end = 0

    def add(self, offset: int, messages: int, data: Buffer) -> None:
        for column, value in zip(self._columns, (offset, self._end, messages, len(data), crc32c(data)), strict=True):
            column.append(value)
        self._write(data)

    def finish(self, horizon: int) -> None:
        """The file is durable, and has its name, when this returns."""
        index_at = self._end
        checksum = 0
        for column in self._columns:
            data = _big_endian(column).tobytes()
            checksum = crc32c(data, checksum)
            self._write(data)
        count = len(self._columns[0])
        checksum = crc32c(_CHECKED.pack(horizon, count, index_at), checksum)
        self._write(_TRAILER.pack(horizon, count, index_at, checksum, _MARK))
        self._flush()
        self._file.sync()
        self._file.close()
        self._disk.rename(_temporary(self._path), self._path)
        self._disk.sync_dir(self._path.rpartition("/")[0])

    def abandon(self) -> None:
        """Does not raise."""
        try:
            self._file.close()
            self._disk.remove(_temporary(self._path))
        except OSError:
            pass  # the next start removes it

    def _write(self, data: Buffer) -> None:
        self._pieces.append(bytes(data))
        self._waiting += len(data)
        self._end += len(data)
        if self._waiting >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        if self._pieces:
            self._file.pwrite(self._pieces, self._end - self._waiting)
            self._pieces, self._waiting = [], 0


class CompactedFile:
    """A whole file. The constructor raises StorageError for an unreadable file."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        try:
            self._file = disk.open(path, read_only=True)
            size = self._file.size()
            trailer = self._file.pread(_TRAILER.size, max(0, size - _TRAILER.size))
            self.horizon, count, index_at, checksum, mark = _TRAILER.unpack(trailer)
            index = self._file.pread(size - _TRAILER.size - index_at, index_at) if mark == _MARK else b""
        except (OSError, error, ValueError, OverflowError) as fault:
            raise StorageError(f"{path} cannot be read: {fault}") from None
        computed = crc32c(_CHECKED.pack(self.horizon, count, index_at), crc32c(index))
        if mark != _MARK or computed != checksum or len(index) != count * sum(width for _, width in _COLUMNS):
            raise StorageError(f"{path} is damaged.")
        columns = []
        at = 0
        for code, width in _COLUMNS:
            column = array(code)
            column.frombytes(index[at : at + count * width])
            columns.append(_big_endian(column))
            at += count * width
        self._offsets, self._positions, self._messages, self._sizes, self._checksums = columns

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def first(self) -> int:
        """The offset of the first entry; the horizon if there is none."""
        return self._offsets[0] if self._offsets else self.horizon

    @property
    def last(self) -> tuple[int, int] | None:
        """Offset and messages of the last entry."""
        return (self._offsets[-1], self._messages[-1]) if self._offsets else None

    def read(self, offset: int, max_entries: int, max_bytes: int) -> Sequence[Compacted]:
        """From the entry that covers the offset, or the first one after it; the first whatever its size. Raises
        StorageError."""
        low = bisect_left(self._offsets, offset)
        if low and self._offsets[low - 1] + self._messages[low - 1] > offset:
            low -= 1
        high = min(low + max_entries, len(self._offsets))
        if low >= high:
            return ()
        sizes = list(accumulate(self._sizes[low:high]))
        while len(sizes) > 1 and sizes[-1] > max_bytes:
            sizes.pop()
        start = self._positions[low]
        try:
            data = self._file.pread(sizes[-1], start)
        except OSError as fault:
            raise StorageError(f"{self.path} cannot be read: {fault}") from None
        found = []
        at = 0
        for place, end in enumerate(sizes, low):
            piece = data[at:end]
            if crc32c(piece) != self._checksums[place]:
                raise StorageError(f"{self.path}: the entry {self._offsets[place]} is damaged.")
            found.append(Compacted(self._offsets[place], self._messages[place], piece))
            at = end
        return found


def _temporary(path: str) -> str:
    return f"{path}.tmp"


def _big_endian(column: "array[int]") -> "array[int]":
    """Between the machine's order and the file's."""
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column


KEYS_MAX: Final = 2_000_000
_SHORT: Final = 16
_HEAD: Final = struct.Struct(">HI")
_SIZE: Final = struct.Struct(">I")
_COMPACTED_OUT: Final = SingleMessageMetadata(payload_size=0, compacted_out=True)


class TooManyKeys(Refusal):
    """The topic has more keys than compaction remembers."""


class Latest:
    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._latest: dict[bytes, tuple[int, int]] = {}  # key -> offset of the entry, index in its batch

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._latest)

    def note(self, offset: int, data: memoryview) -> None:
        """Phase one. ``data``: the stored part of a message. Raises TooManyKeys."""
        try:
            metadata, payload = _opened(data)
            if not is_batch(metadata):
                if not is_chunk(metadata):
                    # What is compressed is never empty.
                    size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(payload)
                    self._note(message_key(metadata), offset, 0, not size or metadata.null_value)
            elif not is_encrypted(metadata):
                batch = decompressed(metadata, payload)
                for index, one in enumerate(split_batch(batch, metadata.num_messages_in_batch)):
                    if not one.metadata.compacted_out:
                        empty = not one.metadata.payload_size or one.metadata.null_value
                        self._note(message_key(one.metadata), offset, index, empty)
        except ProtocolError:
            return  # it stays as it is

    def left(self, offset: int, data: memoryview) -> memoryview | bytes | None:
        """Phase two: the stored part of what is left of the entry; None: nothing."""
        try:
            metadata, payload = _opened(data)
            if not is_batch(metadata):
                if is_chunk(metadata) or self._is_latest(message_key(metadata), offset, 0):
                    return data
                return None
            if is_encrypted(metadata):
                return data
            return self._left_of_batch(offset, data, metadata, payload)
        except ProtocolError:
            return data

    def _note(self, key: bytes | None, offset: int, index: int, empty: bool) -> None:
        if key is None:
            return
        key = _remembered(key)
        if empty:
            self._latest.pop(key, None)
            return
        if len(self._latest) >= self._keys_max and key not in self._latest:
            raise TooManyKeys(f"The topic has more than {self._keys_max} keys.")
        self._latest[key] = (offset, index)

    def _is_latest(self, key: bytes | None, offset: int, index: int) -> bool:
        return key is not None and self._latest.get(_remembered(key)) == (offset, index)

    def _left_of_batch(
        self, offset: int, data: memoryview, metadata: MessageMetadata, payload: memoryview
    ) -> memoryview | bytes | None:
        batch = decompressed(metadata, payload)
        messages: list[tuple[bytes, bytes | memoryview]] = []
        left = gone = 0
        for index, one in enumerate(split_batch(batch, metadata.num_messages_in_batch)):
            if self._is_latest(message_key(one.metadata), offset, index):
                messages.append((one.metadata.SerializeToString(), one.payload))
                left += 1
            else:
                messages.append((_COMPACTED_OUT.SerializeToString(), b""))
                gone += not one.metadata.compacted_out
        if not left:
            return None
        if not gone:
            return data
        body = build_batch(messages)
        metadata.uncompressed_size = len(body)
        return _stored_part(metadata, compress(metadata.compression, body))


def _opened(data: memoryview) -> tuple[MessageMetadata, memoryview]:
    stored = read_stored_part(data)
    return read_stored_metadata(data[stored.metadata : stored.payload]), data[stored.payload : stored.end]


def _stored_part(metadata: MessageMetadata, payload: bytes) -> bytes:
    head = metadata.SerializeToString()
    body = b"".join((_SIZE.pack(len(head)), head, payload))
    return _HEAD.pack(MAGIC_CRC32C, crc32c(body)) + body


def _remembered(key: bytes) -> bytes:
    return key if len(key) < _SHORT else blake2b(key, digest_size=_SHORT).digest()


log = get_logger("pulsar")

_NAME: Final = re.compile(r"([0-9a-f]{32})-([0-9]+)-([0-9]+)\.compacted")
_ENTRIES: Final = 100
_BYTES: Final = 1024 * 1024

Key = tuple[UUID, int]


class State(StrEnum):
    """Pulsar's names."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@attrs.frozen
class Status:
    state: State = State.NOT_RUN
    error: str = ""


_NOT_RUN: Final = Status()


class Compactions:
    def __init__(self, disk: Disk, directory: str, large: Lock, *, keys_max: int = KEYS_MAX) -> None:
        """``large`` is held while a batch of a Kafka producer is translated that is large inside."""
        self._disk = disk
        self._directory = directory
        self._large = large
        self._keys_max = keys_max
        self._lock = Lock()  # guards the tables; nothing is done under it
        self._files: dict[Key, CompactedFile] = {}
        self._waiting: deque[Log] = deque()
        self._status: dict[Key, Status] = {}
        self._needed: dict[Key, int] = {}  # while one is compacted: from where on the log is read
        self._running: tuple[Log, Iterator[None]] | None = None

    def open(self, exists: Callable[[UUID], bool]) -> None:
        """Find what an earlier broker has left. Raises StorageError."""
        try:
            if not self._disk.exists(self._directory):
                return
            for name in sorted(self._disk.listdir(self._directory)):
                self._found(name, exists)
        except OSError as error:
            raise StorageError(f"{self._directory} cannot be read: {error}") from None

    def _found(self, name: str, exists: Callable[[UUID], bool]) -> None:
        match = _NAME.fullmatch(name)
        path = f"{self._directory}/{name}"
        if match is None or not exists(UUID(match[1])):
            self._disk.remove(path)
            return
        key = (UUID(match[1]), int(match[2]))
        try:
            file = CompactedFile(self._disk, path)
        except StorageError as error:
            # The messages that only it has are lost; those in the log are compacted again.
            log.error("compacted_file_not_readable", error=str(error))
            return
        known = self._files.get(key)
        if known is not None and known.horizon > file.horizon:
            known, file = file, known
        self._files[key] = file
        if known is not None:
            self._disk.remove(known.path)

    # -- questions ----------------------------------------------------------------------------------------------------

    def file(self, of: Log) -> CompactedFile | None:
        return self._files.get((of.topic_id, of.partition))

    def status(self, of: Log) -> Status:
        """Of the last compaction that was asked for since the broker has started."""
        return self._status.get((of.topic_id, of.partition), _NOT_RUN)

    def needed_from(self, of: Log) -> int | None:
        """The offset from which compaction still needs the log; None: it needs nothing."""
        key = (of.topic_id, of.partition)
        needed = self._needed.get(key)
        if needed is None:
            file = self._files.get(key)
            needed = None if file is None else file.horizon
        return needed

    # -- compacting ---------------------------------------------------------------------------------------------------

    def request(self, of: Log) -> bool:
        """Compact the topic. False: it is being compacted, or is to be."""
        key = (of.topic_id, of.partition)
        with self._lock:
            if self.status(of).state is State.RUNNING:
                return False
            self._status[key] = Status(State.RUNNING)
            self._waiting.append(of)
        return True

    def step(self) -> bool:
        """Do a little. False: there is nothing to do."""
        running = self._running
        if running is None:
            with self._lock:
                if not self._waiting:
                    return False
                of = self._waiting.popleft()
            running = self._running = (of, self._compact(of))
        of, work = running
        try:
            next(work)
            return True
        except StopIteration:
            status = Status(State.SUCCESS)
        except (BrokerError, OSError) as error:
            log.error("compaction_failed", topic=of.topic, partition=of.partition, error=str(error))
            status = Status(State.ERROR, str(error))
        self._running = None
        key = (of.topic_id, of.partition)
        with self._lock:
            self._needed.pop(key, None)
            self._status[key] = status
        return True

    def _compact(self, of: Log) -> Iterator[None]:
        key = (of.topic_id, of.partition)
        before = self._files.get(key)
        horizon = of.last_stable_offset
        if before is not None and before.horizon >= horizon:
            return
        with self._lock:
            self._needed[key] = max(of.log_start_offset, before.horizon if before is not None else 0)
        latest = Latest(self._keys_max)
        for entries in self._entries(of, before, horizon):
            for offset, _, data in entries:
                latest.note(offset, data)
            yield
        if not self._disk.exists(self._directory):
            self._disk.makedirs(self._directory)
            self._disk.sync_dir(self._directory.rpartition("/")[0])
        path = f"{self._directory}/{key[0].hex}-{key[1]}-{horizon}.compacted"
        writer = CompactedWriter(self._disk, path)
        try:
            for entries in self._entries(of, before, horizon):
                for offset, messages, data in entries:
                    left = latest.left(offset, data)
                    if left is not None:
                        writer.add(offset, messages, left)
                yield
            # Were the log cut below the horizon by a power loss, messages that come then would be taken for compacted ones.
            of.durability.flush_to(horizon)
            writer.finish(horizon)
        except BaseException:
            writer.abandon()
            raise
        file = CompactedFile(self._disk, path)
        with self._lock:
            self._files[key] = file
        if before is not None:
            self._disk.remove(before.path)
        log.info("topic_compacted", topic=of.topic, partition=of.partition, horizon=horizon, entries=len(file))

    def _entries(
        self, of: Log, before: CompactedFile | None, horizon: int
    ) -> Iterator[list[tuple[int, int, memoryview]]]:
        """The entries of the last compacted file, then those of the log, up to the horizon."""
        offset = 0
        if before is not None:
            while offset < before.horizon:
                found = before.read(offset, _ENTRIES, _BYTES)
                if not found:
                    break
                yield [(one.offset, one.messages, memoryview(one.data)) for one in found]
                offset = found[-1].offset + found[-1].messages
            offset = before.horizon
        reader = LogEntriesReader(of, self._large)
        offset = max(offset, of.log_start_offset)
        while offset < horizon:
            part = reader.read(offset, _ENTRIES, _BYTES)
            if part.searched <= offset:
                break
            yield [(one.offset, one.messages, _bytes_of(one.data)) for one in part.entries if one.last < horizon]
            offset = part.searched

    # -- the end ------------------------------------------------------------------------------------------------------

    def forget(self, topic_id: UUID) -> None:
        """The topic has been deleted. Does not raise: what cannot be removed now goes with the next start."""
        with self._lock:
            gone = [self._files.pop(key) for key in list(self._files) if key[0] == topic_id]
            for key in [key for key in self._status if key[0] == topic_id]:
                del self._status[key]
        for file in gone:
            try:
                self._disk.remove(file.path)
            except OSError as error:
                log.warning("compacted_file_not_removed", path=file.path, error=str(error))


def _bytes_of(data: object) -> memoryview:
    if isinstance(data, FileRegion):
        return memoryview(data.file.pread(data.size, data.offset))
    return memoryview(data)  # type: ignore[arg-type]
