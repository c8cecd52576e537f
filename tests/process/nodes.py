"""Several nodes on one machine, and how to find and kill them."""

import json
import os
import signal
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.process.broker_process import PATIENCE_S, BrokerProcess


class NodesProcess(BrokerProcess):
    """``broker serve --nodes``, with HTTP and more of ``schemes``."""

    def __init__(self, directory: Path, *schemes: str, count: int = 3) -> None:
        listeners = [f"{scheme}://127.0.0.1:0" for scheme in schemes]
        super().__init__(directory, listener="http://127.0.0.1:0", more_listeners=listeners)
        self.count = count
        self.options = ("--nodes", str(count))

    def endpoints(self, listener: str) -> dict[int, str]:
        """Where the nodes that are there listen, by node id."""
        nodes = self.ask("GET", "/api/v1/cluster")[1]["nodes"]
        return {node["node_id"]: node["endpoints"][listener] for node in nodes if node["alive"]}

    def ask(
        self, method: str, path: str, body: Any = None, at: str | None = None, follow: bool = True
    ) -> tuple[int, Any]:
        """Status and JSON of the answer, of a redirect its address. ``at``: another node's address."""
        connection = HTTPConnection(at or self.addresses["http"], timeout=PATIENCE_S)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json"})
            reply = connection.getresponse()
            answer = reply.read()
        finally:
            connection.close()
        if reply.status == 307:
            location = reply.headers["location"]
            host, slash, target = location.removeprefix("http://").partition("/")
            return self.ask(method, slash + target, body, host, follow=False) if follow else (307, location)
        try:
            return reply.status, json.loads(answer) if answer else None
        except ValueError:
            return reply.status, answer.decode()

    def pids(self) -> dict[int, int]:
        """The process of each node, by node id."""
        return {event["node"]: event["pid"] for event in self.events if event["event"] == "node_started"}

    def kill_node(self, node_id: int) -> None:
        """kill -9, and wait until it is there again."""
        before = self.pids()[node_id]
        os.kill(before, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while self.pids()[node_id] == before or node_id not in self._alive():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def _alive(self) -> set[int]:
        try:
            return set(self.endpoints("http"))
        except OSError:
            return set()  # it was the one that is asked
