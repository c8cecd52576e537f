"""A share partition in the broker: the pure ``SharePartition`` with its lock, its log, and the sessions that fetch from it.

*Readiness.* A session does not look at all of its partitions for each fetch. It has a queue of partitions that may have records
for it (``Link.queued``). A fetch takes the first; if more can be acquired after it, the link goes to the end of the queue,
otherwise the share partition is *drained*. An append, a record that is available again, or a share partition that has room again
puts a drained share partition back into the queues of all its sessions and wakes a waiting session (``refill``). When that
session is answered, or does not want the records, it wakes the next (``wake_next``): each waiting session is asked once in a
round, in the order of their last turns. So the cost of an append depends neither on the number of a session's partitions nor on
the number of sessions that wait in vain, and no session starves.

*No wake-up is lost.* ``drained`` is set under the lock before the end of the log is read once more; an append publishes the end
of the log before it reads ``drained``.

Any thread. ``lock`` guards everything, with the exceptions noted below; under it, the only other locks are those of the log that
a reader takes. The appending processor takes it only if the share partition is drained.
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

# Ranges whose locks end in one run of the timer: some 3 ms.
_EXPIRED_MAX = 1_000
_NEVER = 1 << 62


class Waiter(Protocol):
    """A fetch that waits for records."""

    def wake(self, entry: "PartitionEntry") -> None:
        """There may be records. The fetch calls the entry's ``wake_next`` when it has looked. Any thread; must not block."""

    def give_up_soon(self) -> None:
        """The session is closed. Any thread; must not block."""


class Session(Protocol):
    """The interface of a share session to a share partition."""

    ready: "deque[Link]"  # any thread appends
    waiter: Waiter | None


class Link:
    """A share partition in a session."""

    __slots__ = ("closed", "entry", "queued", "round", "seen_end", "session")

    def __init__(self, session: Session, entry: "PartitionEntry") -> None:
        self.session = session
        self.entry = entry
        # Guarded by the entry's lock.
        self.queued = False  # in the session's queue
        self.round = 0  # of the last wake-up of the session
        self.closed = False  # the session no longer fetches from here
        self.seen_end = _NEVER  # the end of the log when there was less than the session waits for

    @property
    def was_seen(self) -> bool:
        """The session has looked and found less than it waits for."""
        return self.seen_end < _NEVER


class PartitionEntry:
    """``partition`` is None until the group's begin is known: ``share_service.py`` sets it, under the lock."""

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
        self.stored = stored  # the catalogue's row
        self.lock = Lock()
        self.partition: SharePartition | None = None
        self.pins = 0  # number of users other than sessions that need it in memory
        self.forgotten = False  # the group or the topic is deleted: the state is no longer stored
        self._links: dict[Link, None] = {}  # the session that was woken longest ago comes first
        self._drained = False
        self._somebody_wants_more = False  # a session has seen less than it waits for
        self._round = 1
        self._armed_for: float | None = None  # when the timer fires
        self._watch: int | None = None
        self._saved_version = -1

    def __repr__(self) -> str:
        return f"PartitionEntry({self.key.group_id!r}, {self.log.topic}-{self.log.partition})"

    # -- sessions -------------------------------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        """A session begins to fetch from here."""
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
        """No session fetches from here, no records are in flight, and all is stored. The lock is held."""
        if self._links or self.pins:
            return False
        partition = self.partition
        return partition is None or (partition.in_flight_count == 0 and partition.version == self._saved_version)

    # -- readiness ------------------------------------------------------------------------------------------------------

    @property
    def readable_end(self) -> int:
        """The end of the offsets that the group may read."""
        committed = self.partition is not None and self.partition.settings.reads_committed
        return self.log.last_stable_offset if committed else self.log.high_watermark

    def _has_more(self) -> bool:
        """Whether a fetch would get records, or an error."""
        partition = self.partition
        return (
            partition is None
            or self.forgotten
            or self.log.offline is not None
            or partition.can_acquire(self.readable_end)
            or self.log.log_start_offset > partition.start
        )

    def queue(self, link: Link) -> None:
        """Put the link into its session's queue. The lock is held."""
        if not link.queued and not link.closed:
            link.queued = True
            link.session.ready.append(link)

    def looked_at(self, link: Link) -> None:
        """The session has taken the link out of its queue, and the records that it could get. The lock is held."""
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
        """The waiting sessions may get more. ``always``: even if there is nothing to acquire. No lock is held."""
        with self.lock:
            if not self._drained or not (always or self._has_more()):
                return
            self._drained = False
            self._round += 1
            for link in self._links:
                self.queue(link)
        self.wake_next()

    def wake_next(self) -> None:
        """Wake a waiting session that was not woken in this round. No lock is held."""
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
        """None if all have been asked. Sessions that still wait want more: the next event begins a new round."""
        for link in self._links:
            if link.round != self._round and link.session.waiter is not None:
                return link
        self._drained = True
        return self._who_wants_more()

    def _who_wants_more(self) -> Link | None:
        """A waiting session that has not seen the present end of the log, because the event came before it waited."""
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
        """Runs on the thread that has appended, or that has deleted the topic."""
        if self._drained:
            self.refill()

    def begin(self, partition: SharePartition, stored: bytes) -> None:
        """The group begins with this state."""
        with self.lock:
            self.partition = partition
            self.stored = stored
            self._saved_version = partition.version
        self.refill()

    # -- what members do --------------------------------------------------------------------------------------------------

    def configure(self, settings: ShareSettings) -> None:
        """Apply the group's settings. The lock is held."""
        if self.partition is not None and self.partition.settings is not settings:
            self.partition.configure(settings)

    def acknowledge(
        self, member_id: str, batches: Iterable[AcknowledgementBatch], done: "Done", *, may_renew: bool
    ) -> bool:
        """Returns False if there is nothing to wait for. Otherwise ``done`` is called when the acknowledgement is durable, or
        could not be stored: then the member holds the records as before. Raises RequestError."""
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
        """Runs on the catalogue writer's thread."""
        if error is not None:
            with self.lock:
                if self.partition is not None and not self.forgotten:
                    self.partition.not_stored(member_id, epoch, finished, self._clock.monotonic())
                    self.partition.move_start(self.log.log_start_offset)
                    self.arm()
            self._store.changed(self)
        done(error)

    def member_left(self, member_id: str) -> None:
        """Make the member's records available to others."""
        self._event(lambda partition: partition.member_left(member_id))

    def undo(self, member_id: str, acquired: Iterable[AcquiredRecords]) -> None:
        """Release records that were acquired but are not sent."""
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
        """Set the timer after an acquisition. The lock is held."""
        expiry = None if self.partition is None else self.partition.next_expiry()
        if expiry is not None and (self._armed_for is None or expiry < self._armed_for):
            self._armed_for = expiry
            self._timer.at(expiry, self._lock_ended)

    def _lock_ended(self) -> None:
        """Runs on the timer's thread."""
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
        """Store the state soon."""
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
        return True  # later changes have been reported

    def settle(self, done: "Done") -> None:
        done(None)  # there is no state to keep


def ignore(_: StorageError | None) -> None:
    """The store has logged it and tries again."""
