"""What one life of the broker sees of the vault: an ``Engine`` for ``broker.server.durable``, with the real ``Owner``.

Each call takes time, in which the other threads go on and the broker may be killed, before and after it takes effect. The epoch
is checked in the moment of the change, as PostgreSQL does it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from broker.cluster.owner import Owner
from broker.config import BrokerConfig
from broker.errors import Fenced, StorageError, UnknownOutcome
from broker.metadata.catalogue import Catalogue
from broker.metadata.journal import Journal, JournalRow
from broker.metadata.postgres_connection import Backend
from broker.metadata.postgres_owner import OwnerRow, Taken
from broker.runtime import Runtime
from broker.runtime.disk import Buffer
from broker.runtime.objects import (
    ObjectError,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    check_key,
    check_prefix,
    check_range,
    joined,
    too_short,
)
from tests.sim.catalogue import SimCatalogue
from tests.sim.journal import MemoryJournal
from tests.sim.vault import Vault
from tests.sim.world import Killed, Process

# Shorter than the real one, so that more take-overs have their end in a simulation.
LEASE_S = 3.0
ANSWERS_S = 1.0


class SimEngine:
    """``Engine``."""

    readers = 0
    feed: Any = None  # of one of several nodes
    database: Any = None  # of which only administrators ask more than the catalogue has

    def __init__(self, vault: Vault, process: Process, owner: Owner, catalogue_error: Callable[[], float]) -> None:
        self.owner = owner
        self.catalogue: Catalogue = SimCatalogue(
            process, vault.tables, vault.world, 0.0, EngineGuard(vault, process, owner.epoch, catalogue_error)
        )
        self.journal: Journal = SimJournal(vault, process, owner)
        self.objects: ObjectStore = SimObjects(vault, process)
        self.limits = vault.limits

    def close(self) -> bool:
        return self.owner.stop()


def open_engine(
    vault: Vault,
    process: Process,
    catalogue_error: Callable[[], float],
    config: BrokerConfig,
    runtime: Runtime,
    stopped: Callable[[], bool],
) -> SimEngine | None:
    def connect() -> Any:
        return SimOwnerSession(vault, process)

    owner = Owner(
        connect,
        runtime.clock,
        runtime.threads,
        holder=f"process {process.number}",
        address="127.0.0.1",
        lease_s=LEASE_S,
        margin_s=LEASE_S / 10,
        answers_s=ANSWERS_S,
        renew_s=ANSWERS_S / 2,
    )
    if not owner.acquire(config.standby, stopped):
        return None
    return SimEngine(vault, process, owner, catalogue_error)


class EngineGuard:
    """Of the catalogue: whether it can be reached, and is still this broker's."""

    def __init__(self, vault: Vault, process: Process, epoch: int, error: Callable[[], float]) -> None:
        self._error = error
        self._vault = vault
        self._process = process
        self._epoch = epoch

    def read(self) -> None:
        self._vault.check_reachable(self._process)

    def change(self) -> None:
        self._vault.check_reachable(self._process)
        if self._vault.journal.epoch != self._epoch:
            raise Fenced(f"Another broker has taken over: epoch {self._epoch} is over")
        error, rng = self._error(), self._vault.rng
        if error and rng.random() < error:
            raise StorageError("The catalogue could not be written.")
        if self._is_unknown():
            raise UnknownOutcome("The catalogue was perhaps written, and was not.")

    def changed(self) -> None:
        if self._is_unknown():
            raise UnknownOutcome("The catalogue was perhaps written, and was.")

    def _is_unknown(self) -> bool:
        unknown = self._vault.faults.unknown
        return bool(unknown) and self._vault.rng.random() < unknown / 4


class SimOwnerSession:
    """``OwnerSession``."""

    def __init__(self, vault: Vault, process: Process) -> None:
        self.process = process
        self.ended = False
        self._vault = vault
        self._world = vault.world
        vault.reach(process)
        self.backend = Backend(self._world.next_descriptor(), "")
        vault.sessions.append(self)

    @property
    def is_lost(self) -> bool:
        return self.ended

    @property
    def locked(self) -> bool:
        return self._vault.lock_holder is self

    def _reach(self) -> None:
        self._vault.reach(self.process)
        if self.ended:
            raise StorageError("The session was ended.")

    def look(self) -> OwnerRow:
        self._reach()
        vault = self._vault
        session = vault.owner_session
        left_s = max(0.0, vault.lease_until - self._world.now)
        backend = None if session is None else session.backend
        return OwnerRow(vault.journal.epoch, vault.journal.number, "another", "there", left_s, backend)

    def lock(self, timeout_s: float) -> bool:
        if self.locked:
            return True
        self._reach()
        vault = self._vault
        if vault.lock_holder is not None and timeout_s > 0:
            self._world.block(self.process, "time", lambda: vault.lock_holder is None or self.ended, timeout_s)
            self._vault.check_reachable(self.process)
            if self.ended:
                raise StorageError("The session was ended.")
        if vault.lock_holder is None:
            vault.lock_holder = self
        return self.locked

    def lock_holders(self) -> list[Backend]:
        self._reach()
        holder = self._vault.lock_holder
        return [] if holder is None or holder is self else [holder.backend]

    def end(self, backend: Backend) -> None:
        self._reach()
        for session in [each for each in self._vault.sessions if each.backend == backend]:
            self._vault.end_session(session)

    def take(self, holder: str, address: str, lease_s: float) -> Taken:
        self._reach()
        assert self.locked
        vault = self._vault
        left_s = max(0.0, vault.lease_until - self._world.now)
        vault.journal.take_over()
        vault.lease_until = self._world.now + lease_s
        vault.owner_session = self
        self._world.note(f"  taken over: epoch {vault.journal.epoch}, row {vault.journal.number}")
        taken = Taken(vault.journal.epoch, vault.journal.number, left_s)
        self._answer()
        return taken

    def renew(self, epoch: int, lease_s: float) -> int:
        self._reach()
        vault = self._vault
        vault.journal.settle()
        if vault.journal.epoch != epoch:
            raise Fenced(f"Another broker has taken over: epoch {epoch} is over")
        vault.lease_until = max(vault.lease_until, self._world.now + lease_s)
        vault.owner_session = self
        number = vault.journal.number
        self._answer()
        return number

    def release(self, epoch: int, *, lease: bool) -> None:
        self._reach()
        if lease and self._vault.journal.epoch == epoch:
            self._vault.lease_until = 0.0
        if self.locked:
            self._vault.lock_holder = None

    def close(self) -> None:
        self._vault.end_session(self)

    def _answer(self) -> None:
        """It is done, and the answer may be late or lost."""
        vault = self._vault
        vault.world.yield_point(self.process)
        if vault.faults.unknown and vault.rng.random() < vault.faults.unknown:
            raise StorageError("The connection was lost.")


