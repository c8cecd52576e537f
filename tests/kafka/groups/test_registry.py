"""The registry with groups of another kind than classic: each member of a group is a row."""

import json
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import pytest

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.groups import kinds as group_rows
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.group import Answer, Group, GroupKind, GroupType, SaveRows
from broker.kafka.groups.kinds import kinds_of
from broker.kafka.groups.offset_coordinator import OffsetExpiration
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.groups.registry import GroupEntry, GroupRegistry, send
from broker.kafka.groups.values import JoinRequest
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.timers import Timer
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.classic_group_driver import Parked
from tests.kafka.groups.group_harness import DAY_S, FillingDatabase, TestClock

JOIN = JoinRequest("", None, "c", "/::1", 45_000, 60_000, "consumer", (("range", b""),), "c-1", False)


class RowGroup:
    """A ``Group`` whose members stay until they leave."""

    type: ClassVar[GroupType] = GroupType.CONSUMER

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: dict[str, str] = {}
        self.epoch = 0
        self.is_dead = False
        self.topics: frozenset[str] | None = frozenset({"orders"})
        self.wake = inf
        self.has_pending_members = False
        self.is_shut_down = False
        self._effects: list[Any] = []

    @classmethod
    def restore(cls, group_id: str, rows: Mapping[str, bytes], now: float) -> Group:
        group = cls(group_id)
        try:
            group.epoch = json.loads(rows[""])["epoch"]
        except KeyError as error:
            raise StorageError(f"no {error}") from error
        group.members = {row: body.decode() for row, body in rows.items() if row}
        return group

    @property
    def state_name(self) -> str:
        return "Dead" if self.is_dead else "Stable" if self.members else "Empty"

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return not self.members and not self.is_dead

    @property
    def size_bytes(self) -> int:
        return 1000 * len(self.members)

    @property
    def was_never_joined(self) -> bool:
        return not self.members and not self.epoch

    def take_effects(self) -> list[Any]:
        effects, self._effects = self._effects, []
        return effects

    def put(self, member_id: str, body: str | None, to: Callable[[ErrorCode], None]) -> None:
        """A member joins, or leaves (None)."""
        self.epoch += 1
        if body is None:
            del self.members[member_id]
        else:
            self.members[member_id] = body
        row = json.dumps({"version": 1, "type": self.type.value, "epoch": self.epoch}).encode()
        self._effects.append(SaveRows({"": row, member_id: None if body is None else body.encode()}, to))

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int, now: float) -> ErrorCode:
        return ErrorCode.none

    def saved(self, save: SaveRows, error: ErrorCode, now: float) -> None:
        self._effects.append(Answer(save.then, error))

    def expire(self, now: float) -> None:
        self.wake = inf

    def delete(self) -> ErrorCode:
        if self.members:
            return ErrorCode.non_empty_group
        self.is_dead = True
        return ErrorCode.none

    def shut_down(self) -> None:
        self.is_dead = self.is_shut_down = True


class OtherRowGroup(RowGroup):
    type: ClassVar[GroupType] = GroupType.STREAMS


class Registry:
    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self.clock = TestClock()
        self.config = BrokerConfig(group_initial_rebalance_delay_ms=0)
        self.answers: list[ErrorCode] = []
        self.open()

    def open(self) -> None:
        self.timer = Timer(self.clock)
        self.database = FillingDatabase(self._path)
        self.catalogue = SqliteCatalogue(self._path, self.database)
        kinds = {kind.type: kind for kind in kinds_of(self.config, GroupConfigs(self.catalogue, self.config))}
        kinds |= {group.type: GroupKind(group.type, group, group.restore) for group in (RowGroup, OtherRowGroup)}
        del kinds[GroupType.SHARE]
        self.groups = GroupRegistry(self.clock, self.timer, self.catalogue, self.config, kinds.values())
        self.groups.load(lambda topic: True)

    def restart(self) -> None:
        self.catalogue.close()
        self.open()

    def write(self) -> None:
        while self.groups.writer.step(0):
            pass

    def put(self, group_id: str, member_id: str, body: str | None = "x", type: GroupType = GroupType.CONSUMER) -> bool:
        """A member joins or leaves. False if the group is of another kind."""
        with self.groups.locked(group_id, type) as entry:
            if not self.groups.admit(entry, type):
                return False
            assert isinstance(entry.group, RowGroup)
            entry.group.put(member_id, body, self.answers.append)
            answers = self.groups.settle(entry)
        send(answers)
        return True

    def join_classic(self, group_id: str) -> Parked:
        parked = Parked()
        with self.groups.locked(group_id) as entry:
            assert self.groups.admit(entry, GroupType.CLASSIC)
            assert isinstance(entry.group, ClassicGroup)
            entry.group.join(JOIN, parked, self.clock.now)
            answers = self.groups.settle(entry)
        send(answers)
        return parked

    def entry(self, group_id: str) -> GroupEntry:
        entry = self.groups.get(group_id)
        assert entry is not None
        return entry

    def stored(self) -> dict[str, set[str]]:
        documents = self.catalogue.load_documents(group_rows.KIND)
        return {group_id: set(rows) for group_id, rows in group_rows.by_group(documents)}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(tmp_path / "catalogue.sqlite")
    yield registry
    registry.catalogue.close()


