"""Brokers in processes of their own whose state is in PostgreSQL and in an object store: one leads, others may stand by.

``DurableBroker`` stands where tests have a ``BrokerProcess``: ``kill`` loses the leader's machine, its disk included, and
``start`` waits until another one leads. All of them listen at the same ports, one after the other, so clients come back by
themselves. With ``ports_of_their_own``, each machine has its own, as several can run at the same time; then clients need to know
``addresses`` of all.
"""

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.durable.postgres import PostgresServer, SynchronousPair
from tests.ports import free_ports
from tests.process.broker_process import PATIENCE_S, BrokerProcess


class DurableBroker:
    """``machines`` are all that were ever started, the newest last."""

    def __init__(
        self,
        directory: Path,
        postgres: PostgresServer | SynchronousPair,
        *settings: str,
        schemes: tuple[str, ...] = ("kafka",),
        objects: str | None = None,
        standbys: int = 1,
        ports_of_their_own: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``objects``: None: in files below ``directory``. ``standbys``: so many more wait for their turn from the
        beginning; when none is left, ``start`` launches one."""
        self.directory = directory
        self.postgres = postgres
        self.objects = objects or f"file://{directory / 'objects'}"
        self.settings = [f"catalogue={postgres.url}", f"objects={self.objects}", *settings]
        self.machines: list[BrokerProcess] = []
        self.leader: BrokerProcess | None = None
        self.standbys: list[BrokerProcess] = []
        self._schemes = schemes
        self._more = standbys
        self._ports_of_their_own = ports_of_their_own
        self._ports = free_ports(len(schemes), self)
        self._environment = environment
        self._numbers = itertools.count(1)

    # -- as a BrokerProcess --------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when a broker leads that stood by, or a new one on an empty disk."""
        if not self.standbys:
            self.standbys.append(self.launch())
        wait_until(lambda: any(map(_waits_no_more, self.standbys)), "nobody leads")
        leader = next(filter(_waits_no_more, self.standbys))
        self.standbys.remove(leader)
        self.leader = leader.wait_until_ready()
        return self

    def kill(self) -> None:
        """kill -9, and the disk is gone."""
        assert self.leader is not None
        self.leader.kill()
        shutil.rmtree(self.leader.data_dir)
        self.leader = None

    def stop(self) -> int:
        """SIGTERM to the leader; the exit status. The one that stood by leads next."""
        assert self.leader is not None
        leader, self.leader = self.leader, None
        return leader.stop()

    @property
    def address(self) -> str:
        """Of the first scheme."""
        return self.addresses[self._schemes[0]]

    @property
    def addresses(self) -> dict[str, str]:
        """By scheme: of the leader, or of whoever leads."""
        if self._ports_of_their_own:
            assert self.leader is not None
            return self.leader.addresses
        return {scheme: f"127.0.0.1:{port}" for scheme, port in zip(self._schemes, self._ports, strict=True)}

    @property
    def events(self) -> list[dict[str, Any]]:
        """Of all machines."""
        return [event for machine in self.machines for event in machine.events]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["level"] == "error"]

    # -- machines ------------------------------------------------------------------------------------------------------

    def launch(self) -> BrokerProcess:
        """A machine that waits for its turn, if there is a leader."""
        number = next(self._numbers)
        directory = self.directory / f"machine-{number}"
        directory.mkdir(parents=True)
        ports = free_ports(len(self._schemes), self) if self._ports_of_their_own else self._ports
        listeners = [f"{scheme}://127.0.0.1:{port}" for scheme, port in zip(self._schemes, ports, strict=True)]
        machine = BrokerProcess(
            directory,
            *self.settings,
            "standby=true",
            listener=listeners[0],
            more_listeners=listeners[1:],
            environment=self._environment,
        )
        machine.launch()
        self.machines.append(machine)
        return machine

    def __enter__(self) -> Self:
        """Returns when one leads and the others stand by."""
        try:
            self.start()
            self.standbys = [self.launch() for _ in range(self._more)]
            patience_s = PATIENCE_S * len(self.machines)
            wait_until(
                lambda: all("standing_by" in one.output for one in self.standbys), "not all stand by", patience_s
            )
            return self
        except BaseException:
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for machine in self.machines:
            machine.__exit__(None, None, None)


def _waits_no_more(machine: BrokerProcess) -> bool:
    """It leads, or has ended."""
    return machine.ready_file.exists() or machine.process.poll() is not None


def wait_until(condition: Callable[[], Any], complaint: str, patience_s: float = PATIENCE_S) -> None:
    """AssertionError with the complaint if it takes too long."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.01)


@contextlib.contextmanager
def durable_postgres() -> Iterator[PostgresServer]:
    """One of the test's own that does fsync, so that it may be killed. Skips the test if the machine has none."""
    if not PostgresServer.installed():
        pytest.skip("PostgreSQL is not installed")
    server = PostgresServer(durable=True)
    try:
        yield server
    finally:
        server.stop()
