"""What the tests of the tier share: a storage with an object store, and stores that fail, wait or lie on demand."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.disk import Buffer
from broker.runtime.objects import MemoryObjects, ObjectError
from broker.storage.config import StorageConfig
from broker.storage.log.log import Log
from broker.storage.log.log_config import LogConfig
from broker.storage.log_manager import LogManager
from broker.storage.tier.tier import Tier
from broker.storage.tier.uploads import Uploads
from tests.storage.helpers import Storage

CHUNK = 1000


class Store(MemoryObjects):
    """Counts and, on demand, fails. ``before`` is called with the operation and the key of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int]] = []
        self.puts: list[str] = []
        self.down = False
        self.before: Callable[[str, str], None] = lambda operation, key: None
        self.after: Callable[[str, str], None] = lambda operation, key: None

    def _check(self, operation: str, key: str) -> None:
        self.before(operation, key)
        if self.down:
            raise ObjectError(operation, key, self.name, "it is down")

    def put(self, key: str, parts: Iterable[Buffer], size: int, *, create: bool = False) -> None:
        self._check("put", key)
        super().put(key, parts, size, create=create)
        self.puts.append(key)
        self.after("put", key)

    def get(self, key: str, offset: int, size: int) -> bytes:
        self.gets.append((key, offset, size))
        self._check("get", key)
        return super().get(key, offset, size)

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for key in keys:
            self._check("delete", key)
        super().delete(keys)

    def names(self) -> list[str]:
        return sorted(key for key, _ in self.list(""))

    def cut(self, key: str, size: int) -> None:
        data = super().get(key, 0, size)
        super().put(key, [data], size)


class TieredStorage(Storage):
    """``defaults`` are those of all topics, beside ``remote.storage.enable``."""

    tier: Tier
    uploads: Uploads

    def __init__(self, directory: Path | str, *, cache_bytes: int = 1 << 20, **settings: Any) -> None:
        self.store = Store()
        self.cache_bytes = cache_bytes
        super().__init__(directory, **settings)

    def open(self) -> "TieredStorage":
        self.catalogue = SqliteCatalogue(f"{self.directory}/catalogue.sqlite")
        defaults = LogConfig(remote_storage_enable=True, file_delete_delay_ms=0)
        config = StorageConfig(data_dir=self.directory, defaults=defaults, **self.settings)
        self.tier = Tier(self.disk, self.store, self.catalogue, self.clock, self.directory, self.cache_bytes)
        self.tier.cache.chunk_bytes = CHUNK
        self.manager = LogManager(
            self.tier.disk, self.clock, self.entropy, config, self.catalogue, lambda: self.ident, self.tier
        )
        try:
            self.manager.open()
        except BaseException:
            self.catalogue.close()
            raise
        list(self.tier.bodies(self.entropy, self.manager.partitions, lambda: self.manager.config))
        self.tier.cache.readers = []  # nobody runs their threads
        assert self.tier.uploads is not None
        self.uploads = self.tier.uploads
        return self

    def create(self, topic: str = "t", partitions: int = 1, **configs: object) -> Log:
        return super().create(topic, partitions, **{"segment_bytes": 1000, "local_retention_bytes": 0} | configs)

    def upload(self) -> None:
        """A checkpoint, without which nothing is uploaded, and a whole round."""
        self.manager.checkpoint()
        self.go_round()

    def go_round(self) -> None:
        rounds = self.uploads.counts.rounds
        self.uploads.hurry()
        self.uploads.step(0)
        while self.uploads._round is not None:
            self.uploads.step(0)
        self.uploads._due = self.clock.monotonic() + 1e9
        assert self.uploads.counts.rounds <= rounds + 1

    def local(self, suffix: str, topic: str = "t") -> list[str]:
        return self.files(suffix, topic)

    def rows(self) -> dict[str, str]:
        """Path -> key, in the catalogue; the same in memory."""
        assert self.tier.disk.flush()
        rows = {file.path: file.object for file in self.catalogue.load_remote_files()}
        assert rows == {file.path: file.object for file in self.tier.disk.remote_files()}
        return rows

    def objects_of_rows(self) -> list[str]:
        return sorted(set(self.rows().values()))


def steps(uploads: Uploads) -> Iterator[None]:
    """The steps of one round, to do something in between."""
    uploads.hurry()
    uploads.step(0)
    yield
    while uploads._round is not None:
        uploads.step(0)
        yield