class SimJournal:
    """``Journal``."""

    def __init__(self, vault: Vault, process: Process, owner: Owner) -> None:
        self._vault = vault
        self._process = process
        self._owner = owner
        self._memory = MemoryJournal(vault.journal, owner.epoch)

    def append(self, rows: Sequence[JournalRow]) -> None:
        world, vault, owner = self._vault.world, self._vault, self._owner
        sent_at = world.now
        try:
            vault.reach(self._process)
        except StorageError as error:
            if self._memory.is_unsure:
                raise UnknownOutcome(str(error)) from error
            raise
        try:
            self._memory.append(rows)
        except Fenced as error:
            owner.lost(str(error))
            raise
        vault.lease_until = max(vault.lease_until, world.now + LEASE_S)
        world.yield_point(self._process)
        owner.renewed(sent_at, rows[-1].number)

    def read(self, after: int) -> Iterator[JournalRow]:
        self._vault.reach(self._process)
        for row in self._memory.read(after):
            yield row
            self._vault.world.yield_point(self._process)

    def remove(self, upto: int) -> None:
        self._vault.reach(self._process)
        self._memory.remove(upto)
        self._vault.removed(upto)
        self._vault.world.yield_point(self._process)

    def last(self) -> int:
        self._vault.reach(self._process)
        return self._memory.last()


class SimObjects:
    """``ObjectStore``."""

    def __init__(self, vault: Vault, process: Process) -> None:
        self.name = "sim://"
        self._vault = vault
        self._process = process

    def _wait(self) -> None:
        vault, rng = self._vault, self._vault.rng
        most = vault.faults.store_slow_most_s
        seconds = rng.choice((0.001, 0.02, 0.1)) * rng.random()
        if most and rng.random() < 0.3:
            seconds += rng.random() * most
        vault.world.wait_for_disk(self._process, seconds)
        vault.settle()

    def _fails(self) -> bool:
        faults = self._vault.faults
        return bool(faults.store_error) and self._vault.rng.random() < faults.store_error

    def _error(self, operation: str, key: str) -> ObjectError:
        self._vault.world.note(f"  store fails: {operation} {key}")
        return ObjectError(operation, key, self.name, "no answer")

    def put(self, key: str, parts: Iterable[Buffer], size: int, *, create: bool = False) -> None:
        check_key(key)
        data = joined(parts, size)
        vault = self._vault
        if create and vault.objects.get(key, data) != data:
            raise ObjectExists(key, self.name)
        try:
            self._wait()
        except Killed:
            if vault.rng.random() < 0.3:  # it was on its way
                vault.put_late(key, data)
            raise
        if self._fails():
            fate = vault.rng.randrange(3)
            if fate == 0:
                vault.put(key, data)
            elif fate == 1:
                vault.put_late(key, data)
            raise self._error("put", key)
        vault.put(key, data)
        vault.world.yield_point(self._process)

    def get(self, key: str, offset: int, size: int) -> bytes:
        check_key(key)
        check_range(offset, size)
        if not size:
            return b""
        self._wait()
        if self._fails():
            raise self._error("get", key)
        data = self._find("get", key)[offset : offset + size]
        if len(data) < size:
            raise too_short(key, self.name, offset, size)
        return data

    def size(self, key: str) -> int:
        check_key(key)
        self._wait()
        return len(self._find("size of", key))

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        prefix = check_prefix(prefix)
        self._wait()
        start = prefix and prefix + "/"
        return iter([(key, len(data)) for key, data in self._vault.objects.items() if key.startswith(start)])

    def delete(self, keys: Iterable[str]) -> None:
        gone = list(keys)
        self._wait()
        if self._fails():
            if self._vault.rng.random() < 0.5:
                self._vault.delete(gone)
            raise self._error("delete", gone[0] if gone else "")
        self._vault.delete(gone)
        self._vault.world.yield_point(self._process)

    def _find(self, operation: str, key: str) -> bytes:
        data = self._vault.objects.get(key)
        if data is None:
            raise ObjectMissing(operation, key, self.name)
        return data
