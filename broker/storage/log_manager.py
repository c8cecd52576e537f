"""All topics and their logs (thin first version)."""

import re
import uuid
from collections.abc import Callable, Mapping

import attrs

from broker.errors import ConfigError, RequestError
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, File
from broker.runtime.entropy import Entropy
from broker.runtime.threads import Event, Lock
from broker.storage.catalogue import Catalogue, TopicRow
from broker.storage.config import StorageConfig
from broker.storage.flusher import Flusher
from broker.storage.log import Log
from broker.storage.log_config import LogConfig
from protocol.kafka.errors import ErrorCode


@attrs.frozen
class TopicInfo:
    """A topic as it is now. ``version`` rises with each change of it."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    version: int


class Housekeeper:
    """Body of the background thread."""

    def __init__(self, manager: "LogManager") -> None:
        self._event = Event()

    def step(self, timeout: float | None) -> bool:
        self._event.wait(timeout)
        self._event.clear()
        return False

    def wakeup(self) -> None:
        self._event.set()


class LogManager:
    def __init__(self, disk: Disk, clock: Clock, entropy: Entropy, config: StorageConfig, catalogue: Catalogue) -> None:
        self.disk = disk
        self.clock = clock
        self.entropy = entropy
        self.config = config
        self.catalogue = catalogue
        self.data_dir = config.data_dir
        self.partitions: dict[tuple[str, int], Log] = {}
        self.generation = 0
        self.flusher = Flusher()
        self.housekeeper = Housekeeper(self)
        self.on_topic_deleted: list[Callable[[str], None]] = []
        self._topics: dict[str, TopicInfo] = {}
        self._lock = Lock()
        self._lock_file: File | None = None

    def open(self) -> None:
        self.disk.makedirs(self.data_dir)
        path = f"{self.data_dir}/.lock"
        try:
            self._lock_file = self.disk.lock(path)
        except BlockingIOError:
            raise ConfigError(f"Another broker uses {self.data_dir}: stop it or choose another data_dir.") from None
        for row in self.catalogue.topics():
            self._topics[row.name] = TopicInfo(row.name, row.topic_id, row.partitions, row.configs, 0)
            self._open_logs(self._topics[row.name], range(row.partitions))

    def close(self) -> None:
        for log in self.partitions.values():
            log.flush_to(log.log_end_offset)
        if self._lock_file is not None:
            self._lock_file.close()

    def _open_logs(self, info: TopicInfo, numbers: range) -> None:
        config = LogConfig.from_overrides(self.config.defaults, info.configs)
        for n in numbers:
            directory = f"{self.data_dir}/{info.name}-{n}"
            self.partitions[info.name, n] = Log(self.disk, self.clock, directory, info.name, n, info.topic_id, config)

    def get(self, topic: str, partition: int) -> Log | None:
        return self.partitions.get((topic, partition))

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def topics(self) -> list[TopicInfo]:
        return list(self._topics.values())

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicInfo:
        with self._lock:
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
                raise RequestError(ErrorCode.invalid_topic_exception, f"Topic name {name!r} is not allowed.")
            if name in self._topics:
                raise RequestError(ErrorCode.topic_already_exists, f"Topic {name!r} already exists.")
            total = self.config.num_partitions if partitions is None else partitions
            if total < 1:
                raise RequestError(ErrorCode.invalid_partitions, "A topic needs at least one partition.")
            LogConfig.from_overrides(self.config.defaults, configs or {})
            info = TopicInfo(name, self.entropy.uuid(), total, dict(configs or {}), 0)
            if not validate_only:
                self._open_logs(info, range(total))
                self.catalogue.put_topic(TopicRow(name, info.topic_id, total, info.configs))
                self._topics[name] = info
                self.generation += 1
            return info

    def delete_topic(self, name: str) -> None:
        with self._lock:
            info = self._topics.pop(name, None)
            if info is None:
                raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
            self.catalogue.delete_topic(name)
            for n in range(info.partitions):
                self.partitions.pop((name, n))
                directory = f"{self.data_dir}/{name}-{n}"
                self.disk.rename(directory, f"{directory}.{self.entropy.uuid().hex}-delete")
            self.generation += 1
        for listener in self.on_topic_deleted:
            listener(name)

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        with self._lock:
            info = self._topics.get(name)
            if info is None:
                raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
            if total <= info.partitions:
                raise RequestError(
                    ErrorCode.invalid_partitions,
                    f"The topic {name} currently has {info.partitions} partition(s); {total} would not be an increase.",
                )
            changed = attrs.evolve(info, partitions=total, version=info.version + 1)
            self._open_logs(changed, range(info.partitions, total))
            self.catalogue.put_topic(TopicRow(name, info.topic_id, total, info.configs))
            self._topics[name] = changed
            self.generation += 1
            return changed

    def topic_config(self, name: str) -> LogConfig:
        return LogConfig.from_overrides(self.config.defaults, self._topics[name].configs)

    def alter_topic_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicInfo:
        """Set, or with None take back, settings of a topic."""
        with self._lock:
            info = self._topics.get(name)
            if info is None:
                raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
            configs = {**info.configs, **changes}
            kept = {key: value for key, value in configs.items() if value is not None}
            config = LogConfig.from_overrides(self.config.defaults, kept)
            changed = attrs.evolve(info, configs=kept, version=info.version + 1)
            if not validate_only:
                self.catalogue.put_topic(TopicRow(name, info.topic_id, info.partitions, kept))
                self._topics[name] = changed
                for n in range(info.partitions):
                    self.partitions[name, n].config = config
                self.generation += 1
            return changed
