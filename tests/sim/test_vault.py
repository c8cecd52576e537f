"""The vault sees at once what a take-over would suffer from, and its owners are those of the real database."""

import pytest

from broker.errors import Fenced, StorageError
from broker.metadata.journal import JournalRow
from broker.runtime.objects import ObjectError
from broker.storage.journal.operations import Create, Index, Operation, Remove, Rename, Truncate, Write, encode
from tests.sim.catalogue import Tables
from tests.sim.engine import LEASE_S, SimObjects, SimOwnerSession
from tests.sim.vault import Vault
from tests.sim.world import Process, Violation, World


class Scene:
    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.vault = Vault(self.world, Tables())
        self.process = self.world.boot()

    def next_process(self) -> Process:
        self.world.set_aside()
        return self.world.boot()

    def append(self, *operations: Operation, data: bytes = b"", key: str | None = None) -> None:
        number = self.vault.journal.number + 1
        index = encode(Index(operations, len(data), 0))
        self.vault.journal.store([JournalRow(number, index, None if key else data, key)])

    def remove(self, upto: int) -> None:
        for number in range(1, upto + 1):
            self.vault.journal.rows.pop(number, None)
        self.vault.removed(upto)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_files_are_what_the_rows_say(scene: Scene) -> None:
    scene.append(Create("t-0/a"), Write("t-0/a", 2, 3), data=b"abc")
    scene.append(Rename("t-0", "t-1"), Truncate("t-1/a", 4), Create("b"), Remove("b"))
    assert {"t-1/a": b"\0\0ab"} == scene.vault.files
    assert scene.vault.would_survive("t-1", b"ab")
    assert not scene.vault.would_survive("t-0", b"ab")


def test_a_row_without_its_object_is_a_violation(scene: Scene) -> None:
    with pytest.raises(Violation, match="object o is not there"):
        scene.append(Write("a", 0, 3), data=b"abc", key="o")


def test_rows_may_go_that_say_nothing_any_more(scene: Scene) -> None:
    scene.append(Write("a", 0, 3), data=b"abc")
    scene.append(Write("a", 0, 3), data=b"abc")
    scene.remove(1)
    with pytest.raises(Violation, match="a would be another file"):
        scene.remove(2)


def test_objects_may_go_that_nothing_names(scene: Scene) -> None:
    for key in ("o", "p"):
        scene.vault.put(key, b"abc")
    scene.append(Write("a", 0, 3), data=b"abc", key="o")
    scene.vault.delete(["p"])
    with pytest.raises(Violation, match="row 1 of the journal names it"):
        scene.vault.delete(["o"])


def test_an_object_is_put_once(scene: Scene) -> None:
    scene.vault.put("o", b"abc")
    scene.vault.put("o", b"abc")
    with pytest.raises(Violation, match="other bytes"):
        scene.vault.put("o", b"abd")


@pytest.mark.parametrize("is_silent", [False, True])
def test_the_lock_of_a_dead_owner_is_free_or_has_to_be_taken(scene: Scene, is_silent: bool) -> None:
    first = SimOwnerSession(scene.vault, scene.process)
    assert first.lock(0)
    epoch = first.take("first", "", LEASE_S).epoch
    second = SimOwnerSession(scene.vault, scene.next_process())
    assert not second.lock(0)
    scene.vault.gone(scene.process, silent=is_silent)
    assert second.lock(0) is not is_silent
    for holder in second.lock_holders():
        second.end(holder)
    assert second.lock(0)
    assert epoch + 1 == second.take("second", "", LEASE_S).epoch
    with pytest.raises(Fenced):
        SimOwnerSession(scene.vault, scene.process).renew(epoch, LEASE_S)


def test_who_is_cut_off_cannot_reach_it(scene: Scene) -> None:
    session = SimOwnerSession(scene.vault, scene.process)
    scene.vault.cut(scene.process, scene.world.now + 1.0)
    with pytest.raises(StorageError):
        session.look()
    scene.world.now += 1.0
    SimOwnerSession(scene.vault, scene.process).look()


def test_an_object_whose_put_has_failed_is_there_or_not_or_comes_later() -> None:
    fates = set()
    for seed in range(30):
        scene = Scene(seed)
        scene.vault.faults.store_error = 1.0
        objects = SimObjects(scene.vault, scene.process)
        with pytest.raises(ObjectError):
            objects.put("o", [b"abc"], 3)
        before = "o" in scene.vault.objects
        scene.world.now += 10.0
        scene.vault.settle()
        fates.add((before, "o" in scene.vault.objects))
    assert {(False, False), (False, True), (True, True)} == fates
