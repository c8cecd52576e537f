"""The broker that clients are tried against: one, or with ``BROKER_NODES=3`` (``make compat-nodes``) three nodes."""

import os
import random
import socket
from pathlib import Path
from typing import Any

from tests.process.broker_process import BrokerProcess

NODES = int(os.environ.get("BROKER_NODES", "1"))


class Served(BrokerProcess):
    _was_killed = False
    options = ("--nodes", str(NODES)) if NODES > 1 else ()

    def launch(self) -> None:
        if NODES > 1 and self.listener.endswith(":0"):
            host = self.listener.removesuffix(":0")
            self.listener = f"{host}:{ports_in_a_row(NODES)}"
        super().launch()

    def kill(self) -> None:
        self._was_killed = True
        super().kill()

    @property
    def errors(self) -> list[dict[str, Any]]:
        """As of the class above; but nodes whose supervisor was killed say that they cannot go on."""
        return [] if NODES > 1 and self._was_killed else super().errors

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        name = f"{topic}-{partition}"
        places = [self.data_dir] if NODES == 1 else [self.data_dir / "nodes" / str(place) for place in range(NODES)]
        return next(place / name for place in places if (place / name).exists())


def ports_in_a_row(count: int) -> int:
    """The first of so many ports that nobody listens on, below those that the system gives to connections. Nodes that are started
    together again find theirs free."""
    while True:
        first = random.randrange(15_000, 32_000)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
