"""The faults that are in force, in the order in which they were added, and what each of them has met.

``Faults`` belongs to whoever starts the broker, and outlives its stops and starts. A service asks it about each request that
passes (``take``); ``attach`` tells the service whether there is anything to ask. ``trigger`` has a fault happen without a
request. Any thread may call anything. The lock is not held while ``Fault.when`` is called, or a triggered fault happens.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import attrs

from broker.errors import BrokerError, ConfigError
from broker.faults.fault import Entity, Fault, Meaning, Passing, Vocabularies, Vocabulary, fault_of
from broker.runtime.clock import SystemClock
from broker.runtime.threads import Condition

# Each request is compared with all of them.
FAULTS_MAX: Final = 1000
# Of what a fault has met, the last so many are kept, and of each the first so many entities.
PASSED_MAX: Final = 1000
_ENTITIES_MAX = 100


_MACHINE = "machine"
# The kind of a fault after which the broker is restarted. To the request's service it is a ``reset``.
RESTART: Final = "restart"
# Makes a fault happen that was triggered, and returns when it is done.
CarryOut = Callable[[Fault], object]
_NOTHING: Mapping[str, CarryOut] = MappingProxyType({})


class FaultHandle:
    """A fault that was added. At the end of a ``with`` block it is removed."""

    def __init__(self, faults: "Faults", number: int, fault: Fault, meanings: Mapping[str, Meaning]) -> None:
        """``meanings``: in each protocol that the fault is about."""
        self.number = number
        self.fault = fault
        self.meanings = meanings
        self._faults = faults
        self._hits = 0
        self._matched = 0
        self._passed: deque[Passing] = deque(maxlen=PASSED_MAX)
        self._added_at = faults.monotonic()

    def __repr__(self) -> str:
        return f"<FaultHandle {self.number}, {self.hits} hits: {self.fault.as_json()}>"

    @property
    def hits(self) -> int:
        """How many requests have met the fault."""
        return self._hits

    @property
    def left(self) -> int | None:
        """How many more requests it waits for; None: any number. 0 after it was removed, and after its time."""
        if not self._faults.is_in_force(self) or self._is_over(self._age_ms()):
            return 0
        count = self.fault.count
        return None if count is None else count - self._hits

    @property
    def passed(self) -> list[Passing]:
        """The last ``PASSED_MAX`` requests that have met the fault, oldest first, each with the entities that matched."""
        with self._faults.changed:
            return list(self._passed)

    def wait(self, hits: int = 1, timeout: float = 30.0) -> None:
        """Wait until ``hits`` requests have met the fault. Raises TimeoutError after ``timeout`` s."""
        with self._faults.changed:
            if not self._faults.changed.wait_for(lambda: self._hits >= hits, timeout):
                raise TimeoutError(f"{self!r}: waited {timeout} s for {hits} hits")

    def remove(self) -> None:
        """End the fault; what it has met stays known here. Does nothing a second time."""
        self._faults.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def _age_ms(self) -> float:
        return (self._faults.monotonic() - self._added_at) * 1000

    def _is_over(self, age_ms: float) -> bool:
        """Its time has passed."""
        fault = self.fault
        return fault.for_ms is not None and age_ms >= fault.after_ms + fault.for_ms

    # With the lock of ``Faults``.

    def _take(self, passing: Passing) -> bool:
        """A request matches: whether the fault takes it."""
        fault, age_ms = self.fault, self._age_ms()
        if age_ms < fault.after_ms or self._is_over(age_ms):
            return False
        self._matched += 1
        number = self._matched - fault.skip
        if number <= 0 or not drawn(fault.seed, number) < fault.probability:
            return False
        self._hits += 1
        self._passed.append(passing)
        return True

    @property
    def _is_used_up(self) -> bool:
        return self._is_over(self._age_ms()) or (self.fault.count is not None and self._hits >= self.fault.count)


def drawn(seed: int, number: int) -> float:
    """The ``number``-th number of a seed, at least 0 and less than 1."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=6).digest()
    return int.from_bytes(digest) / 2**48


class Taken(NamedTuple):
    """The fault that a request has met, and the entities of the request that it is about."""

    fault: Fault
    entities: tuple[Entity, ...]


