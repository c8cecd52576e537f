"""docs/examples/testcontainers_broker.py with the broker's own process in the place of a container: its settings and its paths
are those of the broker."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaError, Producer

from tests.waiting import wait_for

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "testcontainers_broker.py"


class Container:
    """What the example uses of Testcontainers' DockerContainer. Ports inside and outside are the same here, so listeners are
    moved to those that would be published."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.variables: dict[str, str] = {}
        self.bound: dict[int, int] = {}
        self.exposed: tuple[int, ...] = ()
        self.ready_path = ""

    def get_docker_client(self) -> "Container":
        return self

    def host(self) -> str:
        return "localhost"

    def with_env(self, name: str, value: str) -> None:
        self.variables[name] = value

    def with_bind_ports(self, container: int, host: int) -> None:
        self.bound[container] = host

    def with_exposed_ports(self, *ports: int) -> None:
        self.exposed = ports

    def waiting_for(self, strategy: "Waiting") -> None:
        assert strategy.port in self.exposed
        self.ready_path = strategy.path

    def get_container_host_ip(self) -> str:
        return "localhost"

    def get_exposed_port(self, port: int) -> int:
        assert port in self.exposed
        return self.http_port

    def start(self, directory: Path) -> None:
        ((inside, outside),) = self.bound.items()
        listeners = self.variables["BROKER_LISTENERS"].replace(f"0.0.0.0:{inside}", f"127.0.0.1:{outside}")
        for port in self.exposed:
            listeners = listeners.replace(f"0.0.0.0:{port}", "127.0.0.1:0")
        ready = directory / "ready.json"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "broker",
                "serve",
                "--data-dir",
                str(directory / "data"),
                "--ready-file",
                str(ready),
            ],
            env={**os.environ, **self.variables, "BROKER_LISTENERS": listeners},
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: ready.exists() or self.process.poll() is not None)
        self.http_port = int(json.loads(ready.read_text())["listeners"]["http"].rpartition(":")[2])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class Waiting:
    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path

    def for_status_code(self, code: int) -> "Waiting":
        assert code == 200
        return self


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, values in {
        "testcontainers": {},
        "testcontainers.core": {},
        "testcontainers.core.container": {"DockerContainer": Container},
        "testcontainers.core.wait_strategies": {"HttpWaitStrategy": Waiting},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("testcontainers_broker", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_starts_a_broker_and_has_its_clients_meet_faults(example: Any, tmp_path: Path) -> None:
    container = example.BrokerContainer(topics=["orders:3"], num_partitions=2)
    container.start(tmp_path)
    try:
        with urlopen(container.url + container.ready_path) as answer:
            assert answer.status == 200
        fault = container.add_fault("error", api="PRODUCE", topic="orders", error="TOPIC_AUTHORIZATION_FAILED")
        told: list[Any] = []
        producer = Producer({"bootstrap.servers": container.bootstrap_servers})
        assert len(producer.list_topics("orders", timeout=60).topics["orders"].partitions) == 3
        producer.produce("orders", b"one book", on_delivery=lambda error, _message: told.append(error.code()))
        assert producer.flush(60) == 0
        assert told == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        assert container.fault(fault, wait=1)["hits"] == 1
        container.trigger("partitions_added", topic="orders", partitions=2)
        container.remove_faults()
        with pytest.raises(HTTPError, match="404"):
            container.fault(fault)
        with pytest.raises(HTTPError, match="400"):
            container.add_fault("no such kind")
    finally:
        container.stop()
