"""The machine that the broker runs on: starts it, kills it, takes its power away, and keeps what outlives it."""

import gc
from typing import Any

import broker.log
from broker.config import BrokerConfig
from broker.errors import BrokerError
from broker.runtime import Runtime
from broker.server import BrokerServer
from tests.sim.catalogue import SimCatalogue, Tables
from tests.sim.disk import Directory, Medium, SimDisk
from tests.sim.network import Fabric, SimNetwork
from tests.sim.poller import SimPoller
from tests.sim.threads import SimClock, SimEntropy, SimThreads
from tests.sim.world import Killed, Process, Violation, World

PORT = 9092


def sim_runtime(process: Process, fabric: Fabric, medium: Medium) -> Runtime:
    return Runtime(
        clock=SimClock(process.world),
        entropy=SimEntropy(process.world),
        threads=SimThreads(process),
        disk=SimDisk(process, medium),
        network=SimNetwork(process, fabric),
        new_poller=lambda: SimPoller(process, fabric),
    )


class Host:
    def __init__(self, world: World, settings: dict[str, Any]) -> None:
        self.world = world
        self.fabric = Fabric(world)
        self.medium = Medium(world)
        self.medium.root.put("data", Directory())  # the operator's
        self.medium.root.sync(self.medium.root.position)
        self.tables = Tables()
        self.catalogue_error = 0.0
        self.settings = settings
        self.server: BrokerServer | None = None
        self.start_at: float | None = world.now
        self.starting = False
        self.starts_failed = 0
        self.sync_failed = False  # an fsync of this life may have failed
        self.died = False  # the last life ended by a crash
        self._catalogue: SimCatalogue | None = None

    # -- start and stop ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot. It may be killed on the way, or fail because the disk does."""
        world = self.world
        process = world.boot()
        world.note(f"start {process.number}")
        self.start_at = None
        self.starting = True
        self.died = False
        config = BrokerConfig(listeners=[f"kafka://127.0.0.1:{PORT}"], data_dir="/data", **self.settings)
        server = BrokerServer(
            config,
            sim_runtime(process, self.fabric, self.medium),
            self._open_catalogue,
        )
        try:
            server.start()
        except Killed:
            return
        except (BrokerError, OSError) as error:
            world.note(f"start fails: {error}")
            if not self.faulty:
                raise Violation(f"the broker does not start on a sound machine: {error!r}") from error
            self.starts_failed += 1
            self._gone(power=False)
            self.start_at = world.now + 1.0
            return
        finally:
            self.starting = False
        self.server = server

    def _open_catalogue(self, path: str) -> SimCatalogue:
        self._catalogue = SimCatalogue(self.world.process, self.tables, self.world, self.catalogue_error)
        return self._catalogue

    def set_catalogue_error(self, probability: float) -> None:
        self.catalogue_error = probability
        if self._catalogue is not None:
            self._catalogue.error = probability

    def stop(self) -> None:
        """SIGTERM."""
        server, process = self.server, self.world.process
        assert server is not None and process is not None
        self.world.note("stop")
        # Until it has stopped there is no server to look into, and no other fault of this kind.
        self.server = None
        self.starting = True
        self.died = False
        try:
            server.stop()
        except Killed:
            return
        finally:
            self.starting = False
        del server
        gc.collect()  # files that nobody refers to are closed
        self._check_all_let_go(process)
        self._gone(power=False)

    def _check_all_let_go(self, process: Process) -> None:
        left = [thread.name for thread in process.threads]
        if left:
            raise Violation(f"threads left behind by stop: {left}")
        if process.sockets:
            raise Violation(f"sockets left open by stop: {process.sockets}")
        if process.files and not self.faulty:
            raise Violation(f"files left open by stop: {sorted(process.files.values())}")

    def _gone(self, *, power: bool) -> None:
        process = self.world.process
        assert process is not None
        self.world.end_process()
        self.fabric.process_died(process, power=power)
        self.medium.process_died(process, power=power)
        self.server = None

    def die(self, *, power: bool) -> None:
        """kill -9, or the plug is pulled. Whatever runs in the broker right now must be unwound by ``Killed``."""
        self.world.note("power loss" if power else "kill")
        self.died = True
        self._gone(power=power)

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
        )


class Recorder:
    """What the broker logs. An exception that was caught at a seam and is not the machine's fault is a bug."""

    def __init__(self, world: World, excused: Any) -> None:
        self._world = world
        self._excused = excused
        self.failures: list[str] = []

    def debug(self, event: str, **values: Any) -> None:
        self._world.note(f"  log {event} {_plain(values)}")

    info = warning = debug

    def error(self, event: str, **values: Any) -> None:
        import sys
        import traceback

        error = values.pop("exc_info", None)
        self._world.note(f"  log ERROR {event} {_plain(values)}")
        if error is True:
            error = sys.exc_info()[1]
        if self._world.process is None or not self._world.process.alive:
            return
        if isinstance(error, BaseException):
            text = "".join(traceback.format_exception(error))
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
