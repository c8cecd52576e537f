"""The simulated world: one seed, one clock, one thing at a time, and the order in which everything happens.

Every thread of the broker is a greenlet that runs ``step`` over and over; the scheduler resumes one of them, or lets one actor
(a client, the storm) do something, as the seed decides. A thread gives way where it waits (``block``), and wherever a real one
may be interrupted (``yield_point``: locks, queues, events, pollers, clocks, files), also with locks held. There the broker may
be killed, too: ``Killed`` unwinds all its threads, and what they still try to do on the way out comes to nothing.
"""

import traceback
import zlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol
from weakref import WeakValueDictionary

import attrs
import greenlet

_ROOT_IDENT = 1


class Killed(BaseException):
    """The process that runs this is gone."""


class Violation(BaseException):
    """The broker broke a promise. No seam of the broker, inside of which this may be raised, catches it."""


@attrs.define(eq=False)
class Wait:
    ready: Callable[[], bool]
    deadline: float | None
    what: str


class Actor(Protocol):
    """Something outside the broker: a client, a fault, an operator."""

    name: str

    def ready(self) -> bool:
        """There is something to do now."""

    def deadline(self) -> float | None:
        """When there will be something to do if nothing else happens."""

    def step(self) -> None: ...


class Thread:
    """One of the broker's threads. ``step`` is called until it is asked to stop, or (``once``) once."""

    def __init__(
        self,
        process: "Process",
        name: str,
        body: Any,
        on_crash: Callable[[BaseException], None],
        *,
        once: Callable[[], None] | None = None,
    ) -> None:
        self.process = process
        self.name = name
        self.body = body
        self.ident = process.world.next_ident()
        self.wait: Wait | None = None
        self.locks: list[Any] = []  # held
        self.waits_for: Any = None  # a lock
        self.stopping = False
        self.ended = False
        self.between_steps = True
        self.frozen_until = 0.0  # the operating system gives it no time
        self.greenlet = greenlet.greenlet(self._run, process.world.hub)
        self._on_crash = on_crash
        self._once = once
        process.threads.append(self)

    def _run(self) -> None:
        try:
            if self._once is not None:
                self._once()
            while not self.stopping and self._once is None:
                self.between_steps = False
                self.body.step(None)
                self.between_steps = True
        except (Killed, greenlet.GreenletExit):
            pass
        except Violation:
            raise
        except BaseException as error:
            if self.process.alive:  # else: torn down on the way out, which nobody sees
                self._on_crash(error)
        finally:
            self.ended = True
            if self in self.process.threads:
                self.process.threads.remove(self)

    def runnable(self, now: float) -> bool:
        if now < self.frozen_until:
            return False
        wait = self.wait
        return wait is None or (wait.deadline is not None and now >= wait.deadline) or wait.ready()

    @property
    def at_rest(self) -> bool:
        """Waits for something to do; not in the middle of doing something."""
        return self.wait is not None and self.wait.what in ("sockets", "a queue", "an event", "time")

    def ask_to_stop(self) -> None:
        self.stopping = True
        if not self.ended:
            self.body.wakeup()

    def stop(self, timeout: float | None = None) -> bool:
        self.ask_to_stop()
        if not self.ended and self.process.world.current is not self:
            self.process.world.block(self.process, "the end of a thread", lambda: self.ended, timeout)
        return self.ended

    def alive(self) -> bool:
        return not self.ended


