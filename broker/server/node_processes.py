"""The processes of the nodes that a supervisor runs: one for each place, started again when it ends.

A process that ends at once again is started after a while, each time a longer one. On the supervisor's thread.

Tests: tests/process/test_nodes.py, tests/durable/test_nodes_machines.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.errors import BrokerError
from broker.log import get_logger
from broker.runtime.children import Child
from broker.runtime.clock import Clock

log = get_logger("cluster")

# The variables of a node's process: its place and their number, and the ports that it had before.
PLACE, PORTS = "BROKER_NODE_PLACE", "BROKER_NODE_PORTS"

_AGAIN_S, _AGAIN_MAX_S = 0.2, 10.0
_STEADY_S = 5.0


def ports_text(about: Mapping[str, Any]) -> str:
    """The value of ``PORTS``, from what the node has told about itself."""
    return " ".join(f"{name}={port}" for name, (_, port) in about["endpoints"].items())


def place_in(variables: Mapping[str, str], needed: str) -> tuple[int, int, dict[str, int]]:
    """Place, number of nodes, and ports by the listener's name. ``needed``: another variable that has to be there. Raises
    BrokerError."""
    place, _, count = variables.get(PLACE, "").partition("/")
    if not (place.isdecimal() and count.isdecimal() and needed in variables):
        raise BrokerError(f"{PLACE} and {needed} are set by broker serve --nodes only")
    ports = (text.rpartition("=") for text in variables.get(PORTS, "").split())
    return int(place), int(count), {name: int(port) for name, _, port in ports}


class NodeProcesses:
    def __init__(
        self, clock: Clock, arguments: Sequence[str], first_id: int, variables: Callable[[int], Mapping[str, str]]
    ) -> None:
        """``arguments`` of ``broker`` for each; ``variables`` of the environment by its place."""
        self._clock = clock
        self._arguments = arguments
        self._first_id = first_id
        self._variables = variables
        self._children: dict[int, Child] = {}
        self._started: dict[int, float] = {}
        self._again_s: dict[int, float] = {}
        self._due: dict[int, float] = {}

    def start(self, place: int) -> None:
        self._started[place] = self._clock.monotonic()
        child = self._children[place] = Child(self._arguments, self._variables(place))
        log.info("node_started", node=self._first_id + place, pid=child.pid)

    def pid(self, place: int) -> int:
        """Of the process that was started last."""
        return self._children[place].pid

    def look(self) -> list[int]:
        """Start again what has ended. Returns the exit statuses of those that have ended since the last look."""
        now = self._clock.monotonic()
        ended = []
        for place, child in list(self._children.items()):
            status = child.status()
            if status is None:
                continue
            if place not in self._due:
                ended.append(status)
                self._due[place] = now + self._pause_s(place, status, now)
                say = log.error if status else log.info
                say("node_ended", node=self._first_id + place, status=status)
            if now >= self._due[place]:
                del self._due[place]
                self.start(place)
        return ended

    def _pause_s(self, place: int, status: int, now: float) -> float:
        if status == 0 or now - self._started[place] > _STEADY_S:
            self._again_s[place] = 0.0
            return 0.0
        before = self._again_s.get(place, 0.0)
        self._again_s[place] = min(2 * before or _AGAIN_S, _AGAIN_MAX_S)
        return before

    def pass_on(self, signal: int) -> None:
        """Send all of them a signal that this process has got. May be called from a signal handler."""
        for child in list(self._children.values()):
            child.signal(signal)

    @property
    def count(self) -> int:
        return len(self._children)

    def terminate(self, place: int) -> None:
        """SIGTERM to one; ``look`` starts it again."""
        self._children[place].terminate()

    def kill(self, place: int) -> None:
        """kill -9 to one; ``look`` starts it again. Any thread."""
        self._children[place].kill()

    def end(self, timeout_s: float) -> None:
        """End all of them, within this time."""
        deadline = self._clock.monotonic() + timeout_s
        for child in self._children.values():
            if child.status() is None:
                child.terminate()
        for place, child in self._children.items():
            if not child.wait(max(0.0, deadline - self._clock.monotonic())):
                log.error("node_killed", node=self._first_id + place)
                child.kill()
                child.wait(5.0)
