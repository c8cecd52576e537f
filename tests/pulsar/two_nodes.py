"""Two nodes that share a catalogue, without processes: what one changes is in force at the other when it has settled."""

from collections.abc import Callable
from pathlib import Path

from broker.cluster.nodes import Nodes
from broker.runtime.disk import SystemDisk


class TwoNodes:
    """``reloads``: of each node, what it does when another one has changed something."""

    def __init__(self, directory: Path) -> None:
        self.reloads: list[list[Callable[[], object]]] = [[], []]
        self.nodes = [Nodes(place, 2, 0, str(directory), SystemDisk(), self) for place in range(2)]

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        return 0, None

    def settle(self, timeout_s: float, node: int) -> bool:
        for reload in self.reloads[1 - node]:
            reload()
        return True