class Faults:
    """``add`` a fault; the first that was added and matches a request is the one that it meets."""

    def __init__(
        self,
        vocabularies: Callable[[], Mapping[str, Vocabulary]],
        restart: Callable[[], object] | None = None,
        monotonic: Callable[[], float] = SystemClock.monotonic,
    ) -> None:
        """``vocabularies``: by protocol; called for a fault, not before. ``restart`` has the broker stopped and started. It is
        called on the thread of the request that has met a ``RESTART``, and must not block."""
        self._vocabularies = vocabularies
        self._restart = restart
        self.monotonic = monotonic
        # The kinds in force that are faults of the machine. The machine looks here each time, without the lock.
        self.of_machine: frozenset[str] = frozenset()
        self.changed = Condition()
        self._added: dict[int, FaultHandle] = {}  # by number: all that were not removed
        self._in_force: tuple[FaultHandle, ...] = ()
        self._last = 0
        self._attached: list[tuple[Callable[[bool], object], Mapping[str, CarryOut]]] = []

    @property
    def vocabulary(self) -> Vocabularies:
        """What can be added."""
        return Vocabularies(self._vocabularies())

    def add(self, kind: str | Fault, **fields: Any) -> FaultHandle:
        """Add ``Fault(kind=kind, **fields)``, or a ``Fault`` as it is. Requests that arrive from now on meet it. Raises
        ConfigError for a fault that cannot be carried out, and for more than ``FAULTS_MAX``."""
        fault = kind if isinstance(kind, Fault) else fault_of({"kind": kind, **fields})
        vocabulary = self.vocabulary
        fault, meanings = vocabulary.checked(fault), vocabulary.meanings(fault)
        with self.changed:
            if len(self._added) >= FAULTS_MAX:
                raise ConfigError(f"There are {FAULTS_MAX} faults: remove some, also of those that are used up.")
            self._last += 1
            handle = FaultHandle(self, self._last, fault, meanings)
            self._added[handle.number] = handle
            self._put_in_force((*self._in_force, handle))
        return handle

    def trigger(self, kind: str | Fault, **fields: Any) -> None:
        """Have a fault that changes the broker happen now: ``trigger("rebalance", group="g")``. Returns when it is done. Raises
        ConfigError for a fault that needs a request or other fields, BrokerError where no broker runs that can do it, and if
        there is no such group, topic or transactional id. Not on a thread of the broker."""
        fault = kind if isinstance(kind, Fault) else fault_of({"kind": kind, **fields})
        fault = self.vocabulary.checked_by_hand(fault)
        with self.changed:
            able = [carry_out[fault.kind] for _, carry_out in self._attached if fault.kind in carry_out]
        if not able:
            raise BrokerError(f"No broker is running that a fault of the kind {fault.kind!r} could happen to.")
        able[0](fault)

    def list(self) -> Sequence[FaultHandle]:
        """All that were not removed, those that are used up included, in the order in which they were added."""
        with self.changed:
            return list(self._added.values())

    def get(self, number: int) -> FaultHandle | None:
        """That with this number, unless it was removed."""
        with self.changed:
            return self._added.get(number)

    def remove(self, handle: FaultHandle) -> None:
        """Does nothing if it was removed before."""
        with self.changed:
            if self._added.pop(handle.number, None) is not None:
                self._put_in_force(tuple(each for each in self._in_force if each is not handle))

    def clear(self) -> None:
        """Remove all."""
        with self.changed:
            self._added.clear()
            self._put_in_force(())

    def is_in_force(self, handle: FaultHandle) -> bool:
        """It was neither removed nor used up."""
        return handle in self._in_force

    # -- services -----------------------------------------------------------------------------------------------------

    def attach(self, callback: Callable[[bool], object], carry_out: Mapping[str, CarryOut] = _NOTHING) -> None:
        """``callback`` is called now, and when the first fault that requests may meet is added or the last one ends: whether
        there is any. It is called with the lock held. ``carry_out``: by kind, what makes a fault happen that was triggered: it
        blocks until that is done, and raises BrokerError."""
        with self.changed:
            self._attached.append((callback, carry_out))
            callback(self._may_meet_requests())

    def detach(self, callback: Callable[[bool], object]) -> None:
        """Undo ``attach``. Does nothing if that was not called."""
        with self.changed:
            self._attached = [each for each in self._attached if each[0] != callback]

    def take(self, passing: Passing) -> Taken | None:
        """The fault that this request meets: the first that matches. Faults that let requests pass meet it in any case."""
        met = None
        for handle in self._in_force:
            meaning = handle.meanings.get(passing.protocol)
            if meaning is None or (met is not None and not meaning.kind.passes):
                continue
            entities = self._met(handle, meaning, passing)
            if entities and not meaning.kind.passes:
                met = Taken(handle.fault, entities)
        if met is not None and met.fault.kind == RESTART and self._restart is not None:
            self._restart()
            return met._replace(fault=attrs.evolve(met.fault, kind="reset"))
        return met

    def meet(self, kind: str, passing: Passing) -> FaultHandle | None:
        """The first fault of this kind, one of the machine's, that takes the passing."""
        for handle in self._in_force:
            if handle.fault.kind == kind and self._met(handle, handle.meanings[passing.protocol], passing):
                return handle
        return None

    def hold(self, handle: FaultHandle, seconds: float) -> None:
        """Wait so long, or until the fault is removed."""
        with self.changed:
            self.changed.wait_for(lambda: handle.number not in self._added, seconds)

    def _met(self, handle: FaultHandle, meaning: Meaning, passing: Passing) -> tuple[Entity, ...]:
        """The entities of the request that are hit by this fault."""
        fault, (kind, not_asked) = handle.fault, meaning
        if kind.apis is not None and passing.api not in kind.apis:
            return ()
        entities = fault.matching(passing, not_asked)
        thing = kind.thing
        if thing is not None and getattr(fault, thing) is None:
            entities = tuple(entity for entity in entities if getattr(entity, thing) is not None)
        if not entities:
            return ()
        matched = attrs.evolve(passing, entities=entities[:_ENTITIES_MAX])
        if fault.when is not None and not fault.when(matched):
            return ()
        with self.changed:
            if handle not in self._in_force:  # it may have ended meanwhile
                return ()
            is_taken = handle._take(matched)
            if handle._is_used_up:
                self._put_in_force(tuple(each for each in self._in_force if each is not handle))
            if is_taken:
                self.changed.notify_all()
        return entities if is_taken else ()

    def _put_in_force(self, handles: tuple[FaultHandle, ...]) -> None:
        before, self._in_force = self._may_meet_requests(), handles
        self.of_machine = frozenset(handle.fault.kind for handle in handles if _MACHINE in handle.meanings)
        self.changed.notify_all()
        after = self._may_meet_requests()
        if before != after:
            for callback, _ in self._attached:
                callback(after)

    def _may_meet_requests(self) -> bool:
        return any(_MACHINE not in handle.meanings for handle in self._in_force)
