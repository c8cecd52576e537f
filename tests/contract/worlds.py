"""The two worlds that the suites of sockets, pollers and threads run in: the machine's, and the simulator's.

``World.run(test)`` runs a test where its threads may wait; inside, ``until`` lets the others run until a condition holds.
"""

import socket
from collections.abc import Callable
from typing import Any, Protocol

from broker.runtime import Runtime, system_runtime
from tests.sim.disk import Medium
from tests.sim.host import sim_runtime
from tests.sim.network import Fabric, NetworkFaults
from tests.sim.world import Chaos, Thread
from tests.sim.world import World as Simulated


class Client(Protocol):
    """The other end of a connection."""

    def send(self, data: bytes) -> None:
        """Sends all of it, however long that takes."""

    def received(self) -> bytes:
        """All bytes received so far."""

    def ended(self) -> bool:
        """The broker's end has closed, in either way, and there is nothing left to read."""

    def shut_down_writing(self) -> None: ...

    def close(self) -> None: ...

    def reset(self) -> None: ...


class World(Protocol):
    runtime: Runtime

    def run(self, test: Callable[[], None]) -> None: ...

    def connect(self, port: int) -> Client: ...

    def until(self, condition: Callable[[], Any]) -> None: ...


class _RealClient:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self._socket.setblocking(False)
        self._unsent = bytearray()
        self._data = b""
        self._ended = False

    def send(self, data: bytes) -> None:
        self._unsent += data
        self._pump()

    def _pump(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        try:
            while piece := self._socket.recv(65536):
                self._data += piece
            self._ended = True
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True

    def received(self) -> bytes:
        self._pump()
        return self._data

    def ended(self) -> bool:
        self._pump()
        return self._ended

    def shut_down_writing(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._socket.close()


class RealWorld:
    def __init__(self) -> None:
        self.runtime = system_runtime()
        self._clients: list[_RealClient] = []

    def run(self, test: Callable[[], None]) -> None:
        try:
            test()
        finally:
            for client in self._clients:
                client.close()

    def connect(self, port: int) -> Client:
        client = _RealClient(port)
        self._clients.append(client)
        return client

    def until(self, condition: Callable[[], Any]) -> None:
        until(self.runtime, condition)


def until(runtime: Runtime, condition: Callable[[], Any]) -> None:
    """Let the threads of ``runtime`` run until ``condition`` holds."""
    for _ in range(2000):
        if condition():
            return
        runtime.threads.pause(0.005)
    raise AssertionError("it does not come about")


class _SimulatedClient:
    def __init__(self, fabric: Fabric, port: int) -> None:
        connected = fabric.connect(port)
        assert connected is not None, "refused"
        self._socket = connected
        self._unsent = bytearray()
        self._data = b""

    def send(self, data: bytes) -> None:
        self._unsent += data
        self.pump()

    def pump(self) -> None:
        if not self._socket.wire.client_closed:
            del self._unsent[: self._socket.send(self._unsent) if self._unsent else 0]
            self._data += self._socket.recv()

    def received(self) -> bytes:
        self.pump()
        return self._data

    def ended(self) -> bool:
        self.pump()
        return self._socket.lost

    def shut_down_writing(self) -> None:
        self._socket.shut_down_writing()

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        self._socket.reset()


class SimulatedWorld:
    """``seed`` decides about short reads and writes, delays, and the order of threads."""

    def __init__(self, seed: int) -> None:
        self.world = Simulated(seed)
        self.world.chaos = Chaos(preempt=0.2)
        self.fabric = Fabric(self.world)
        self.fabric.faults = NetworkFaults(short=0.5, delay_most_s=0.002)
        process = self.world.boot()
        self.runtime = sim_runtime(process, self.fabric, Medium(self.world))
        self._process = process
        self._clients: list[_SimulatedClient] = []

    def run(self, test: Callable[[], None]) -> None:
        errors: list[BaseException] = []
        main = Thread(self._process, "test", None, errors.append, once=test)  # type: ignore[arg-type]
        while not main.ended:
            for client in self._clients:
                client.pump()
            if not self.world.step_once():
                assert self.world.sleep_until_something(), "nothing will ever happen"
        if errors:
            raise errors[0]

    def connect(self, port: int) -> Client:
        client = _SimulatedClient(self.fabric, port)
        self._clients.append(client)
        return client

    def until(self, condition: Callable[[], Any]) -> None:
        until(self.runtime, condition)


WORLDS: dict[str, Callable[[], World]] = {
    "system": RealWorld,
    "simulated 1": lambda: SimulatedWorld(1),
    "simulated 2": lambda: SimulatedWorld(2),
}
