"""Nodes pin their files in one directory, as of one moment."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.errors import StorageError
from broker.metadata.shared_wire import encode
from broker.runtime.channel import connect
from broker.storage.backup import together
from broker.storage.backup.staging import Staging, cut
from broker.storage.backup.together import Pinning, part_path, take_part
from tests.metadata.test_shared_database import Cluster, message
from tests.storage.helpers import Storage, append
from tests.waiting import wait_for


class World:
    """Two nodes, each with a topic of its own."""

    def __init__(self, directory: Path) -> None:
        for name in ("catalogue", "node-1", "node-2"):
            (directory / name).mkdir()
        self.socket = f"{directory}/catalogue/socket"
        self.cluster = Cluster(directory / "catalogue")
        self.directory = str(directory / "pinned")
        self.nodes = {node: Storage(directory / f"node-{node}") for node in (1, 2)}
        for node, storage in self.nodes.items():
            append(storage.create(f"topic-{node}"), b"1", b"2")
        self.watchers = {node: self.cluster.watcher(node) for node in self.nodes}
        self.threads: list[threading.Thread] = []

    def take_part(self) -> None:
        for node, watcher in self.watchers.items():
            _, backup_id, directory = message(watcher)
            connecting = partial(connect, self.socket)
            part = partial(take_part, connecting, self.nodes[node].manager, node, backup_id, directory)
            self.threads.append(threading.Thread(target=part))
            self.threads[-1].start()

    def pinning(self) -> Pinning:
        return Pinning(connect(self.socket), 2, "id", self.directory)

    def close(self) -> None:
        self.cluster.close()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        for storage in self.nodes.values():
            storage.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def merged(world: World) -> Staging:
    storage = world.nodes[1]
    staging = Staging(storage.disk, storage.directory, world.directory, {})
    for node in world.nodes:
        staging.add_part(json.loads(Path(part_path(world.directory, node)).read_text()))
    return staging


def test_the_files_of_all_nodes_are_in_one_directory(world: World) -> None:
    Path(world.directory).mkdir()
    with world.pinning() as pinning:
        asking = threading.Thread(target=pinning.moment)
        asking.start()
        world.take_part()
        asking.join(60)
        for storage in world.nodes.values():
            append(storage.log(next(iter(storage.manager.topics())).name), b"later")
        pinning.staged()
    part = merged(world).part()
    assert [("topic-1", 0, 0, 2, False), ("topic-2", 0, 0, 2, False)] == sorted(part["partitions"])
    sizes = {path: size for path, size, _ in part["files"] if path.endswith(".log")}
    for node, storage in world.nodes.items():
        (path,) = [path for path in sizes if path.startswith(f"topic-{node}-0/")]
        assert 0 < sizes[path] < Path(world.directory, path).stat().st_size == storage.log(f"topic-{node}").size_bytes()
    assert {"recovery-point-offset-checkpoint"} == {name for name, rows in part["offsets"].items() if rows}


def test_compaction_may_begin_again_after_a_failure(world: World) -> None:
    """There is no directory: the node that was asked has ended and was started again."""
    with world.pinning() as pinning:
        asking = threading.Thread(target=pinning.moment)
        asking.start()
        world.take_part()
        asking.join(60)
        with pytest.raises(StorageError, match=r"could not be copied|could not be pinned: the node that was asked"):
            pinning.staged()
    for thread in world.threads:
        thread.join(60)
    assert [0, 0] == [storage.manager.housekeeper._cleanings_held for storage in world.nodes.values()]


def test_logs_are_free_again_if_the_others_do_not_come(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[object] = []

    def cut_and_tell(*arguments: Any) -> object:
        cuts.append(cut(*arguments))
        return cuts[-1]

    monkeypatch.setattr(together, "cut", cut_and_tell)
    slow, lock = world.watchers.pop(2), world.nodes[1].log("topic-1").lock
    with world.pinning() as pinning, ThreadPoolExecutor(1) as threads:
        asking = threads.submit(pinning.moment)
        world.take_part()
        _, backup_id, _ = message(slow)
        channel = world.cluster.channel()
        channel.send(encode(["pin", backup_id, 2]))
        assert ["take"] == message(channel)
        wait_for(lambda: cuts == [None])
        assert not lock.locked()
        monkeypatch.setattr(together, "_TOGETHER_S", 60.0)  # now the others come, however slowly
        append(world.nodes[1].log("topic-1"), b"3")
        for _ in range(2):  # the first node did not hold it, so both are asked again
            channel.send(encode(["taken"]))
            assert ["release"] == message(channel)
            channel.send(encode(["released", True]))
            following = message(channel)
        assert ["stage"] == following
        asking.result(60)


def test_a_cut_without_the_others_is_none(storage: Storage) -> None:
    append(storage.create("a"), b"1")
    held = []

    def together() -> bool:
        held.append(storage.log("a").lock.locked())
        return len(held) > 1

    assert cut([storage.log("a")], storage.clock, together) is None
    found = cut([storage.log("a")], storage.clock, together)
    assert found is not None
    assert [1] == [each.end_offset for each in found]
    assert [True, True] == held
    assert not storage.log("a").lock.locked()


def test_a_cut_whose_busy_log_goes_on_is_none(storage: Storage) -> None:
    append(storage.create("a"), b"1")
    storage.create("b")
    log = storage.log("a")
    busy, free = threading.Event(), threading.Event()

    def write() -> None:
        with log.lock:
            busy.set()
            free.wait(60)
        append(log, b"2")

    writer = threading.Thread(target=write)
    writer.start()
    busy.wait(60)

    def together() -> bool:
        free.set()
        writer.join(60)
        return True

    assert cut([log, storage.log("b")], storage.clock, together) is None
