"""The machine that the broker runs on: starts it, kills it, takes its power away, and keeps the state that outlives it.

With a vault (``vault.py``), machines may be lost: the next one is empty, and the broker on the old one may be a *zombie*, which
goes on, at once or later, and does not know.
"""

import gc
import sys
import traceback
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

import attrs

import broker.log
from broker.config import BrokerConfig
from broker.errors import BrokerError, Fenced, StorageError
from broker.runtime import Runtime
from broker.server import BrokerServer
from tests.sim.catalogue import SimCatalogue, Tables
from tests.sim.disk import Directory, Medium, SimDisk
from tests.sim.engine import open_engine
from tests.sim.network import Fabric, SimNetwork
from tests.sim.poller import SimPoller
from tests.sim.threads import SimClock, SimEntropy, SimThreads
from tests.sim.vault import Vault
from tests.sim.world import Process, Thread, Violation, World

PORT = 9092


def sim_runtime(process: Process, fabric: Fabric, medium: Medium) -> Runtime:
    return Runtime(
        clock=SimClock(process),
        entropy=SimEntropy(process.world),
        threads=SimThreads(process),
        disk=SimDisk(process, medium),
        network=SimNetwork(process, fabric),
        new_poller=lambda: SimPoller(process, fabric),
    )


@attrs.define(eq=False)
class Zombie:
    """A broker on a machine that is taken for lost. ``ends_at``: when it is killed, at the latest."""

    process: Process
    server: BrokerServer
    ends_at: float
    main: Thread | None = None