class Process:
    """One life of the broker: the state that dies with it."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.threads: list[Thread] = []
        self.sockets: dict[int, Any] = {}  # open ones, listening ones included, by descriptor
        self.files: dict[int, str] = {}  # paths of open ones by descriptor
        self.opened: WeakValueDictionary[int, Any] = WeakValueDictionary()  # these files
        self.pollers: list[Any] = []
        self.alarms: dict[int, Any] = {}  # by descriptor
        self.countdown = -1  # yield points until it is killed; -1: it is not
        self.replaced = False  # another one has its place, and it does not know that, or does not believe it
        self.on_countdown: Callable[[], None] = lambda: None

    def check(self) -> None:
        if not self.alive:
            raise Killed

    def freeze(self, until: float) -> None:
        """No thread gets time before that."""
        for thread in self.threads:
            thread.frozen_until = max(thread.frozen_until, until)

    def thaw(self) -> None:
        """All threads get time again."""
        for thread in self.threads:
            thread.frozen_until = 0.0


@attrs.define
class Chaos:
    """How rough the scheduler is. Probabilities are per opportunity."""

    preempt: float = 0.0
    freeze: float = 0.0  # of a thread, per step
    freeze_most_s: float = 0.0
    tick_most_s: float = 0.0005  # time that one step takes


class World:
    def __init__(self, seed: int, verbose: bool = False) -> None:
        self.seed = seed
        self.verbose = verbose
        self.now = 1_000.0
        self.wall_offset_s = 1_700_000_000.0
        self.steps = 0
        self.trace = 0
        self.recent: deque[str] = deque(maxlen=400)
        self.chaos = Chaos()
        self.hub = greenlet.getcurrent()  # the scheduler; threads give way to it and end in it
        self.process: Process | None = None
        # Processes that run besides: those that another one has replaced, and all nodes of a cluster.
        self.beside: list[Process] = []
        self.actors: list[Actor] = []
        self.current: Thread | None = None
        self.lives = 0
        self.lock_order: dict[tuple[str, str], str] = {}
        # Moments at which something becomes possible that nobody's deadline names (bytes that arrive).
        self.arrivals: Callable[[], float | None] = lambda: None
        # Called when nothing can happen without time passing.
        self.on_idle: Callable[[], None] = lambda: None
        self._dying: list[Thread] = []
        self._streams: dict[str, Random] = {}
        self._locks = 0
        self._ident = _ROOT_IDENT
        self._descriptor = 10
        self._pick = self.rng("schedule")

    # -- chance and identity --------------------------------------------------------------------------------------------

    def rng(self, name: str) -> Random:
        """A stream of its own for each kind of decision, so that one more draw in one does not change all others."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self.seed}/{name}")
        return stream

    def next_ident(self) -> int:
        self._ident += 1
        return self._ident

    def next_descriptor(self) -> int:
        self._descriptor += 1
        return self._descriptor

    def ident(self) -> int:
        """Of the thread that runs now."""
        return _ROOT_IDENT if self.current is None else self.current.ident

    # -- the trace of events --------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        """Part of the trace: the same for the same seed."""
        self.trace = zlib.crc32(what.encode(), self.trace)
        line = f"{self.steps:6d} {self.now:10.4f} {what}"
        self.recent.append(line)
        if self.verbose:
            print(line)

    # -- the broker's life ----------------------------------------------------------------------------------------------

    def boot(self) -> Process:
        assert self.process is None
        self._bury()
        self.lives += 1
        self.process = Process(self, self.lives)
        return self.process

    def boot_beside(self) -> Process:
        """A process of several. What it makes, it has to make on a thread of its own."""
        self._bury()
        self.lives += 1
        process = Process(self, self.lives)
        self.beside.append(process)
        return process

    def set_aside(self) -> Process:
        """Somebody else is going to be started in the place of the running process, which goes on."""
        process = self.process
        assert process is not None
        process.replaced = True
        self.beside.append(process)
        self.process = None
        return process

    def end_process(self, process: Process | None = None) -> None:
        """The running process, or one of those beside it, is gone, for whatever reason. Its threads are unwound before anything
        else happens."""
        process = process or self.process
        assert process is not None
        process.alive = False
        self._dying.extend(process.threads)
        if process is self.process:
            self.process = None
        else:
            self.beside.remove(process)
        if self.current is None:
            self._bury()

    @property
    def running(self) -> Process | None:
        """The process that code of the broker belongs to that runs now."""
        return self.process if self.current is None else self.current.process

    @property
    def threads(self) -> list[Thread]:
        """Of all processes."""
        threads = [] if self.process is None else self.process.threads
        return [*threads, *(thread for process in self.beside for thread in process.threads)]

    def _bury(self) -> None:
        assert self.current is None
        dying, self._dying = self._dying, []
        for thread in dying:
            if not thread.ended:
                self.current = thread
                try:
                    thread.greenlet.throw(Killed)
                except Killed:
                    thread.ended = True  # it had not begun
                finally:
                    self.current = None
                assert thread.ended, f"{thread.name} lives on after its process"

    # -- interruption -----------------------------------------------------------------------------------------------------

    def yield_point(self, process: Process) -> None:
        """Called by the simulated runtime wherever a real thread may lose the processor or its life."""
        process.check()
        if process.countdown >= 0:
            process.countdown -= 1
            if process.countdown < 0:
                process.on_countdown()
                raise Killed
        thread = self.current
        if thread is None:  # whoever uses a part of the broker without threads
            return
        if self.chaos.preempt and self._pick.random() < self.chaos.preempt:
            self.hub.switch()
            process.check()

    def block(self, process: Process, what: str, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until ``ready`` or until the time is up; whether it is ready."""
        process.check()
        if ready():
            return True
        if timeout is not None and timeout <= 0:
            return False
        thread = self.current
        assert thread is not None, f"the scheduler itself would wait for {what}"
        thread.wait = Wait(ready, None if timeout is None else self.now + timeout, what)
        self.hub.switch()
        thread.wait = None
        process.check()
        return ready()

    def wait_for_disk(self, process: Process, seconds: float) -> None:
        """The thread waits for the machine; the others go on."""
        if self.current is None:
            self.now += seconds
        else:
            self.block(process, "the disk", lambda: False, seconds)

    # -- the order of events --------------------------------------------------------------------------------------------

    def step_once(self) -> bool:
        """Something that can happen now; False if nothing can."""
        now = self.now
        threads = [t for t in self.threads if t.runnable(now)]
        actors = [actor for actor in self.actors if actor.ready()]
        count = len(threads) + len(actors)
        if not count:
            return False
        self.steps += 1
        index = self._pick.randrange(count)
        if self.chaos.freeze and threads and self._pick.random() < self.chaos.freeze:
            victim = self._pick.choice(threads)
            victim.frozen_until = now + self._pick.random() * self.chaos.freeze_most_s
        self.now = now + self._pick.random() * self.chaos.tick_most_s
        if index < len(threads):
            self._resume(threads[index])
        else:
            self._run_actor(actors[index - len(threads)])
        if self._dying:
            self._bury()
        return True

    def _run_actor(self, actor: Actor) -> None:
        try:
            actor.step()
        except Exception as error:
            raise Violation(f"{actor.name}: {''.join(traceback.format_exception(error))}") from error

    def _resume(self, thread: Thread) -> None:
        self.note(thread.name)
        self.current = thread
        try:
            thread.greenlet.switch()
        finally:
            self.current = None

    def next_moment(self) -> float | None:
        """When something happens next if nothing can happen now."""
        moments = []
        for thread in self.threads:
            if thread.frozen_until > self.now:
                moments.append(thread.frozen_until)
            if thread.wait is not None and thread.wait.deadline is not None:
                moments.append(max(thread.wait.deadline, thread.frozen_until))
        for actor in self.actors:
            deadline = actor.deadline()
            if deadline is not None:
                moments.append(deadline)
        arrival = self.arrivals()
        if arrival is not None:
            moments.append(arrival)
        return min(moments) if moments else None

    def sleep_until_something(self, limit: float | None = None) -> bool:
        """Nothing can happen now: let time pass. False if nothing ever will (before ``limit``)."""
        self.on_idle()
        moment = self.next_moment()
        if moment is None or (limit is not None and moment > limit):
            if limit is not None:
                self.now = max(self.now, limit)
            return False
        # A hair more: deadlines are compared after a subtraction, which rounds.
        self.now = max(self.now, moment) + 1e-9
        return True

    # -- order of locks ---------------------------------------------------------------------------------------------------

    def next_lock(self) -> int:
        self._locks += 1
        return self._locks

    def lock_taken(self, thread: Thread, lock: Any) -> None:
        """Locks are known by the place of their creation; locks of the same place are told apart."""
        for held in thread.locks:
            pair = held.site, lock.site
            if held.site == lock.site:
                pair = f"{held.site} #{held.number}", f"{lock.site} #{lock.number}"
            if pair not in self.lock_order:
                self.lock_order[pair] = thread.name

    def lock_cycles(self) -> list[str]:
        """Pairs of locks that were taken in both orders: two threads could wait for each other for ever."""
        edges: dict[str, list[str]] = {}
        for first, second in self.lock_order:
            edges.setdefault(first, []).append(second)
        cycles = []
        for first, second in self.lock_order:
            reachable, todo = set(), [second]
            while todo:
                site = todo.pop()
                if site == first:
                    cycles.append(
                        f"{first} before {second} on {self.lock_order[first, second]}, and the other way round"
                    )
                    break
                if site not in reachable:
                    reachable.add(site)
                    todo.extend(edges.get(site, ()))
        return cycles
