"""One share partition of the broker: the pure one with its lock, the log that it reads, and the sessions that fetch from it.

*Readiness.* A session does not look at all of its partitions for each fetch. It has a queue of those that may have something for
it (``Link.queued``). A fetch takes the first out; if something can still be acquired after it, the link goes to the end of the
queue, and otherwise the share partition is *drained*. An append, a record that is available again, and a share partition that
has room again put a drained one back into the queues of all its sessions, and wake one that waits (``refill``). When that
session is answered, or does not want what there is, it wakes the next (``wake_next``): each waiting session is asked once in a
round, the one that was asked longest ago first. So what an append costs depends neither on the partitions of a session nor on
the sessions that wait in vain, and no session starves.

*No wake-up is lost.* ``drained`` is set under the lock, and then the end of the log is looked at once more; who appends publishes
the end of the log before it looks at ``drained``.

Any thread. ``lock`` guards everything but what is said otherwise; under it, no other lock is taken but those of the log that a
reader takes. The processor that appends takes it only if the share partition is drained.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.errors import RequestError, StorageError
from broker.kafka.share.share_partition import Finished, Outcome, SharePartition, ShareSettings
from broker.kafka.share.share_store import Key, ShareStore, state_of
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.storage.log.log import Log
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import AcknowledgementBatch, AcquiredRecords

if TYPE_CHECKING:
    from broker.metadata.writer import Done

# Ranges whose locks end in one go of the timer: some 3 ms.
_EXPIRED_MAX = 1_000
_NEVER = 1 << 62


class Waiter(Protocol):
    """A fetch that waits."""

    def wake(self, entry: "PartitionEntry") -> None:
        """Something may be there to be acquired. It calls the entry's ``wake_next`` when it has looked. Any thread; must not
        block."""

    def give_up_soon(self) -> None:
        """The session is closed. Any thread; must not block."""


class Session(Protocol):
    """What a share partition knows of a share session."""

    ready: "deque[Link]"  # any thread appends
    waiter: Waiter | None


class Link:
    """One share partition in one session."""

    __slots__ = ("closed", "entry", "queued", "round", "seen_end", "session")

    def __init__(self, session: Session, entry: "PartitionEntry") -> None:
        self.session = session
        self.entry = entry
        # Guarded by the entry's lock.
        self.queued = False  # it is in the session's queue
        self.round = 0  # in which the session was last woken
        self.closed = False  # the session does not fetch from here any more
        self.seen_end = _NEVER  # the end of the log when there was less than the session waits for

    @property
    def was_seen(self) -> bool:
        """The session has looked, and there was less than it waits for."""
        return self.seen_end < _NEVER


class PartitionEntry:
    """``partition`` is None until it is known where the group begins: ``share_service.py`` sets it, under the lock."""

    __slots__ = (
        "_armed_for",
        "_clock",
        "_drained",
        "_links",
        "_round",
        "_saved_version",
        "_somebody_wants_more",
        "_store",
        "_timer",
        "_unload",
        "_watch",
        "forgotten",
        "key",
        "lock",
        "log",
        "partition",
        "pins",
        "stored",
    )

    def __init__(
        self,
        key: Key,
        log: Log,
        clock: Clock,
        timer: Timer,
        store: ShareStore,
        stored: bytes | None,
        unload: "Callable[[PartitionEntry], object]",
    ) -> None:
        """``unload`` is called when nobody fetches from here and everything is stored."""
        self.key = key
        self.log = log
        self._clock = clock
        self._timer = timer
        self._store = store
        self._unload = unload
        self.stored = stored  # as the catalogue has it
        self.lock = Lock()
        self.partition: SharePartition | None = None
        self.pins = 0  # who needs it in memory, besides sessions
        self.forgotten = False  # the group or the topic is deleted: it is not stored any more
        self._links: dict[Link, None] = {}  # the session that was woken longest ago comes first
        self._drained = False
        self._somebody_wants_more = False  # a session has seen less than it waits for
        self._round = 1
        self._armed_for: float | None = None  # when the timer calls
        self._watch: int | None = None
        self._saved_version = -1

    def __repr__(self) -> str:
        return f"PartitionEntry({self.key.group_id!r}, {self.log.topic}-{self.log.partition})"

    # -- sessions -------------------------------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        """A session fetches from here."""
        with self.lock:
            self._links[link] = None
            self.queue(link)
            if self._watch is None:
                self._watch = self.log.watch(self._log_changed)

    def detach(self, link: Link) -> None:
        with self.lock:
            link.closed = True
            self._links.pop(link, None)
            if not self._links and self._watch is not None:
                self.log.unwatch(self._watch)
                self._watch = None

    @property
    def is_unused(self) -> bool:
        """No session fetches from here, nobody holds anything, and all is stored. The lock is held."""
        if self._links or self.pins:
            return False
        partition = self.partition
        return partition is None or (partition.in_flight_count == 0 and partition.version == self._saved_version)

    # -- readiness ------------------------------------------------------------------------------------------------------

    @property
    def readable_end(self) -> int:
        """The end of what the group may read."""
        committed = self.partition is not None and self.partition.settings.reads_committed
        return self.log.last_stable_offset if committed else self.log.high_watermark

    def _has_more(self) -> bool:
        """A fetch would find something, or an error."""
        partition = self.partition
        return (
            partition is None
            or self.forgotten
            or self.log.offline is not None
            or partition.can_acquire(self.readable_end)
            or self.log.log_start_offset > partition.start
        )

    def queue(self, link: Link) -> None:
        """The lock is held."""
        if not link.queued and not link.closed:
            link.queued = True
            link.session.ready.append(link)

    def looked_at(self, link: Link) -> None:
        """The session has taken the link out of its queue and what it could from here. The lock is held."""
        link.seen_end = _NEVER
        link.queued = False
        if not self._has_more():
            self._drained = True
            if not self._has_more():
                return
            self._drained = False
        self.queue(link)

    def unwanted(self, link: Link, seen_end: int) -> None:
        """The session waits for more than there was when the log ended at ``seen_end``. It keeps its place in the queue."""
        with self.lock:
            link.queued = False
            self.queue(link)
            link.seen_end = seen_end
            self._somebody_wants_more = True

    def refill(self, *, always: bool = False) -> None:
        """Something may have changed for the sessions that wait. ``always``: even if there is nothing to acquire. No lock is
        held."""
        with self.lock:
            if not self._drained or not (always or self._has_more()):
                return
            self._drained = False
            self._round += 1
            for link in self._links:
                self.queue(link)
        self.wake_next()

    def wake_next(self) -> None:
        """Wake a session that waits and was not woken in this round. No lock is held."""
        with self.lock:
            link = self._who_wants_more() if self._drained else self._next_to_wake()
            if link is None:
                return
            waiter = link.session.waiter
            link.round = self._round
            del self._links[link]
            self._links[link] = None
        if waiter is not None:
            waiter.wake(self)

    def _next_to_wake(self) -> Link | None:
        """None: all have been asked. Those that still wait want more than there is: the next event begins a new round."""
        for link in self._links:
            if link.round != self._round and link.session.waiter is not None:
                return link
        self._drained = True
        return self._who_wants_more()

    def _who_wants_more(self) -> Link | None:
        """A session that waits, and has not seen the end of the log as it is now: the event came before it waited."""
        if self._somebody_wants_more:
            end = self.readable_end
            self._somebody_wants_more = False
            for link in self._links:
                if link.seen_end < end and link.session.waiter is not None:
                    self._drained, self._somebody_wants_more = False, True
                    self._round += 1
                    return link
                self._somebody_wants_more = self._somebody_wants_more or link.seen_end < _NEVER
        return None

    def _log_changed(self) -> None:
        """On the thread that has appended, or that has deleted the topic."""
        if self._drained:
            self.refill()

    def begin(self, partition: SharePartition, stored: bytes) -> None:
        """It is known where the group begins."""
        with self.lock:
            self.partition = partition
            self.stored = stored
            self._saved_version = partition.version
        self.refill()

    # -- what members do --------------------------------------------------------------------------------------------------

    def configure(self, settings: ShareSettings) -> None:
        """The lock is held."""
        if self.partition is not None and self.partition.settings is not settings:
            self.partition.configure(settings)

    def acknowledge(
        self, member_id: str, batches: Iterable[AcknowledgementBatch], done: "Done", *, may_renew: bool
    ) -> bool:
        """False: there is nothing to wait for; otherwise ``done`` is called when it is durable, or could not be stored: then the
        member has the records as before. Raises RequestError."""
        with self.lock:
            partition = self.partition
            if partition is None:  # the group has not begun here, so nobody holds anything
                raise RequestError(ErrorCode.invalid_record_state, "The member does not hold all of these records.")
            outcome = partition.acknowledge(member_id, batches, self._clock.monotonic(), may_renew=may_renew)
            epoch = partition.state_epoch
        if outcome.durable:
            self._store.save(self, partial(self._acknowledged, member_id, epoch, outcome.finished, done))
        if outcome.available and self._drained:
            self.refill()
        return outcome.durable

    def _acknowledged(
        self, member_id: str, epoch: int, finished: Sequence[Finished], done: "Done", error: StorageError | None
    ) -> None:
        """On the catalogue writer's thread."""
        if error is not None:
            with self.lock:
                if self.partition is not None and not self.forgotten:
                    self.partition.not_stored(member_id, epoch, finished, self._clock.monotonic())
                    self.partition.move_start(self.log.log_start_offset)
                    self.arm()
            self._store.changed(self)
        done(error)

    def member_left(self, member_id: str) -> None:
        """What it holds goes to others."""
        self._event(lambda partition: partition.member_left(member_id))

    def undo(self, member_id: str, acquired: Iterable[AcquiredRecords]) -> None:
        """What has just been acquired is not sent."""
        with self.lock:
            if self.partition is not None:
                self.partition.undo(member_id, acquired)
        self.refill()

    def _event(self, happen: Callable[[SharePartition], Outcome]) -> None:
        with self.lock:
            if self.partition is None:
                return
            outcome = happen(self.partition)
        if outcome.durable:
            self._store.changed(self)
        if outcome.available:
            self.refill()

    # -- locks ----------------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Something was acquired. The lock is held."""
        expiry = None if self.partition is None else self.partition.next_expiry()
        if expiry is not None and (self._armed_for is None or expiry < self._armed_for):
            self._armed_for = expiry
            self._timer.at(expiry, self._lock_ended)

    def _lock_ended(self) -> None:
        """On the timer's thread."""
        now = self._clock.monotonic()
        with self.lock:
            if self._armed_for is None or self._armed_for > now:
                return  # an older timer
            self._armed_for = None
            if self.partition is None:
                return
            outcome = self.partition.expire(now, _EXPIRED_MAX)
            self.arm()
        if outcome.durable:
            self._store.changed(self)
            self.refill()

    # -- storing ----------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Store it soon."""
        self._store.changed(self)

    def save(self, done: "Done") -> None:
        self._store.save(self, done)

    def state(self) -> tuple[int, bytes] | None:
        with self.lock:
            if self.forgotten or self.partition is None:
                return None
            version, state = self.partition.version, state_of(self.partition)
        return version, state.encode()

    def saved(self, version: int, state: bytes) -> bool:
        with self.lock:
            self.stored = state
            self._saved_version = version
            unused = self.is_unused
        if unused:
            self._unload(self)
        return True  # whatever has changed meanwhile has been reported

    def settle(self, done: "Done") -> None:
        done(None)  # nothing of it is kept


def ignore(_: StorageError | None) -> None:
    """The store has logged it and tries again."""
