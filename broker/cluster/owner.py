"""The owner of the state: how a broker becomes it, how it stays it, and how it finds out that it is not any more.

``Owner.acquire`` takes the state over, at once or when the owner before has gone: when its lock is free, which is so some ms
after it was killed, or when its lease has run out, which takes some seconds and covers machines and processes that stand still.
A broker that has found the engine away gives the owner a moment to come back before it takes a free lock: the engine was
restarted, and has lost the locks of all.

From then on two threads work for it. ``lease-keeper`` renews the lease, and so does each row of the journal; it connects again
when the engine was away. ``lease-watch`` looks at the clock and calls back: ``on_suspended`` when the lease has run out,
``on_resumed`` when it was renewed after all and this broker knows what others have changed meanwhile (``known_at``),
``on_fenced`` once, when another broker has taken over. They are two, because a request to the engine may take longer than what is
left of the lease.

What a broker must not do without a lease is to answer as if it knew the newest state. What it writes needs no check here: each
transaction checks the epoch. Answers may leave for ``ANSWERS_S`` after each renewal (``Lease.answers_until``); whoever sends them
looks at the clock, so it does not matter whether this process has stood still. A standby may take over before that time is over:
the owner's session was cut, or its process was killed, which looks the same from outside. It raises the epoch at once, so that
nothing is renewed any more, and prepares itself; but ``wait_to_answer`` returns only when the owner before has fallen silent.

``broker serve --standby`` waits in ``acquire(wait=True)``, before anything of the data directory is touched.
"""

from collections.abc import Callable
from math import inf

import attrs

from broker.cluster.lease import Lease, LeaseState
from broker.errors import ConfigError, Fenced, StorageError
from broker.log import get_logger
from broker.metadata.postgres_connection import Backend
from broker.metadata.postgres_owner import OwnerRow, OwnerSession, Taken
from broker.runtime.clock import Clock
from broker.runtime.threads import Event, Lock, ThreadHandle, Threads
from broker.runtime.worker import Inbox

log = get_logger("cluster")

# What the engine writes down. Longer: a machine that dies is replaced later. Shorter: a pause of engine or network suspends.
LEASE_S = 10.0
# The owner gives its lease up so much earlier: clocks do not run alike, and connections have to be closed.
MARGIN_S = 0.5
# How long after a renewal the owner answers. Longer: a take-over after kill -9 takes as long, though to replay the journal takes
# about this time anyway. Shorter: answers wait whenever the engine is slow.
ANSWERS_S = 2.0
RENEW_S = 1.0
# The longest silence of the engine: a fraction of the lease, so that there is time for another attempt.
ANSWER_S = 3.0
# How long a standby waits for the lock in one request: within this time it notices that it should stop.
_LOCK_WAIT_S = 1.0
_SHORT_WAIT_S = 0.05
# How often the engine is tried while it is away.
_RETRY_S = 0.5
# How long a standby leaves a free lock to the owner after the engine was away for both of them.
_GRACE_S = 3.0
# How long a broker that does not stand by waits for an engine that is away when it starts.
_START_S = 60.0
# How often a state that lasts is logged.
_LOG_EVERY_S = 60.0

# How often a standby that leaves a free lock to others looks meanwhile.
_LOOK_S = 0.25
# How often the watch asks whether this broker has caught up.
_CATCH_UP_S = 0.05

Connect = Callable[[], OwnerSession]


@attrs.define
class Callbacks:
    """Called on the thread ``lease-watch``, one after the other. They must not block for long."""

    on_suspended: Callable[[], None] = lambda: None
    on_resumed: Callable[[], None] = lambda: None
    on_fenced: Callable[[str], None] = lambda _reason: None
    # Asked now and then, once the lease was renewed at this time after it had run out (Clock.monotonic() s): up to when does
    # this broker know what others have changed? The only one of its cluster knows everything.
    known_at: Callable[[float], float] = lambda _returned_at: inf


