"""What the nodes of a simulated cluster tell each other through the engine: ``PostgresFeed`` over rows in memory.

``Feed`` outlives the nodes: the number of each table's last change, the nodes' rows, the lock of topics. A ``SimFeed`` belongs to
one life of a node, and has the methods of the real one that send statements; those that wait are the real ones.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import psycopg

from broker.errors import Fenced, StorageError
from broker.metadata.postgres_feed import _UNTOLD_KINDS, SECRET, LivingNode, PostgresFeed
from tests.sim.catalogue import SimCatalogue, Tables
from tests.sim.engine import EngineGuard
from tests.sim.primitives import SimEvent
from tests.sim.threads import SimClock
from tests.sim.vault import Vault
from tests.sim.world import Process, World


@attrs.define
class _Row:
    epoch: int
    about: str
    applied: int


class Feed:
    """``vaults``: of the nodes, by their places."""

    def __init__(self, world: World, tables: Tables, vaults: list[Vault]) -> None:
        self.world = world
        self.rng = world.rng("feed")
        self.tables = tables
        self.vaults = vaults
        self.versions: dict[str, int] = {"": 0}
        self.topics: dict[str, int] = {}  # the number of each topic's last change
        self.rows: dict[int, _Row] = {}
        self.listening: list[_Listening] = []
        self.holder: _TopicsLock | None = None
        self.token = 0
        self.changed_at = world.now
        self.unheard = 0.0  # the probability that somebody does not hear that he was woken
        self._before = _told(tables)

    def note(self) -> bool:
        """At the end of a transaction: number what it has changed. Whether that is anything."""
        before, self._before = self._before, _told(self.tables)
        changed = [name for name in {**before, **self._before} if before.get(name) != self._before.get(name)]
        if changed:
            self.changed_at = self.world.now
            self.versions[""] += 1
            self.versions |= dict.fromkeys(changed, self.versions[""])
            topics, topics_before = self._before["topics"], before["topics"]
            names = (name for name in {**topics_before, **topics} if topics_before.get(name) != topics.get(name))
            self.topics |= dict.fromkeys(names, self.versions[""])
            self.world.note(f"  change {self.versions['']} of {changed}")
        return bool(changed)

    def living(self) -> Iterator[tuple[int, _Row]]:
        for place, row in sorted(self.rows.items()):
            vault = self.vaults[place]
            if row.epoch == vault.journal.epoch and vault.lease_until > self.world.now:
                yield place, row

    def wake(self) -> None:
        for listening in self.listening:
            if not self.unheard or self.rng.random() >= self.unheard:
                listening.heard = True

    def gone(self, process: Process) -> None:
        """The process is dead, and the engine knows."""
        self.listening = [each for each in self.listening if each.process is not process]
        if self.holder is not None and self.holder.process is process:
            self.holder = None


def _told(tables: Tables) -> dict[str, Any]:
    """What nodes are told of, as it is now."""
    told: dict[str, Any] = {
        "topics": dict(tables.topics),
        "broker_configs": {entity: dict(own) for entity, own in tables.configs.items() if own},
        "acls": dict(tables.acls),
        "credentials": dict(tables.credentials),
        "quotas": dict(tables.quotas),
    }
    for (kind, key), body in tables.documents.items():
        if f"documents/{kind}" not in _UNTOLD_KINDS:
            told.setdefault(f"documents/{kind}", {})[key] = body
    return told


class SimFeed(PostgresFeed):
    def __init__(self, feed: Feed, place: int, process: Process, epoch: int) -> None:
        self.shared = feed
        self.token = -1
        self._place = place
        self._process = process
        self._epoch = epoch
        self._vault = feed.vaults[place]
        self._clock = SimClock(process)
        self._pause = SimEvent(feed.world)

    @property
    def epoch(self) -> int:
        return self._epoch

    def versions(self) -> dict[str, int]:
        self._vault.reach(self._process)
        return dict(self.shared.versions)

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        self._vault.reach(self._process)
        return self.shared.versions[""], [name for name, version in self.shared.topics.items() if version > since]

    def living(self) -> list[LivingNode]:
        self._vault.reach(self._process)
        return [LivingNode(place, json.loads(row.about), row.applied) for place, row in self.shared.living()]

    def _is_behind(self, version: int, place: int) -> bool:
        return any(each.applied < version for each in self.living() if each.node != place)

    def secret(self) -> str:
        self._vault.reach(self._process)
        return self.shared.tables.meta[SECRET]

    def register(self, about: Mapping[str, Any], applied: int) -> None:
        self._vault.reach(self._process)
        if self._vault.journal.epoch != self._epoch:
            raise Fenced(f"Another broker has taken over: epoch {self._epoch} is over")
        self.shared.world.note(f"  node {self._place} has {applied}")
        self.shared.rows[self._place] = _Row(self._epoch, json.dumps(about), applied)

    def notify(self) -> None:
        try:
            self._vault.reach(self._process)
        except StorageError:
            return
        self.shared.wake()

    def listen(self) -> "_Listening":  # type: ignore[override]
        self._vault.reach(self._process)
        return _Listening(self.shared, self._vault, self._process)

    def end_earlier(self) -> None:
        self._vault.reach(self._process)
        holder = self.shared.holder
        if holder is not None and holder.place == self._place:
            self.shared.holder = None

    def lock_topics(self, wait_s: float) -> "_TopicsLock":  # type: ignore[override]
        shared = self.shared
        self._vault.reach(self._process)
        if not shared.world.block(self._process, "the lock of topics", lambda: shared.holder is None, wait_s):
            raise StorageError("Another node is changing topics, and has not come to an end")
        lock = shared.holder = _TopicsLock(shared, self._place, self._process)
        shared.versions[""] += 1
        shared.token += 1
        self.token = shared.token
        return lock


class _Listening:
    """The connection of a ``FeedListener``."""

    def __init__(self, feed: Feed, vault: Vault, process: Process) -> None:
        self.process = process
        self.heard = False
        self._feed = feed
        self._vault = vault
        feed.listening.append(self)

    def notifies(self, timeout: float, stop_after: int) -> Iterator[None]:
        self._feed.world.block(self.process, "an event", lambda: self.heard, timeout)
        try:
            self._vault.check_reachable(self.process)
        except StorageError as error:
            raise psycopg.OperationalError(str(error)) from error
        if self.heard:
            self.heard = False
            yield None

    def close(self) -> None:
        if self in self._feed.listening:
            self._feed.listening.remove(self)


class _TopicsLock:
    def __init__(self, feed: Feed, place: int, process: Process) -> None:
        self.place = place
        self.process = process
        self._feed = feed

    def close(self) -> None:
        if self._feed.holder is self:
            self._feed.holder = None


class NodeCatalogue(SimCatalogue):
    """The catalogue of one life of a node."""

    def __init__(self, feed: SimFeed, process: Process, guard: EngineGuard, own: Tables) -> None:
        shared = feed.shared
        super().__init__(process, shared.tables, shared.world, 0.0, guard, own)
        self._feed = feed

    def _check_topics(self) -> None:
        if self._feed.token != self._feed.shared.token:
            raise StorageError("The catalogue could not be written: another node has begun to change topics meanwhile")

    def _end(self) -> None:
        is_told = self._feed.shared.note()
        super()._end()
        if is_told:
            self._feed.notify()