class Host:
    """``state`` is down, starting, up or stopping."""

    def __init__(
        self,
        world: World,
        settings: dict[str, Any],
        *,
        with_vault: bool = False,
        record_most: int = 300,
        fabric: Fabric | None = None,
    ) -> None:
        """``fabric``: of several hosts."""
        self.world = world
        self.fabric = Fabric(world) if fabric is None else fabric
        self.medium = _new_medium(world)
        self.tables = Tables()
        self.vault = Vault(world, self.tables, record_most) if with_vault else None
        self.zombies: list[Zombie] = []
        self.settings = settings
        self.listeners = [f"kafka://127.0.0.1:{PORT}"]
        self.small: dict[str, Any] = {}  # settings below an operator's minimum: bugs hide at bounds
        self.state = "down"
        self.start_at: float | None = world.now
        self.starts_failed = 0
        self.stops = 0
        self.catalogue_error = 0.0
        self.failed_lately = False  # the machine, since the broker was last started
        self.sync_failed = False  # an fsync may have failed since the machine was last switched on
        self._server: BrokerServer | None = None
        self._main: Thread | None = None
        self._failure: BaseException | None = None
        self._catalogue: SimCatalogue | None = None

    @property
    def process(self) -> Process | None:
        return self.world.process

    @property
    def server(self) -> BrokerServer | None:
        """The broker while it is up."""
        return self._server if self.state == "up" else None

    @property
    def busy(self) -> bool:
        """The broker's main thread is doing something."""
        return self._main is not None

    # -- start and stop ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot. ``look`` says how it went; it may be killed on the way, or fail because the disk does."""
        assert self.state == "down"
        process = self._boot()
        self.world.note(f"start {process.number}")
        self.start_at = None
        self.failed_lately = self.faulty
        self.state = "starting"
        config = BrokerConfig(listeners=self.listeners, data_dir="/data", **self.settings)
        for name, value in self.small.items():
            object.__setattr__(config, name, value)
        self._serve(process, config, sim_runtime(process, self.fabric, self.medium))

    def _boot(self) -> Process:
        return self.world.boot()

    def _serve(self, process: Process, config: BrokerConfig, runtime: Runtime) -> None:
        vault = self.vault
        opens = None if vault is None else partial(open_engine, vault, process, lambda: self.catalogue_error)
        self._server = BrokerServer(config, runtime, self._open_catalogue, open_engine=opens)
        self._do(process, self._server.start)

    def stop(self) -> None:
        """SIGTERM."""
        assert self.state == "up" and self._server is not None and self.process is not None
        self.world.note("stop")
        self.state = "stopping"
        self._do(self.process, self._server.stop)

    def resize(self, processors: int) -> None:
        """Another number of processors, by the broker's main thread."""
        assert self.state == "up" and self._server is not None and self.process is not None
        sockets = self._server.sockets
        self._do(self.process, lambda: sockets.resize_processors(processors))

    def _do(self, process: Process, work: Callable[[], object]) -> None:
        self._failure = None
        self._main = Thread(process, "main", None, self._failed, once=work)  # type: ignore[arg-type]

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def look(self) -> bool:
        """What has become of the start or the stop. True when the broker has just stopped."""
        if self._main is None or not self._main.ended:
            return False
        self._main, error, self._failure = None, self._failure, None
        if self.state == "up":  # resized
            if error is not None:
                raise Violation(f"the number of processors could not be changed: {_trace(error)}")
            return False
        if self.state == "starting":
            if error is None:
                self.state = "up"
                return False
            self.world.note(f"start fails: {error}")
            if not isinstance(error, (BrokerError, OSError)) or not self.failed_lately:
                raise Violation(f"the broker does not start: {_trace(error)}")
            self.starts_failed += 1
            self._gone(power=False)
            self.start_at = self.world.now + 1.0
            return False
        if error is not None:
            raise Violation(f"the broker does not stop: {_trace(error)}")
        process = self.process
        assert process is not None
        self._server = self._catalogue = None
        if process.files:
            gc.collect()  # those that nobody refers to any more close now
        self._check_all_let_go(process)
        self._gone(power=False)
        self.stops += 1
        return True

    def _open_catalogue(self, path: str) -> SimCatalogue:
        self._catalogue = SimCatalogue(self.world.process, self.tables, self.world, self.catalogue_error)
        return self._catalogue

    def set_catalogue_error(self, probability: float) -> None:
        self.catalogue_error = probability
        if self._catalogue is not None:
            self._catalogue.error = probability

    def _check_all_let_go(self, process: Process) -> None:
        left = [thread.name for thread in process.threads]
        if left:
            raise Violation(f"threads left behind by stop: {left}")
        if process.sockets:
            raise Violation(f"sockets left open by stop: {process.sockets}")
        if process.files and not self.faulty:
            raise Violation(f"files left open by stop: {sorted(process.files.values())}")

    def _gone(self, *, power: bool) -> None:
        process = self.process
        assert process is not None
        self.state = "down"
        self._server = self._main = self._catalogue = None
        self.fabric.process_died(process, power=power)
        self.medium.process_died(process, power=power)
        if self.vault is not None:
            self.vault.gone(process, silent=power and self.vault.rng.random() < 0.5)
        self.world.end_process(process)

    def die(self, *, power: bool, lost: bool = False) -> None:
        """kill -9, or the plug is pulled, perhaps for ever. A thread of the broker that calls this has to raise ``Killed``
        next."""
        self.world.note("machine lost" if lost else "power loss" if power else "kill")
        self._gone(power=power)
        if lost:
            self._replace_machine()

    def take_for_lost(self, pause_s: float, cut_off_s: float, ends_s: float) -> None:
        """The machine does not answer, and another one takes its place. The broker stands still for ``pause_s``, and then goes on
        without its disk being gone; or cannot reach the vault for ``cut_off_s``. It keeps its clients, and must tell them nothing
        that is not true any more."""
        assert self.state == "up" and self._server is not None and not self.busy
        process, now = self._set_aside(), self.world.now
        self.world.note(f"machine taken for lost: pause {pause_s}, cut off {cut_off_s}, ends {ends_s}")
        self.state = "down"
        process.countdown = -1  # it was to be killed, and lives on
        if pause_s:
            process.freeze(now + pause_s)
        if cut_off_s and self.vault is not None:
            self.vault.cut(process, now + cut_off_s)
        self.zombies.append(Zombie(process, self._server, now + ends_s))
        self._server = self._catalogue = None
        self._replace_machine()

    def _set_aside(self) -> Process:
        process = self.world.set_aside()
        self.fabric.replace(process)
        return process

    def _replace_machine(self) -> None:
        flipped = self.medium.flipped
        self.medium = _new_medium(self.world)
        self.medium.flipped = flipped

    def look_after_zombies(self, *, end: bool = False) -> None:
        """A broker that has been told stops. One that is not told in time is killed."""
        for zombie in list(self.zombies):
            crash = zombie.server.crash
            if crash is not None and not isinstance(crash, Fenced):
                raise Violation(f"a thread of a broker that was replaced crashed: {_trace(crash)}")
            if crash is not None and zombie.main is None:
                self.world.note(f"zombie {zombie.process.number} stops")
                zombie.main = Thread(zombie.process, "main", None, self._zombie_failed, once=zombie.server.stop)  # type: ignore[arg-type]
            if end or self.world.now >= zombie.ends_at or (zombie.main is not None and zombie.main.ended):
                self.world.note(f"zombie {zombie.process.number} ends")
                self.zombies.remove(zombie)
                self.fabric.process_died(zombie.process, power=False)
                if self.vault is not None:
                    self.vault.gone(zombie.process, silent=False)
                self.world.end_process(zombie.process)

    def _zombie_failed(self, error: BaseException) -> None:
        if not isinstance(error, (StorageError, OSError)):
            raise Violation(f"a broker that was replaced does not stop: {_trace(error)}")

    def would_survive(self, directory: str, data: bytes) -> bool:
        """Would these bytes be in some file of that directory after a loss of what can be lost?"""
        if self.vault is not None:
            return self.vault.would_survive(directory.removeprefix("/data/"), data)
        return self.medium.would_survive(directory, data)

    def lose_power(self) -> None:
        """While no broker runs."""
        self.world.note("power loss")
        self.medium.lose_power()

    @property
    def faulty(self) -> bool:
        """The machine may fail the broker right now."""
        faults = self.medium.faults
        return bool(
            faults.write_error
            or faults.read_error
            or faults.sync_error
            or faults.open_error
            or faults.full
            or self.catalogue_error
            or self.medium.flipped
            or (self.vault is not None and self.vault.faulty)
        )