def test_change_is_answered_when_rows_are_durable(registry: Registry) -> None:
    assert registry.put("g", "a")
    assert not registry.answers
    registry.write()
    assert registry.answers == [ErrorCode.none]
    assert registry.stored() == {"g": {"", "a"}}


def test_failed_change_is_answered_with_an_error(registry: Registry) -> None:
    registry.database.full = True
    registry.put("g", "a")
    registry.write()
    assert registry.answers == [ErrorCode.not_coordinator]


def test_restart_restores_the_written_state(registry: Registry) -> None:
    for member in ("a", "b", "c"):
        registry.put("g", member)
    registry.put("g", "b", None)
    registry.write()
    registry.restart()
    group = registry.entry("g").group
    assert isinstance(group, RowGroup)
    assert (group.epoch, set(group.members)) == (4, {"a", "c"})


def test_many_changes_are_written_in_few_transactions(registry: Registry) -> None:
    for number in range(500):
        registry.put("g", str(number))
    before = registry.database.transactions
    registry.write()
    assert registry.database.transactions - before < 10
    assert len(registry.answers) == 500


def test_populated_group_admits_no_client_of_other_kind(registry: Registry) -> None:
    registry.put("g", "a")
    assert not registry.put("g", "b", type=GroupType.STREAMS)
    assert registry.entry("g").group.type is GroupType.CONSUMER


def test_empty_group_is_replaced_by_other_kind(registry: Registry) -> None:
    registry.put("g", "a")
    registry.put("g", "a", None)
    assert registry.put("g", "b", type=GroupType.STREAMS)
    registry.write()
    assert len(registry.answers) == 3
    assert registry.stored() == {"g": {"", "b"}}
    registry.restart()
    assert registry.entry("g").group.type is GroupType.STREAMS


def test_empty_group_that_became_classic_leaves_no_rows(registry: Registry) -> None:
    registry.put("g", "a")
    registry.put("g", "a", None)
    registry.write()
    registry.join_classic("g")
    assert registry.stored() == {"g": {"", "empty-since-ms"}}, "nothing of the classic group is stored yet"
    registry.clock.now += 5
    registry.timer.step(0)
    registry.write()
    group = registry.entry("g").group
    assert isinstance(group, ClassicGroup)
    with registry.entry("g").lock:
        group.leave(next(iter(group.members)).member_id, None, registry.clock.now)
        registry.groups.settle(registry.entry("g"))
    registry.write()
    assert registry.stored() == {}
    assert [group_id for group_id, _ in registry.catalogue.load_groups()] == ["g"]
    assert registry.entry("g").replaced is None


def test_offsets_stay_when_a_group_is_replaced(registry: Registry) -> None:
    with registry.groups.locked("g") as entry:
        entry.offsets.load("orders", 0, CommittedOffset(7, -1, "", 0))
    registry.put("g", "a")
    assert registry.entry("g").group.type is GroupType.CONSUMER
    committed = registry.entry("g").offsets.get("orders", 0)
    assert committed is not None and committed.offset == 7


def test_failed_deletions_are_repeated_by_the_next_save(registry: Registry) -> None:
    registry.catalogue.save_group("g", b"classic")
    with registry.groups.locked("g") as entry:
        assert entry.group.type is GroupType.CLASSIC
    registry.database.full = True
    registry.put("g", "a")
    registry.write()
    registry.database.full = False
    assert registry.entry("g").replaced is GroupType.CLASSIC
    registry.put("g", "b")
    registry.write()
    assert registry.entry("g").replaced is None
    assert list(registry.catalogue.load_groups()) == []


