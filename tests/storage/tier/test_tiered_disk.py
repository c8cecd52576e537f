"""A disk with files in the object store has the names and the bytes of one that has them all itself."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.errors import StorageError, UnknownOutcome
from broker.metadata.catalogue import RemoteFile
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.disk import Disk, SystemDisk, Unreachable
from broker.storage.tier.cache import ChunkCache
from broker.storage.tier.tiered_disk import TieredDisk
from tests.storage.helpers import HandClock
from tests.storage.tier.helpers import Store

CHUNK = 7


class World:
    """A tiered disk over a real one, and its catalogue."""

    def __init__(self, directory: str) -> None:
        self.root = f"{directory}/data"
        self.local = SystemDisk()
        self.local.makedirs(self.root)
        self.store = Store()
        self.catalogue = SqliteCatalogue(f"{directory}/catalogue.sqlite")
        self.cache = ChunkCache(self.local, f"{directory}/cache", self.store, 3 * CHUNK, CHUNK)
        self.cache.start()
        self.numbers = itertools.count()
        self.disk = self.restart()

    def restart(self) -> TieredDisk:
        self.disk = TieredDisk(self.local, self.root, self.catalogue, self.cache, HandClock())  # type: ignore[arg-type]
        return self.disk

    def write(self, path: str, data: bytes = b"content") -> None:
        write(self.disk, f"{self.root}/{path}", data)

    def upload(self, *paths: str) -> str:
        """These local files, in one object."""
        key, rows, parts, position = f"segments/{next(self.numbers)}", [], [], 0
        for path in paths:
            file = self.local.open(f"{self.root}/{path}")
            parts.append(file.pread(1000, 0))
            rows.append(RemoteFile(path, key, position, len(parts[-1])))
            position += len(parts[-1])
        self.store.put(key, parts, position)
        self.disk.adopt(rows)
        return key

    def evict(self, path: str) -> int:
        return self.disk.evict(f"{self.root}/{path}")

    def condemned(self) -> list[str]:
        return [key for key, _ in self.catalogue.condemned_objects()]


def write(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.pwrite([data], 0)
    file.close()


def read(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    return file.pread(file.size() + 1, 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(str(tmp_path))
    world.local.makedirs(f"{world.root}/t-0")
    yield world
    world.catalogue.close()


def remote(world: World, path: str = "t-0/a", data: bytes = b"content") -> str:
    """The path of a file that is in the store only."""
    world.write(path, data)
    world.upload(path)
    assert len(data) == world.evict(path)
    return f"{world.root}/{path}"


def test_file_in_store_has_name_size_and_bytes(world: World) -> None:
    path = remote(world)
    assert not world.local.exists(path)
    assert (True, False, 7) == (world.disk.exists(path), world.disk.is_dir(path), world.disk.file_size(path))
    assert ["a"] == world.disk.listdir(f"{world.root}/t-0")
    assert b"content" == read(world.disk, path)
    assert world.disk.is_remote(path)
    assert not world.disk.is_local(path)


def test_local_copy_is_preferred(world: World) -> None:
    world.write("t-0/a")
    world.upload("t-0/a")
    assert b"content" == read(world.disk, f"{world.root}/t-0/a")
    assert [] == world.store.gets


def test_only_an_equal_copy_of_a_file_in_store_is_evicted(world: World) -> None:
    world.write("t-0/a")
    assert 0 == world.evict("t-0/a")
    world.upload("t-0/a")
    write(world.local, f"{world.root}/t-0/a", b"longer content")
    assert 0 == world.evict("t-0/a")
    assert b"longer content" == read(world.disk, f"{world.root}/t-0/a")
    assert 0 == world.evict("t-0/b")


def test_file_that_is_opened_to_be_written_is_copied_first(world: World) -> None:
    path = remote(world, data=bytes(range(40)))
    file = world.disk.open(path, create=True)
    file.pwrite([b"x"], 0)
    assert b"x" + bytes(range(1, 40)) == read(world.disk, path)
    assert ["a"] == world.local.listdir(f"{world.root}/t-0")


def test_failed_copy_leaves_nothing(world: World) -> None:
    path = remote(world)
    world.store.down = True
    with pytest.raises(Unreachable):
        world.disk.open(path, create=True)
    assert [] == world.local.listdir(f"{world.root}/t-0")


def test_link_to_file_in_store_is_a_copy(world: World) -> None:
    path = remote(world)
    world.disk.link(path, f"{world.root}/b")
    assert b"content" == read(world.local, f"{world.root}/b")
    with pytest.raises(FileNotFoundError):
        world.disk.link(f"{world.root}/none", f"{world.root}/c")


def test_directory_whose_files_are_all_in_store_is_there(world: World) -> None:
    """The local disk was lost, or the directory was not durable when the machine died."""
    path = remote(world)
    world.local.rmdir(f"{world.root}/t-0")
    world.restart()
    directory = f"{world.root}/t-0"
    assert (True, True, ["t-0"]) == (
        world.disk.exists(directory),
        world.disk.is_dir(directory),
        world.disk.listdir(world.root),
    )
    world.disk.rename(directory, f"{directory}x")
    world.disk.remove(f"{directory}x/a")
    world.disk.rmdir(f"{directory}x")
    assert [] == world.disk.listdir(world.root)
    with pytest.raises(FileNotFoundError):
        world.disk.rmdir(f"{directory}x")
    assert not world.disk.exists(path)


def test_object_is_condemned_with_its_last_file(world: World) -> None:
    world.write("t-0/a")
    world.write("t-0/b", b"other")
    key = world.upload("t-0/a", "t-0/b")
    world.disk.remove(f"{world.root}/t-0/a")
    assert world.disk.flush()
    assert [] == world.condemned()
    assert b"other" == read(world.disk, f"{world.root}/t-0/b")
    world.disk.remove(f"{world.root}/t-0/b")
    assert world.disk.flush()
    assert [key] == world.condemned()


def test_open_file_is_read_after_its_name_is_gone(world: World) -> None:
    file = world.disk.open(remote(world))
    world.disk.remove(f"{world.root}/t-0/a")
    assert b"content" == file.pread(10, 0)


def test_syncing_takes_files_in_store_for_durable(world: World) -> None:
    path = remote(world)
    world.write("t-0/b")
    files = [world.disk.open(path), world.disk.open(f"{world.root}/t-0/b"), world.disk.open(path)]
    done = [each for each in world.disk.sync_all(files, 1.0) if each is not None]
    assert [(0, None), (1, None), (2, None)] == sorted(done)


def paths(world: World) -> list[str]:
    """Those of the catalogue."""
    return sorted(file.path for file in world.catalogue.load_remote_files())


def test_names_are_durable_with_directory(world: World) -> None:
    path = remote(world)
    world.disk.rename(path, f"{path}x")
    world.disk.rename(f"{path}x", f"{path}y")
    assert (["t-0/a"], ["ay"]) == (paths(world), world.disk.listdir(f"{world.root}/t-0"))
    world.disk.sync_dir(f"{world.root}/t-0")
    assert ["t-0/ay"] == paths(world)
    world.disk.remove(f"{path}y")
    assert (["t-0/ay"], []) == (paths(world), world.disk.listdir(f"{world.root}/t-0"))
    remote(world, "t-0/b")
    assert ["t-0/b"] == paths(world), "with the next change that is durable at once"


def test_many_names_are_one_transaction(world: World) -> None:
    alter, calls = world.catalogue.alter_remote_files, itertools.count()
    for name in ("a", "b", "c"):
        remote(world, f"t-0/{name}")

    def counted(*arguments: Any) -> None:
        next(calls)
        alter(*arguments)

    world.catalogue.alter_remote_files = counted  # type: ignore[method-assign]
    for name in ("a", "b", "c"):
        world.disk.rename(f"{world.root}/t-0/{name}", f"{world.root}/t-0/{name}.deleted")
    world.disk.sync_dir(f"{world.root}/t-0")
    assert 1 == next(calls)


@pytest.mark.parametrize("change", ["rename", "remove"])
def test_names_that_catalogue_fails_to_store_stay_noted(world: World, change: str) -> None:
    path = remote(world)
    alter = world.catalogue.alter_remote_files

    def fail(*_: object) -> None:
        raise StorageError("no catalogue")

    world.catalogue.alter_remote_files = fail  # type: ignore[method-assign]
    world.disk.rename(path, f"{path}x") if change == "rename" else world.disk.remove(path)
    assert not world.disk.flush()
    world.disk.sync_dir(f"{world.root}/t-0")
    assert ["t-0/a"] == paths(world)
    world.catalogue.alter_remote_files = alter  # type: ignore[method-assign]
    assert world.disk.flush()
    assert (["t-0/ax"] if change == "rename" else []) == paths(world)


def test_directory_that_catalogue_fails_to_rename_keeps_its_name(world: World) -> None:
    remote(world)

    def fail(*_: object) -> None:
        raise StorageError("no catalogue")

    world.catalogue.alter_remote_files = fail  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match="no catalogue"):
        world.disk.rename(f"{world.root}/t-0", f"{world.root}/t-1")
    assert b"content" == read(world.disk, f"{world.root}/t-0/a")
    assert ["t-0"] == world.local.listdir(world.root)


@pytest.mark.parametrize("happened", [True, False])
def test_after_unknown_outcome_names_are_loaded_again(world: World, happened: bool) -> None:
    path = remote(world)
    other = remote(world, "t-0/b")
    alter = world.catalogue.alter_remote_files

    def unknown(*arguments: Any) -> None:
        if happened:
            alter(*arguments)
        raise UnknownOutcome("the connection was lost")

    world.catalogue.alter_remote_files = unknown  # type: ignore[method-assign]
    world.disk.rename(path, f"{path}x")
    world.disk.remove(other)
    with pytest.raises(Unreachable):
        world.disk.rename(f"{world.root}/t-0", f"{world.root}/t-1")
    directory = "t-1" if happened else "t-0"
    assert {directory} == {file.path.partition("/")[0] for file in world.disk.remote_files()}
    world.catalogue.alter_remote_files = alter  # type: ignore[method-assign]
    assert world.disk.flush()
    assert [f"{directory}/ax"] == paths(world)


# -- against a plain disk -------------------------------------------------------------------------------------------------

DIRECTORIES = st.sampled_from(["t-0", "t-1"])
NAMES = st.sampled_from(["a", "b"])
DATA = st.binary(min_size=9, max_size=10)


class TieredAndPlain(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.world = World(self.temporary.name)
        self.plain = SystemDisk()
        self.plain_root = f"{self.temporary.name}/plain"
        for root in self.plain_root, self.world.root:
            self.plain.makedirs(f"{root}/t-0")
            self.plain.makedirs(f"{root}/t-1")

    def teardown(self) -> None:
        self.world.catalogue.close()
        self.temporary.cleanup()

    def both(self, work: Callable[[Disk, str], object]) -> None:
        """The same on both, with the same kind of error or none."""
        outcomes: list[type[BaseException] | object] = []
        for disk, root in (self.plain, self.plain_root), (self.world.disk, self.world.root):
            try:
                outcomes.append(work(disk, root))
            except OSError as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]

    def is_remote(self, path: str) -> bool:
        return self.world.disk.is_remote(f"{self.world.root}/{path}")

    @rule(directory=DIRECTORIES)
    def make_directory(self, directory: str) -> None:
        self.both(lambda disk, root: disk.makedirs(f"{root}/{directory}"))

    @rule(directory=DIRECTORIES, name=NAMES, data=DATA)
    def write(self, directory: str, name: str, data: bytes) -> None:
        if not self.is_remote(f"{directory}/{name}"):
            self.both(lambda disk, root: write(disk, f"{root}/{directory}/{name}", data))

    @rule(directory=DIRECTORIES, name=NAMES, data=DATA, evict=st.booleans())
    def store(self, directory: str, name: str, data: bytes, evict: bool) -> None:
        path = f"{directory}/{name}"
        if not self.is_remote(path) and self.plain.exists(f"{self.plain_root}/{directory}"):
            self.both(lambda disk, root: write(disk, f"{root}/{path}", data))
            self.world.upload(path)
            assert len(data) == (self.world.evict(path) if evict else len(data))

    @rule(directory=DIRECTORIES, names=st.lists(NAMES, min_size=1, unique=True))
    def upload(self, directory: str, names: list[str]) -> None:
        paths = [f"{directory}/{name}" for name in names]
        if all(self.world.local.exists(f"{self.world.root}/{path}") for path in paths):
            self.world.upload(*paths)

    @rule(directory=DIRECTORIES, name=NAMES)
    def evict(self, directory: str, name: str) -> None:
        self.world.evict(f"{directory}/{name}")

    @rule(directory=DIRECTORIES, name=NAMES)
    def copy_back(self, directory: str, name: str) -> None:
        if self.is_remote(f"{directory}/{name}"):
            self.world.disk.open(f"{self.world.root}/{directory}/{name}", create=True).close()

    @rule(source=DIRECTORIES, destination=DIRECTORIES, old=NAMES, new=NAMES)
    def rename(self, source: str, destination: str, old: str, new: str) -> None:
        if (source, old) != (destination, new):
            self.both(lambda disk, root: disk.rename(f"{root}/{source}/{old}", f"{root}/{destination}/{new}"))

    @rule(source=DIRECTORIES, destination=DIRECTORIES)
    def rename_directory(self, source: str, destination: str) -> None:
        if not self.plain.exists(f"{self.plain_root}/{destination}"):
            self.both(lambda disk, root: disk.rename(f"{root}/{source}", f"{root}/{destination}"))

    @rule(directory=DIRECTORIES, name=NAMES)
    def remove(self, directory: str, name: str) -> None:
        self.both(lambda disk, root: disk.remove(f"{root}/{directory}/{name}"))

    @rule(directory=DIRECTORIES)
    def remove_directory(self, directory: str) -> None:
        if not self.plain.exists(f"{self.plain_root}/{directory}") or not self.plain.listdir(
            f"{self.plain_root}/{directory}"
        ):
            self.both(lambda disk, root: disk.rmdir(f"{root}/{directory}"))

    @rule(directory=DIRECTORIES, old=NAMES, new=NAMES)
    def link(self, directory: str, old: str, new: str) -> None:
        """And away again: of a file in the store it is a copy, so later writes would differ."""

        def there_and_back(disk: Disk, root: str) -> bytes:
            disk.link(f"{root}/{directory}/{old}", f"{root}/{directory}/{new}")
            data = read(disk, f"{root}/{directory}/{new}")
            disk.remove(f"{root}/{directory}/{new}")
            return data

        self.both(there_and_back)

    @precondition(lambda self: self.world.disk.remote_files())
    @rule()
    def restart(self) -> None:
        assert self.world.disk.flush()
        self.world.restart()

    @invariant()
    def they_have_the_same_files(self) -> None:
        self.both(lambda disk, root: disk.listdir(root))
        for directory in ("t-0", "t-1"):
            self.both(lambda disk, root: disk.listdir(f"{root}/{directory}"))  # noqa: B023 (called here)
            self.both(lambda disk, root: (disk.exists(f"{root}/{directory}"), disk.is_dir(f"{root}/{directory}")))  # noqa: B023
            for name in ("a", "b"):
                path = f"{directory}/{name}"
                self.both(lambda disk, root: read(disk, f"{root}/{path}"))  # noqa: B023
                self.both(lambda disk, root: disk.file_size(f"{root}/{path}"))  # noqa: B023
                self.both(lambda disk, root: disk.exists(f"{root}/{path}"))  # noqa: B023

    @rule()
    def flush(self) -> None:
        assert self.world.disk.flush()
        rows = {file.path: file for file in self.world.catalogue.load_remote_files()}
        assert rows == {file.path: file for file in self.world.disk.remote_files()}
        used = {file.object for file in rows.values()}
        assert set(self.world.store.names()) - used == set(self.world.condemned())


TestTieredAndPlain = TieredAndPlain.TestCase
TestTieredAndPlain.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


# -- a catalogue of several nodes ---------------------------------------------------------------------------------------


def test_files_of_other_nodes_are_not_there(world: World) -> None:
    path, other = remote(world), remote(world, "t-0/b")
    disk = TieredDisk(
        world.local,
        world.root,
        world.catalogue,
        world.cache,
        HandClock(),  # type: ignore[arg-type]
        lambda file: file.path == "t-0/a",
    )
    assert (True, False) == (disk.exists(path), disk.exists(other))
    assert ["a"] == disk.listdir(f"{world.root}/t-0")


def test_a_forgotten_directory_leaves_its_local_files(world: World) -> None:
    remote(world)
    world.write("t-0/b")
    key = world.upload("t-0/b")
    world.disk.forget_directory(f"{world.root}/t-0")
    world.disk.forget_directory(f"{world.root}/t-1")
    assert ["b"] == world.disk.listdir(f"{world.root}/t-0")
    assert key in world.condemned()
    assert [] == list(world.catalogue.load_remote_files())


def test_the_size_of_an_object_is_kept_until_it_is_gone(world: World) -> None:
    remote(world)
    remote(world, "t-0/b")
    world.disk.remove(f"{world.root}/t-0/a")
    world.disk.flush()
    for condemned, known in ((world.condemned(), 2), ([], 1)):
        world.disk.forget_unused_objects(set(condemned))
        assert known == len(world.disk._object_sizes)