def _new_medium(world: World) -> Medium:
    medium = Medium(world)
    medium.root.put("data", Directory())  # the operator's
    medium.root.sync(medium.root.position)
    return medium


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


class Recorder:
    """What the broker logs. An exception that was caught at a seam and is not the machine's fault is a bug."""

    def __init__(self, world: World, excused: Any) -> None:
        self._world = world
        self._excused = excused
        self._thread = get_ident()
        self.failures: list[str] = []

    def debug(self, event: str, **values: Any) -> None:
        if get_ident() != self._thread:
            return  # of a real broker in the same process: not of this world
        self._world.note(f"  log {event} {_plain(values)}")

    info = warning = debug

    def error(self, event: str, **values: Any) -> None:
        if get_ident() != self._thread:
            return
        error = values.pop("exc_info", None)
        self._world.note(f"  log ERROR {event} {_plain(values)}")
        if error is True:
            error = sys.exc_info()[1]
        running = self._world.running
        if running is None or not running.alive:
            return
        if running.replaced and (error is None or isinstance(error, (StorageError, OSError))):
            return
        if isinstance(error, BaseException):
            text = _trace(error)
            if not self._excused(event, error):
                self.failures.append(f"{event}: {text}")
        elif not self._excused(event, None):
            self.failures.append(f"{event}: {_plain(values)}")


def _plain(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items() if name not in ("part", "exc_info"))


class recording:  # used as a context manager
    """The broker's log goes to ``recorder``, at every level."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._saved = (broker.log._backend, broker.log._level)
        broker.log._backend, broker.log._level = self._recorder, 10

    def __exit__(self, *_: object) -> None:
        broker.log._backend, broker.log._level = self._saved
