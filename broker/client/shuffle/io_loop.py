"""The I/O thread of all writers and gates of a process, and the liveness check of their peers.

The thread owns the poller and all connections; no other thread touches a socket. Other threads reach it by ``call``.
Its body is ``step``, so a simulator can run it without a thread. The thread runs while there is a lease; the last
``release`` ends it.

An error on this thread belongs to the connection that was ready, or to the object with the called method. The loop
passes it to that object's ``abandon`` and continues. Only an error that belongs to no such object ends the loop.

A forked child has no such thread, and its copies of the sockets and of the poller still refer to the parent's
connections. So the child closes its copies at once and sends nothing; using an object of the parent there raises
LocalTransportError or ShuffleClosedError. Objects that the child makes use a loop of its own.

``Liveness`` decides whether the peer of a connection still answers. Pure: the caller calls ``look`` regularly with the
time.

A peer that is suspended or has lost power does not close its connections, and TCP may keep them open forever. So a peer counts
as dead after it has been silent for some time, but only while an answer is expected:

    silent for, while an answer is expected     verdict
    less than a third of ``silence_max_s``      FINE
    longer                                      ASK, once; a working peer answers at once, even while it waits itself
    ``silence_max_s``                           DEAD

If a call of ``look`` comes late, this process was suspended, so that time does not count.
"""

import heapq
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import NoReturn, Protocol, runtime_checkable

from broker.client.shuffle.errors import LocalTransportError, of_another_process
from broker.runtime import Runtime, forks, system_runtime
from broker.runtime.poller import Poller
from broker.runtime.process import keep_freed_memory
from broker.runtime.threads import Event, Lock, ThreadHandle

# Eight buffers of 32 KiB in one read, which still fit into a processor's second-level cache.
RECEIVE_BYTES = 256 * 1024
# Memory of payloads that the user has dropped, kept for new ones. Payloads are allocated one by one, and the kernel
# would clear new pages for each, which took a third of a reader's CPU time at 32 KiB. More than a few channels hold at
# a time.
_KEPT_BYTES = 8 * 1024 * 1024
# How long the last ``release`` waits for the thread to end.
_STOP_S = 10.0

Callback = Callable[[], None]


class Dirty(Protocol):
    """An object that has collected output for the end of the step."""

    def flush(self) -> None: ...


@runtime_checkable
class Abandonable(Protocol):
    """An object that takes the errors of its methods on the I/O thread."""

    def abandon(self, error: Exception) -> None:
        """One of its methods has raised ``error``, or the loop has ended. Called on the I/O thread."""


class Watched(Abandonable, Protocol):
    """An object that owns a registered socket."""

    def ready(self, events: int) -> None: ...

    def forget(self) -> None:
        """Close this process's copy of the socket and do nothing else. Called in a forked child."""


class _NoPoller:
    """Replaces the parent's poller in a forked child."""

    def wakeup(self) -> None:
        pass

    def close(self) -> None:
        pass

    forked = close

    def _refuse(self, *_: object) -> NoReturn:
        raise LocalTransportError("a forked child has no connections")

    register = modify = unregister = arm = poll = _refuse


class Timer:
    """A callback that the loop runs at a deadline, unless it is cancelled."""

    __slots__ = ("callback", "deadline")

    def __init__(self, deadline: float, callback: Callback) -> None:
        self.deadline = deadline
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: "Timer") -> bool:
        return self.deadline < other.deadline


class IoLoop:
    """The body of the I/O thread. Any thread may use ``call`` and ``wakeup``; the rest is for the I/O thread only."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.poller: Poller = runtime.new_poller()
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.watched: set[Watched] = set()
        # Connections that several gates share, by address, generation, buffer size and TLS settings; see partition_client.py.
        self.clients: dict[object, object] = {}
        self.crashed: Exception | None = None
        self._now = runtime.clock.monotonic
        self._calls: deque[Callback] = deque()
        self._timers: list[Timer] = []
        self._dirty: list[Dirty] = []
        forks.tell(self)

    def now(self) -> float:
        return self._now()

    def wakeup(self) -> None:
        """End the wait of the current step. May be called from any thread."""
        self.poller.wakeup()

    def call(self, callback: Callback) -> None:
        """Have the I/O thread run this soon, in the order of the calls. May be called from any thread."""
        self._calls.append(callback)
        self.poller.wakeup()

    def at(self, deadline: float, callback: Callback) -> Timer:
        """Run ``callback`` at ``deadline`` (monotonic, s) or soon after it."""
        timer = Timer(deadline, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def flush_later(self, dirty: Dirty) -> None:
        """Call ``dirty.flush`` once at the end of this step."""
        self._dirty.append(dirty)

    def step(self, timeout: float | None) -> bool:
        """Wait for work for at most ``timeout`` s, and do it. Returns whether there was any."""
        self.poller.arm()
        done = False
        for key, events in self.poller.poll(self._patience(timeout)):
            try:
                key.data.ready(events)
            except Exception as error:  # it belongs to one connection, and the thread serves the others
                key.data.abandon(error)
            done = True
        calls = self._calls
        for _ in range(len(calls)):  # calls that are added meanwhile wait for the next step
            self._run(calls.popleft())
            done = True
        timers = self._timers
        while timers and (timers[0].callback is None or timers[0].deadline <= self._now()):
            callback = heapq.heappop(timers).callback
            if callback is not None:
                self._run(callback)
                done = True
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for output in dirty:
                self._run(output.flush)
        return done

    def _run(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:  # as above
            method = callback.func if isinstance(callback, partial) else callback
            owner = getattr(method, "__self__", None)
            if not isinstance(owner, Abandonable):
                raise
            owner.abandon(error)

    def forked(self) -> None:
        """Close the child's copies of sockets and poller. Called in a forked child before any other code of the client."""
        self.crashed = of_another_process()
        self._calls = deque()
        self._timers, self._dirty = [], []
        watched, self.watched = self.watched, set()
        self.clients = {}
        # They are closed and not unregistered, because that would change the parent's poller.
        for connection in watched:
            connection.forget()
        poller, self.poller = self.poller, _NoPoller()
        poller.forked()

    def _patience(self, timeout: float | None) -> float | None:
        if self._calls:
            return 0.0
        if not self._timers:
            return timeout
        until = max(0.0, self._timers[0].deadline - self._now())
        return until if timeout is None else min(timeout, until)

    def close(self, error: Exception | None = None) -> None:
        """After the last step: report ``error`` to all connections, and close them."""
        reason = error or LocalTransportError("the I/O thread has ended")
        self.crashed = reason
        for watched in list(self.watched):
            watched.abandon(reason)
        self.poller.close()