class Owner:
    """One broker's claim. ``epoch`` and ``number`` are set by ``acquire``."""

    def __init__(
        self,
        connect: Connect,
        clock: Clock,
        threads: Threads,
        *,
        holder: str,
        address: str,
        lease_s: float = LEASE_S,
        margin_s: float = MARGIN_S,
        answers_s: float = ANSWERS_S,
        renew_s: float = RENEW_S,
    ) -> None:
        """``holder`` and ``address`` say who it is to those who find the state taken."""
        self.callbacks = Callbacks()
        # For how long a standby that finds the state free leaves it to others.
        self.leaves_s: Callable[[OwnerSession], float] = lambda _session: 0.0
        self.epoch = 0
        self.number = 0  # of the journal's last row, when it was taken over
        self.answers_from = 0.0  # when the owner before has fallen silent (Clock.monotonic() s)
        self.lease = Lease(lease_s, margin_s, answers_s)
        self._connect = connect
        self._clock = clock
        self._threads = threads
        self._holder = holder
        self._address = address
        self._lease_s = lease_s
        self._answers_s = answers_s
        self._renew_s = renew_s
        self._session: OwnerSession | None = None  # of `acquire`, then of the keeper
        self._before: Backend | None = None  # of the session before
        self._known = 0  # the highest number of a row that is known to be stored
        self._lock = Lock()  # for `_known` and `_reason`
        self._reason = ""
        self._stopping = Event()
        self._watch = LeaseWatch(self.lease, clock, self._tell, self._known_at)
        self._running: list[ThreadHandle] = []

    # -- becoming the owner -------------------------------------------------------------------------------------------

    def acquire(self, wait: bool, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Become the owner. ``wait``: stand by until the owner has gone. False: ``stopped`` said so, which is asked each second.

        Raises ConfigError if it should not wait and another broker owns the state, or the engine does not come.
        """
        standing = _Standing(self._clock, may_wait=wait)
        while not stopped():
            try:
                if self._session is None:
                    self._session = self._connect()
                    standing.connected()
                taken = self._try_to_take(self._session, standing, stopped)
            except StorageError as error:
                self._drop_session()
                standing.engine_is_away(error)
                self._stopping.wait(_RETRY_S)
                continue
            if taken is not None:
                return True
        self._drop_session()
        return False

    def _try_to_take(self, session: OwnerSession, standing: "_Standing", stopped: Callable[[], bool]) -> Taken | None:
        grace_s = standing.grace_s()
        if grace_s > 0:
            self._stopping.wait(min(grace_s, _LOCK_WAIT_S))
            return None
        row = session.look()
        leaves_s = self.leaves_s(session)
        if leaves_s and standing.leaves(row, session, leaves_s):
            self._stopping.wait(_LOOK_S)
            return None
        if not standing.may_wait and row.left_s > 0 and not session.lock(0):
            self._drop_session()
            raise ConfigError(
                f"Another broker ({row.holder}, {row.address}) owns this catalogue: start this one with --standby to have it "
                "wait for its turn, or name another catalogue."
            )
        if row.left_s > 0:
            # Until then nobody need look again whether the lease was renewed.
            ends = self._clock.monotonic() + row.left_s
            while not session.lock(min(_LOCK_WAIT_S, max(_SHORT_WAIT_S, ends - self._clock.monotonic()))):
                standing.owned_by(row)
                if self._clock.monotonic() >= ends or stopped() or self.leaves_s(session):
                    return None
        elif not session.lock(0) and not _lock_of_silent_holder(session, row):
            return None
        sent_at = self._clock.monotonic()
        taken = session.take(self._holder, self._address, self._lease_s)
        self.epoch, self.number, self._known = taken.epoch, taken.number, taken.number
        now = self._clock.monotonic()
        self.lease.renewed(sent_at, now)
        self.lease.caught_up(inf, now)  # nothing was read yet
        # The last renewal was before this moment, however much of the lease is left by the server's clock.
        silent_in_s = max(0.0, min(self._answers_s, taken.left_s - (self._lease_s - self._answers_s)))
        self.answers_from = now + silent_in_s
        log.info(
            "state_taken_over",
            epoch=taken.epoch,
            number=taken.number,
            before=row.holder,
            answers_in_s=round(silent_in_s, 3),
        )
        return taken

    def wait_to_answer(self) -> None:
        """Returns when the owner before answers nothing any more: from then on this one may. For the thread that acquired it."""
        while (left_s := self.answers_from - self._clock.monotonic()) > 0 and not self._stopping.wait(left_s):
            pass

    # -- being it -----------------------------------------------------------------------------------------------------

    def start(self, on_crash: Callable[[BaseException], None]) -> None:
        """Begin to renew the lease and to call back. After ``acquire``, and after ``callbacks`` were set."""
        assert self.epoch, "not acquired"
        keeper = LeaseKeeper(self, self._renew_s, self._clock)
        self._running = [
            self._threads.spawn("lease-watch", self._watch, on_crash),
            self._threads.spawn("lease-keeper", keeper, on_crash),
        ]

    def is_leading(self) -> bool:
        """Whether it has the lease, by the clock. For any thread."""
        return self.lease.is_leading(self._clock.monotonic())

    def renewed(self, sent_at: float, number: int) -> None:
        """For any thread: a row of the journal with this number was stored, by a request that was sent at ``sent_at``."""
        with self._lock:
            self._known = max(self._known, number)
        self._renewed(sent_at)

    def lost(self, reason: str) -> None:
        """For any thread: a transaction was fenced."""
        with self._lock:
            self._reason = self._reason or reason
        if self.lease.state is not LeaseState.FENCED:
            self.lease.lost()
            self._watch.wakeup()

    def _renewed(self, sent_at: float) -> None:
        before = self.lease.state
        if self.lease.renewed(sent_at, self._clock.monotonic()) is not before:
            self._watch.wakeup()

    def _known_at(self, returned_at: float) -> float:
        return self.callbacks.known_at(returned_at)

    def _tell(self, state: LeaseState) -> None:
        """On the thread of the watch."""
        if state is LeaseState.LEADING:
            log.info("lease_resumed", epoch=self.epoch)
            self.callbacks.on_resumed()
        elif state is LeaseState.SUSPENDED:
            log.warning("lease_ran_out", epoch=self.epoch)
            self.callbacks.on_suspended()
        else:
            log.error("lease_lost", epoch=self.epoch, reason=self._reason)
            self.callbacks.on_fenced(self._reason)

    # -- the keeper's work --------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Renew the lease once, over a new connection if the last one is lost. Raises StorageError. On the keeper's thread."""
        session = self._session
        try:
            if session is None:
                session = self._session = self._connect()
                if self._before is not None:  # it may still hold the lock
                    session.end(self._before)
            with self._lock:
                known = self._known  # before the request: a row may be stored meanwhile
            sent_at = self._clock.monotonic()
            if session.renew(self.epoch, self._lease_s) < known:
                raise Fenced(
                    f"The engine has lost rows of the journal that it had stored, up to number {known}: it was restored from a "
                    "backup, or a replica that had not received them took its place"
                )
            self._renewed(sent_at)
            session.lock(0)
        except Fenced as error:
            self.lost(str(error))
        except ConfigError as error:  # of the connection: what is there instead of the engine cannot be used
            raise StorageError(str(error)) from error
        except StorageError:
            if session is None or session.is_lost:  # otherwise it still has the lock
                self._drop_session()
            raise

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._before = session.backend
            session.close()

    # -- ceasing to be it ---------------------------------------------------------------------------------------------

    def stop(self, patience_s: float = ANSWER_S) -> bool:
        """End the threads and give the state up, so that the next owner need not wait. When nothing will be written any more.
        Returns whether the threads have ended."""
        self._stopping.set()
        running, self._running = self._running, []
        for thread in running:
            thread.ask_to_stop()
        ended = all(thread.stop(patience_s) for thread in running)
        if ended:
            session = self._session
            if session is not None and self.lease.state is not LeaseState.FENCED:
                self.lease.lost()  # a thread that was left behind answers nothing any more
                try:
                    # If the owner before may still answer, the lease tells the next one that there is somebody to wait for.
                    session.release(self.epoch, lease=self._clock.monotonic() >= self.answers_from)
                except StorageError as error:
                    log.warning("lease_not_given_up", error=str(error))
            self._drop_session()
        return ended


def _lock_of_silent_holder(session: OwnerSession, row: OwnerRow) -> bool:
    """Get the lock that another session has although the lease has run out: the owner's, whose process or machine stands still,
    or that of a broker that is about to take over, which may stand still as well. Returns whether this session has it now."""
    holders = session.lock_holders()
    if row.backend not in holders and (session.lock(_LOCK_WAIT_S) or session.look().left_s > 0):
        return session.locked
    for holder in holders:
        session.end(holder)
    return session.lock(_LOCK_WAIT_S)


class LeaseKeeper:
    """The body of the thread ``lease-keeper``."""

    def __init__(self, owner: Owner, renew_s: float, clock: Clock) -> None:
        self._owner = owner
        self._renew_s = renew_s
        self._clock = clock
        self._inbox: Inbox[None] = Inbox()
        self._due = clock.monotonic()
        self._away = False

    def step(self, timeout: float | None) -> bool:
        left_s = self._due - self._clock.monotonic()
        if left_s > 0:
            self._inbox.take(left_s if timeout is None else min(timeout, left_s))
            return False
        if self._owner.lease.state is LeaseState.FENCED:  # nothing can be renewed any more
            self._due += 3600.0
            return False
        try:
            self._owner.renew()
        except StorageError as error:
            if not self._away:
                log.warning("engine_away", error=str(error))
            self._away = True
            self._due = self._clock.monotonic() + min(_RETRY_S, self._renew_s)
            return True
        if self._away:
            log.info("engine_back")
        self._away = False
        self._due = self._clock.monotonic() + self._renew_s
        return True

    def wakeup(self) -> None:
        self._inbox.wakeup()


class LeaseWatch:
    """The body of the thread ``lease-watch``: tells each change of the lease's state but RETURNING, when it comes to pass."""

    def __init__(
        self,
        lease: Lease,
        clock: Clock,
        tell: Callable[[LeaseState], None],
        known_at: Callable[[float], float],
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._tell = tell
        self._known_at = known_at
        self._told = LeaseState.LEADING
        self._inbox: Inbox[None] = Inbox()

    def step(self, timeout: float | None) -> bool:
        now = self._clock.monotonic()
        state = self._lease.look(now)
        if state is LeaseState.RETURNING:
            if self._told is LeaseState.LEADING:  # it ran out and was renewed before this thread looked
                state = LeaseState.SUSPENDED
            else:
                state = self._lease.caught_up(self._known_at(self._lease.returned_at), now)
        if state is LeaseState.RETURNING:
            timeout = _CATCH_UP_S if timeout is None else min(timeout, _CATCH_UP_S)
        elif state is not self._told:
            self._told = state
            self._tell(state)
            return True
        if state is LeaseState.LEADING:
            left_s = max(0.0, self._lease.until - now)
            timeout = left_s if timeout is None else min(timeout, left_s)
        self._inbox.take(timeout)
        return False

    def wakeup(self) -> None:
        self._inbox.wakeup()


class _Standing:
    """What a broker that waits for the state has seen, and what it has said about it."""

    def __init__(self, clock: Clock, may_wait: bool) -> None:
        self.may_wait = may_wait
        self._now = clock.monotonic
        self._began = self._now()
        self._was_away = False
        self._free_since: float | None = None
        self._connected_at = self._began
        self._said: tuple[str, float] = ("", 0.0)

    def connected(self) -> None:
        self._connected_at = self._now()

    def grace_s(self) -> float:
        """How long to leave a free lock to the owner: it has lost the engine as well, and has to connect again."""
        return self._connected_at + _GRACE_S - self._now() if self._was_away else 0.0

    def engine_is_away(self, error: StorageError) -> None:
        """Raises ConfigError if that has lasted too long for a broker that does not stand by."""
        self._was_away = True
        if not self.may_wait and self._now() > self._began + _START_S:
            raise ConfigError(f"The catalogue's database cannot be reached: {error}.") from error
        if self._says("away"):
            log.warning("waiting_for_engine", error=str(error))

    def leaves(self, row: OwnerRow, session: OwnerSession, leaves_s: float) -> bool:
        """Whether to leave it to others a little longer: it is theirs, or has not been free for long. Raises StorageError."""
        if row.left_s > 0 and session.lock_holders():
            self._free_since = None
            self.owned_by(row)
            return True
        now = self._now()
        if self._free_since is None:
            self._free_since = now
        return now < self._free_since + leaves_s

    def owned_by(self, row: OwnerRow) -> None:
        if self._says(f"owner {row.epoch}"):
            log.info("standing_by", holder=row.holder, address=row.address, epoch=row.epoch)

    def _says(self, what: str) -> bool:
        """Whether it is time to say this, again or for the first time."""
        before, said_at = self._said
        if what == before and (what != "away" or self._now() < said_at + _LOG_EVERY_S):
            return False
        self._said = what, self._now()
        return True
