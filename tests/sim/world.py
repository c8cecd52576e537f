"""The simulated world: one seed, one clock, one thread of execution, and the order in which everything happens.

The broker's thread bodies and the simulated clients are stepped one at a time, in an order drawn from the seed. A body that
would have to wait (``block``) leaves its step by ``Asleep`` and is stepped again when what it waits for is there or its time
is up: bodies look at their queues before they wait, so that repeating the beginning of a step changes nothing.

Steps are not atomic. Locks, queues, events, pollers and files call ``yield_point``: there another body may be stepped to
its end inside the one that is interrupted (never while a lock is held, because nobody could wait for it), and there the
broker may be killed: ``Killed`` unwinds everything that runs in it, and what it still tries to do on the way out comes to
nothing.
"""

import traceback
import zlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import attrs

# Bodies that may be stepped inside one another.
_DEPTH_MOST = 4
_MAIN_IDENT = 1


class Asleep(BaseException):
    """The step has come to where the thread would wait."""


class Killed(BaseException):
    """The process that runs this is gone."""


class Violation(BaseException):
    """The broker broke a promise. No seam of the broker, inside of which this may be found out, catches it."""


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
    """One of the broker's threads."""

    def __init__(self, process: "Process", name: str, body: Any, on_crash: Callable[[BaseException], None]) -> None:
        self.process = process
        self.name = name
        self.body = body
        self.on_crash = on_crash
        self.ident = process.world.next_ident()
        self.wait: Wait | None = None
        self.timed_out = False
        self.running = False
        self.stopping = False
        self.ended = False
        self.frozen_until = 0.0  # the operating system gives it no time

    def runnable(self, now: float) -> bool:
        if self.running or now < self.frozen_until:
            return False
        wait = self.wait
        return wait is None or (wait.deadline is not None and now >= wait.deadline) or wait.ready()

    def ask_to_stop(self) -> None:
        self.stopping = True
        if not self.ended:
            self.body.wakeup()

    def stop(self, timeout: float | None = None) -> bool:
        """As the real one: the step that it is in ends, and no other begins. The others go on meanwhile."""
        world = self.process.world
        self.ask_to_stop()
        deadline = None if timeout is None else world.now + timeout
        while not self.ended and (deadline is None or world.now < deadline):
            if not world.step_once() and not world.sleep_until_something(deadline):
                break
        return self.ended

    def end(self) -> None:
        self.ended = True
        if self in self.process.threads:
            self.process.threads.remove(self)

    def alive(self) -> bool:
        return not self.ended