class _Shared:
    """The process's loop, its thread, and the number of leases."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.loop: IoLoop | None = None
        self.thread: ThreadHandle | None = None
        self.leases = 0


_shared = _Shared()


def acquire() -> IoLoop:
    """A lease on the process's loop; the first lease starts the loop's thread. Give it back by ``release``."""
    with _shared.lock:
        loop = _shared.loop
        if loop is None or loop.crashed is not None or _shared.thread is None or not _shared.thread.alive():
            keep_freed_memory(_KEPT_BYTES)
            loop = IoLoop(system_runtime())
            _shared.loop, _shared.leases = loop, 0
            _shared.thread = loop.runtime.threads.spawn("shuffle-io", loop, lambda error: _crashed(loop, error))
        _shared.leases += 1
        return loop


def release(loop: IoLoop) -> None:
    """Give a lease back; the last one waits for the thread to end. Must not be called on the I/O thread."""
    with _shared.lock:
        if _shared.loop is not loop:
            return  # the loop has crashed, or belongs to the parent of a forked child
        _shared.leases -= 1
        if _shared.leases:
            return
        thread, _shared.loop, _shared.thread = _shared.thread, None, None
        assert thread is not None
        # The wait is bounded, because a blocking callback of the user holds up the thread.
        if thread.stop(_STOP_S) and loop.crashed is None:
            loop.close()


def run(loop: IoLoop, callback: Callback, timeout: float = 5.0) -> None:
    """``call`` from another thread, and wait until the callback has run or the loop has ended. Raises the callback's
    errors."""
    done = Event()
    failures: list[Exception] = []

    def tell() -> None:
        try:
            callback()
        except Exception as error:
            failures.append(error)
        finally:
            done.set()

    loop.call(tell)
    if loop.crashed is None:
        done.wait(timeout)
    if failures:
        raise failures[0]


def _crashed(loop: IoLoop | None, error: BaseException) -> None:
    assert loop is not None
    wrapped = LocalTransportError(f"the I/O thread has failed: {error!r}")
    wrapped.__cause__ = error
    loop.close(wrapped)


def _forked() -> None:
    """In a forked child: the first ``acquire`` makes another loop. The lock may have been held in the parent."""
    global _shared
    _shared = _Shared()


forks.call_in_child(_forked)


class Verdict(Enum):
    FINE = auto()
    ASK = auto()
    DEAD = auto()


class Liveness:
    """The time since the last message of one peer. Times are monotonic, in s."""

    __slots__ = ("_asked", "_looked", "_since", "silence_max_s")

    def __init__(self, silence_max_s: float, now: float) -> None:
        self.silence_max_s = silence_max_s
        self._looked = now
        self._since = now  # the peer's last message, or the time from which an answer is expected
        self._asked = False

    def heard(self, now: float) -> None:
        """The peer has sent something."""
        self._since = now
        self._asked = False

    def look(self, now: float, expecting: bool) -> Verdict:
        """Return the verdict at ``now``. Call this at least four times in ``silence_max_s``."""
        late = now - self._looked
        self._looked = now
        if late > self.silence_max_s / 2:
            self._since = min(now, self._since + late)
        if not expecting:
            self.heard(now)
            return Verdict.FINE
        silent = now - self._since
        if silent >= self.silence_max_s:
            return Verdict.DEAD
        if silent * 3 >= self.silence_max_s and not self._asked:
            self._asked = True
            return Verdict.ASK
        return Verdict.FINE
