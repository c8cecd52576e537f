"""A broker in a container for tests with Testcontainers: `pip install testcontainers`.

    with BrokerContainer(topics=["orders:3"]) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        fault = broker.add_fault("error", api="PRODUCE", topic="orders", error="NOT_LEADER_OR_FOLLOWER")
        ...  # the code under test sends to "orders"
        assert broker.fault(fault, wait=1)["hits"] == 1

The image is that of docker/Dockerfile: `docker build -f docker/Dockerfile -t reactor-broker .`
"""

import json
import socket
from collections.abc import Iterable
from typing import Any
from urllib.request import Request, urlopen

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy

KAFKA, HTTP = 9092, 8080


class BrokerContainer(DockerContainer):
    """``topics``: made at the start, as NAME or NAME:PARTITIONS. ``settings``: of the broker, by name."""

    def __init__(self, image: str = "reactor-broker", topics: Iterable[str] = (), **settings: object) -> None:
        super().__init__(image)
        host, port = self.get_docker_client().host(), _free_port()
        self.bootstrap_servers = f"{host}:{port}"
        values = {
            # Clients are told to connect to the address that is published, so its port has to be known before the start.
            "listeners": f"kafka://0.0.0.0:{KAFKA}?advertised={host}:{port},http://0.0.0.0:{HTTP}",
            "create_topics": ",".join(topics),
            "faults_enabled": "true",
            "http_allowed_hosts": host,
            **settings,
        }
        for name, value in values.items():
            self.with_env(f"BROKER_{name.upper()}", str(value))
        self.with_bind_ports(KAFKA, port)
        self.with_exposed_ports(HTTP)
        self.waiting_for(HttpWaitStrategy(HTTP, "/readyz").for_status_code(200))

    @property
    def url(self) -> str:
        return f"http://{self.get_container_host_ip()}:{self.get_exposed_port(HTTP)}"

    def add_fault(self, kind: str, **fields: object) -> int:
        """The number of the fault, whose kinds and fields docs/TESTING.md describes."""
        return int(self._call("POST", "", {"kind": kind, **fields})["number"])

    def fault(self, number: int, wait: int = 0, timeout_ms: int = 30_000) -> dict[str, Any]:
        """What the fault has met, once it has ``wait`` hits or the time is over."""
        found: dict[str, Any] = self._call("GET", f"/{number}?wait={wait}&timeout_ms={timeout_ms}")
        return found

    def trigger(self, kind: str, **fields: object) -> None:
        """Have a fault that changes the broker's state happen now."""
        self._call("POST", "/trigger", {"kind": kind, **fields})

    def remove_faults(self) -> None:
        self._call("DELETE")

    def _call(self, method: str, path: str = "", value: object = None) -> Any:
        """Raises urllib.error.HTTPError, whose body says why."""
        body = None if value is None else json.dumps(value).encode()
        with urlopen(Request(f"{self.url}/api/v1/faults{path}", body, method=method), timeout=90) as answer:
            return json.loads(answer.read() or b"null")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
