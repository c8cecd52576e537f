"""The compacted files of all topics: making them, finding them, removing them.

A topic's file is ``TOPIC_ID-PARTITION-HORIZON.compacted`` in a directory of its own. A new one replaces the last one when it
is durable; who reads from the last one goes on to do so, because a file that is removed lives as long as somebody has it open.
What was compacted once is read from the file, so the log may delete it: retention keeps what lies behind the horizon
(``needed_from``).

``step`` compacts, a read batch at a time, on the thread that calls it, which may block; one topic after the other. All other
methods: any thread, without blocking, but ``open``.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final
from uuid import UUID

import attrs

from broker.errors import BrokerError, StorageError
from broker.log import get_logger
from broker.pulsar.compaction.compacted_file import CompactedFile, CompactedWriter
from broker.pulsar.compaction.latest import KEYS_MAX, Latest
from broker.pulsar.entries.log_entries import LogEntriesReader
from broker.runtime.disk import Disk, FileRegion
from broker.runtime.threads import Lock
from broker.storage.log.log import Log

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
        """What compaction still needs of the log; None: nothing."""
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
            of.flush_to(horizon)
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
        """What the last compaction has left, and the log after that, up to the horizon."""
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
