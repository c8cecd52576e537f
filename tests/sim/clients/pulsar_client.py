"""A simulated client of Pulsar's protocol: one connection, a request at a time, and unsolicited commands."""

import math
from typing import TYPE_CHECKING, Any

from tests.pulsar_frames import Frame, Incoming, command, connect
from tests.sim.clients.stream import PATIENCE_S, StreamClient
from tests.sim.world import Violation

if TYPE_CHECKING:
    from tests.sim.history import History
    from tests.sim.world import World

PULSAR_PORT = 6650
# What a broker may say while its machine is at fault, or while something is moved.
_EXCUSES = frozenset({"MetadataError", "PersistenceError", "ServiceNotReady"})
_PING_S = 0.3


class PulsarClient(StreamClient):
    port = PULSAR_PORT

    def __init__(self, name: str, world: "World", fabric: Any, history: "History") -> None:
        super().__init__(name, world, fabric)
        self.greeted = False
        self.history = history
        self._request = 0
        self._asked: dict[int, tuple[str, Any, float]] = {}
        self._ping_at = math.inf

    def new_decoder(self) -> Incoming:
        return Incoming()

    def connected(self) -> None:
        self.greeted = False
        self._asked.clear()
        self._ping_at = self.world.now + _PING_S
        self.send(connect())

    # -- asking -------------------------------------------------------------------------------------------------------------

    def ask(self, kind: str, context: Any = None, **fields: Any) -> int:
        """Something with a request id, which ``answered`` is told of."""
        self._request += 1
        self._asked[self._request] = (kind, context, self.world.now)
        self.send(command(kind, request_id=self._request, **fields))
        return self._request

    def asks(self, kind: str) -> bool:
        """It waits for the answer to such a request."""
        return any(one[0] == kind for one in self._asked.values())

    def act(self) -> None:
        now = self.world.now
        self.idle(0.002 + self.rng.random() * 0.1)
        if now >= self._ping_at:
            self._ping_at = now + _PING_S
            self.send(command("PING"))
        if self.quiet:
            for kind, _, at in self._asked.values():
                since = max(at, self.quiet_since)
                if now > since + PATIENCE_S * (1 if self.history.hurried else 10) and not self.may_wait(kind):
                    raise Violation(f"{self.name}: {kind} has not been answered for {now - since:.0f} s")
        if self.greeted:
            self.go_on()

    def may_wait(self, kind: str) -> bool:
        return False

    # -- answers ------------------------------------------------------------------------------------------------------------

    def received(self, message: Frame) -> None:
        if not self.greeted:
            if message.kind != "CONNECTED":
                raise Violation(f"{self.name}: {message.kind} answers CONNECT")
            self.greeted = True
            self.go_on()
            return
        if message.kind == "PING":
            self.send(command("PONG"))
        elif message.kind == "PONG":
            pass
        elif hasattr(message.body, "request_id") and message.kind not in ("CLOSE_PRODUCER", "CLOSE_CONSUMER"):
            request = self._asked.pop(message.body.request_id, None)
            if request is None:
                raise Violation(f"{self.name}: {message.kind} answers nothing")
            if message.kind == "ERROR":
                self.refused(request[0], request[1], self._error(message.body))
            else:
                self.answered(request[0], request[1], message)
        else:
            self.came(message)

    @staticmethod
    def _error(body: Any) -> str:
        from protocol.pulsar.pulsar_pb2 import ServerError

        return str(ServerError.Name(body.error))

    def excuse(self, what: str, error: str) -> None:
        """Raise it if there is no excuse for it."""
        if error not in _EXCUSES or (self.quiet and error != "ServiceNotReady"):
            raise Violation(f"{self.name}: {error} for {what}")

    # -- for subclasses -----------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Called now and then while it is connected."""
        raise NotImplementedError

    def answered(self, kind: str, context: Any, message: Frame) -> None:
        raise NotImplementedError

    def refused(self, kind: str, context: Any, error: str) -> None:
        self.excuse(kind, error)

    def came(self, message: Frame) -> None:
        raise Violation(f"{self.name}: {message.kind} came")