def test_client_of_replaced_group_is_still_answered(registry: Registry) -> None:
    registry.put("g", "a")
    registry.put("g", "a", None)
    registry.join_classic("g")
    registry.write()
    assert registry.answers == [ErrorCode.none] * 2


def test_deleted_group_leaves_nothing(registry: Registry) -> None:
    registry.put("g", "a")
    registry.put("g", "a", None)
    registry.put("h", "a")
    with registry.entry("g").lock:
        assert not registry.entry("g").group.delete()
        registry.groups.delete(registry.entry("g"), lambda failure: None)
    registry.write()
    assert registry.stored() == {"h": {"", "a"}}
    assert registry.groups.get("g") is None


def test_deleted_group_is_not_stored_again(registry: Registry) -> None:
    """A save that failed before may be tried again by the group."""
    registry.put("g", "a")
    registry.put("g", "a", None)
    entry = registry.entry("g")
    with entry.lock:
        group = entry.group
        assert isinstance(group, RowGroup) and not group.delete()
        registry.groups.delete(entry, lambda failure: None)
        group.wake = registry.clock.now + 5
        group.put("b", "x", registry.answers.append)
        registry.groups.settle(entry)
    registry.write()
    assert registry.stored() == {}
    assert entry.timer is None


def test_group_memory_is_counted_until_its_removal(registry: Registry) -> None:
    before = registry.groups.memory.used_bytes
    registry.put("g", "a")
    with_one = registry.groups.memory.used_bytes
    registry.put("g", "b")
    assert registry.groups.memory.used_bytes == with_one + 1000
    registry.put("g", "a", None)
    registry.put("g", "b", None)
    with registry.entry("g").lock:
        registry.entry("g").group.delete()
        registry.groups.delete(registry.entry("g"), lambda failure: None)
    assert registry.groups.memory.used_bytes == before


@pytest.mark.parametrize(
    "rows",
    [
        {"": b"damaged"},
        {"": b'{"version": 1, "type": "share"}'},
        {"": b'{"version": 1, "type": "other"}'},
        {"": b'{"version": 1, "type": "consumer"}'},
        {"a": b"x"},
    ],
)
def test_unreadable_rows_go_when_group_is_recreated(registry: Registry, rows: dict[str, bytes]) -> None:
    group_rows.Save("g", {**rows, "stale": b"x"})(registry.catalogue)
    registry.restart()
    assert registry.groups.get("g") is None
    registry.put("g", "b")
    registry.write()
    assert registry.stored() == {"g": {"", "b"}}


def test_empty_group_keeps_its_time_of_becoming_empty(registry: Registry) -> None:
    registry.put("g", "a")
    registry.put("g", "a", None)
    since_ms = registry.entry("g").empty_since_ms
    assert since_ms == registry.clock.time_ms()
    registry.write()
    registry.clock.now += DAY_S
    registry.restart()
    assert registry.entry("g").empty_since_ms == since_ms
    registry.put("g", "b")
    registry.write()
    assert registry.entry("g").empty_since_ms == 0
    assert registry.stored() == {"g": {"", "b"}}


def test_offsets_of_empty_group_expire_before_the_group(registry: Registry) -> None:
    registry.put("g", "a")
    entry = registry.entry("g")
    for topic in ("orders", "other"):
        entry.offsets.load(topic, 0, CommittedOffset(7, -1, "", registry.clock.time_ms()))
    registry.clock.now += 8 * DAY_S
    expiration = OffsetExpiration(registry.groups)
    expiration.sweep()
    assert [topic for topic, _ in entry.offsets] == ["orders"], "members read it"
    registry.put("g", "a", None)
    registry.clock.now += 6 * DAY_S
    expiration.sweep()
    assert entry.offsets
    registry.clock.now += 2 * DAY_S
    expiration.sweep()
    registry.write()
    assert registry.groups.get("g") is None
    assert registry.stored() == {}


def test_end_of_the_broker_reaches_every_group(registry: Registry) -> None:
    registry.put("g", "a")
    group = registry.entry("g").group
    registry.groups.shut_down()
    assert isinstance(group, RowGroup)
    assert group.is_shut_down