class Process:
    """One life of the broker: what dies with it."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.threads: list[Thread] = []
        self.locks_held: list[str] = []
        self.sockets: dict[int, Any] = {}  # open ones, listening ones included, by descriptor
        self.files: dict[int, str] = {}  # paths of open ones by descriptor
        self.pollers: list[Any] = []
        self.countdown = -1  # yield points until it is killed; -1: it is not
        self.on_countdown: Callable[[], None] = lambda: None

    def check(self) -> None:
        if not self.alive:
            raise Killed

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
        self.process: Process | None = None
        self.actors: list[Actor] = []
        self.stack: list[Thread] = []
        self.lives = 0
        self.lock_order: dict[tuple[str, str], str] = {}
        # Moments at which something becomes possible that nobody's deadline names (bytes that arrive).
        self.arrivals: Callable[[], float | None] = lambda: None
        self._streams: dict[str, Random] = {}
        self._ident = _MAIN_IDENT
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
        return self.stack[-1].ident if self.stack else _MAIN_IDENT

    # -- what happened --------------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        """Part of the trace: the same for the same seed."""
        self.trace = zlib.crc32(what.encode(), self.trace)
        line = f"{self.steps:6d} {self.now:10.4f} {'  ' * len(self.stack)}{what}"
        self.recent.append(line)
        if self.verbose:
            print(line)

    # -- the broker's life ----------------------------------------------------------------------------------------------

    def boot(self) -> Process:
        assert self.process is None
        self.lives += 1
        self.process = Process(self, self.lives)
        return self.process

    def end_process(self) -> None:
        """The running process is gone, for whatever reason."""
        process = self.process
        assert process is not None
        process.alive = False
        for thread in process.threads:
            thread.ended = True
        self.process = None

    # -- interruption -----------------------------------------------------------------------------------------------------

    def yield_point(self, process: Process) -> None:
        """Called by the simulated runtime wherever a real thread may lose the processor or its life."""
        process.check()
        if process.countdown >= 0:
            process.countdown -= 1
            if process.countdown < 0:
                process.on_countdown()
                raise Killed
        if (
            self.chaos.preempt
            and not process.locks_held
            and len(self.stack) < _DEPTH_MOST
            and self._pick.random() < self.chaos.preempt
        ):
            for _ in range(self._pick.randrange(1, 4)):
                if not self.step_once():
                    break
            process.check()

    def block(self, process: Process, what: str, ready: Callable[[], bool], timeout: float | None) -> None:
        """Wait until ``ready``. Returns when the time is up; otherwise the step is left and begun again."""
        process.check()
        if timeout is not None and timeout <= 0:
            return
        assert self.stack, f"the assembly would wait for {what}"
        assert not process.locks_held, f"waits for {what} with locks held: {process.locks_held}"
        thread = self.stack[-1]
        if thread.timed_out:
            thread.timed_out = False
            return
        thread.wait = Wait(ready, None if timeout is None else self.now + timeout, what)
        raise Asleep

    # -- the order of events --------------------------------------------------------------------------------------------

    def step_once(self) -> bool:
        """One step of one thread or actor that can do something; False if none can."""
        now = self.now
        threads = [t for t in self.process.threads if t.runnable(now)] if self.process is not None else []
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
            self.run_thread(threads[index])
        else:
            self._run_actor(actors[index - len(threads)])
        return True

    def _run_actor(self, actor: Actor) -> None:
        try:
            actor.step()
        except Exception as error:
            raise Violation(f"{actor.name}: {''.join(traceback.format_exception(error))}") from error

    def run_thread(self, thread: Thread) -> None:
        wait, thread.wait = thread.wait, None
        if thread.stopping and wait is None:  # between two steps
            thread.end()
            return
        # Woken by time alone, if nothing else did.
        thread.timed_out = (
            wait is not None and wait.deadline is not None and self.now >= wait.deadline and not wait.ready()
        )
        thread.running = True
        self.stack.append(thread)
        self.note(thread.name)
        try:
            thread.body.step(None)
        except Asleep:
            pass
        except (Killed, Violation):
            raise
        except BaseException as error:
            if not thread.process.alive:  # torn down on the way out, which nobody sees
                raise Killed from error
            thread.end()
            thread.on_crash(error)
        finally:
            self.stack.pop()
            thread.running = False

    def next_moment(self) -> float | None:
        """When something happens next if nothing can happen now."""
        moments = []
        if self.process is not None:
            for thread in self.process.threads:
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
        moment = self.next_moment()
        if moment is None or (limit is not None and moment > limit):
            if limit is not None:
                self.now = max(self.now, limit)
            return False
        # A hair more: deadlines are compared after a subtraction, which rounds.
        self.now = max(self.now, moment) + 1e-9
        return True

    def run_for(self, seconds: float) -> None:
        """Let the others go on for that long (the assembly waits)."""
        end = self.now + seconds
        while self.now < end:
            if not self.step_once() and not self.sleep_until_something(end):
                break
        self.now = max(self.now, end)

    # -- order of locks ---------------------------------------------------------------------------------------------------

    def lock_taken(self, process: Process, site: str) -> None:
        for held in process.locks_held:
            if (held, site) not in self.lock_order:
                self.lock_order[held, site] = self.stack[-1].name if self.stack else "main"

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
