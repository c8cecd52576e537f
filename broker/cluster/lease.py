"""The owner's lease as the owner sees it: whether it may lead. Pure; it knows no engine and no thread.

| state | meaning |
|---|---|
| LEADING | The lease was renewed, and by this machine's clock it has not run out. |
| SUSPENDED | It has run out, and nobody is known to have taken it. Another broker may do so now, or may have done so. |
| RETURNING | It was renewed after it had run out. Other nodes may have changed what it has in memory, and did not wait for it. |
| FENCED | Another owner has taken it: this broker may change nothing any more, and stops. |

`_ROWS` has the transitions. A lease may be renewed after it ran out, with the same epoch: nobody came in between. It leads again
when it knows what others have changed, by a look that began after that renewal (``caught_up``). An answer that says "renewed"
may be read after another one that says "lost"; so nothing ends FENCED.

The lease counts from *before* the request that renews it is sent, on the holder's monotonic clock: the database writes down a
time that is later. And the holder gives it up ``margin_s`` early, as clocks do not run alike and to stop leading takes a
moment. A process that was stopped for a minute finds its lease run out at its first look at the clock; one whose whole machine
was stopped, clock included, may not. It can do no harm either: what it writes is fenced by the transaction that writes.

*Answers* may leave for a shorter time after each renewal, ``answers_s``. A take-over ends the renewals, and the new owner
answers nothing until so much time has passed since the last one. So when the old owner shows its state for the last time, nobody
has seen a newer one, whatever became of the old owner's connections, and whether or not it ran meanwhile.

``is_leading`` (whether it has the lease) and ``answers_until`` are for any thread, and cost a comparison: they depend on the
time, not on whether somebody has noticed that the time has come. The other methods are for any thread, too: renewals come from
the keeper and from flushes.
"""

from collections.abc import Callable
from enum import Enum, auto
from math import inf

from broker.runtime.threads import Lock
from broker.transitions import Transitions


class LeaseState(Enum):
    LEADING = auto()
    SUSPENDED = auto()
    RETURNING = auto()
    FENCED = auto()


class LeaseEvent(Enum):
    RENEWED = auto()
    CAUGHT_UP = auto()
    RAN_OUT = auto()
    LOST = auto()


_ROWS = """
LEADING    RENEWED    LEADING
LEADING    CAUGHT_UP  LEADING
LEADING    RAN_OUT    SUSPENDED  the engine did not answer in time, or this process did not run
LEADING    LOST       FENCED
SUSPENDED  RENEWED    RETURNING  with the same epoch: nobody came in between
SUSPENDED  CAUGHT_UP  SUSPENDED  too late: it has run out again
SUSPENDED  RAN_OUT    SUSPENDED  by a renewal that took longer than the lease
SUSPENDED  LOST       FENCED
RETURNING  RENEWED    RETURNING
RETURNING  CAUGHT_UP  LEADING
RETURNING  RAN_OUT    SUSPENDED
RETURNING  LOST       FENCED
FENCED     RENEWED    FENCED     an answer from before, read late
FENCED     CAUGHT_UP  FENCED
FENCED     RAN_OUT    FENCED
FENCED     LOST       FENCED
"""

TABLE = Transitions(LeaseState, LeaseEvent, _ROWS)

# The holder counts so much less of ``answers_s`` than those who wait for it: clocks do not run alike.
_DRIFT = 0.05


class Lease:
    """Begins SUSPENDED. Times are ``Clock.monotonic()`` s."""

    def __init__(self, duration_s: float, margin_s: float, answers_s: float) -> None:
        """``duration_s``: what the database writes down. ``answers_s``: how long after a renewal it may answer."""
        assert 0 <= margin_s < duration_s, (duration_s, margin_s)
        assert 0 < answers_s <= duration_s - margin_s, (duration_s, margin_s, answers_s)
        self.state = LeaseState.SUSPENDED
        # Before this time it has the lease: one attribute, so that `is_leading` needs no lock.
        self.until = -inf
        # Before this time answers may leave.
        self.answers_until = -inf
        # When it was renewed after it had run out.
        self.returned_at = -inf
        self._sent_at = -inf  # the latest request that has renewed it
        self._held_s = duration_s - margin_s
        self._answers_s = answers_s * (1 - _DRIFT)
        self._waiting: list[Callable[[], None]] = []
        self._lock = Lock()

    def is_leading(self, now: float) -> bool:
        return now < self.until

    def renewed(self, sent_at: float, now: float) -> LeaseState:
        """The database has renewed the lease, by a request that was sent at ``sent_at``."""
        with self._lock:
            if now >= self.until:  # perhaps nobody has noticed
                self._after(LeaseEvent.RAN_OUT)
            if self.state is not LeaseState.FENCED:
                # Answers may come in another order than the requests were sent in.
                self._sent_at = max(self._sent_at, sent_at)
                self.until = self._sent_at + self._held_s
            if now < self.until:
                if self.state is LeaseState.SUSPENDED:
                    self.returned_at = now
                self._after(LeaseEvent.RENEWED)
        return self._let_answer(now)

    def caught_up(self, known_at: float, now: float) -> LeaseState:
        """This broker knows what others had changed at ``known_at``."""
        with self._lock:
            if self.returned_at < known_at and now < self.until:
                self._after(LeaseEvent.CAUGHT_UP)
        return self._let_answer(now)

    def _let_answer(self, now: float) -> LeaseState:
        """Tell those who wait that they may, if they may."""
        with self._lock:
            state = self.state
            if state is LeaseState.LEADING:
                self.answers_until = self._sent_at + self._answers_s
            waiting = self._waiting if now < self.answers_until else []
            if waiting:
                self._waiting = []
        for then in waiting:
            then()
        return state

    def when_renewed(self, now: float, then: Callable[[], None]) -> bool:
        """Answers have to wait: have ``then`` called when they may leave, on the thread that brings this about. It must not
        block. False, and it is not called: they may leave now. Once the lease is lost, it is never called."""
        with self._lock:
            if now < self.answers_until:
                return False
            self._waiting.append(then)
            return True

    def lost(self) -> LeaseState:
        """Another owner has it."""
        with self._lock:
            self.until = self.answers_until = -inf
            self._waiting = []
            return self._after(LeaseEvent.LOST)

    def look(self, now: float) -> LeaseState:
        """The state at this time."""
        with self._lock:
            return self.state if now < self.until else self._after(LeaseEvent.RAN_OUT)

    def _after(self, event: LeaseEvent) -> LeaseState:
        self.state = TABLE.next(self.state, event)
        return self.state
