"""Machines that are one cluster: `broker serve --nodes N`, each with its disk, on one PostgreSQL and one object store."""

import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from broker.cluster.nodes import owner_of
from broker.metadata.postgres_cluster import ClusterSession, machine_of
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_feed import owners_of
from protocol.kafka.api_keys import ApiKey
from tests.durable.durable_broker import wait_until
from tests.durable.postgres import PostgresServer
from tests.durable.proxy import Proxy
from tests.durable.s3_server import BUCKET, S3Server, fresh_prefix
from tests.kafka_connection import KafkaConnection
from tests.process.broker_process import PATIENCE_S, BrokerProcess, runs, states

KAFKA_PORT = 9092


class Machine(BrokerProcess):
    """One of them, at an address of its own. Its processes are the supervisor and those of the nodes."""

    def __init__(
        self, cluster: "Cluster", directory: Path, *settings: str, environment: Mapping[str, str] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.host = f"127.{'.'.join(str(random.randrange(1, 255)) for _ in range(3))}"
        super().__init__(directory, *cluster.settings, *settings, environment=environment)
        self.listener = f"kafka://{self.host}:{KAFKA_PORT}"
        self.more_listeners = [f"{scheme}://{self.host}:{port}" for scheme, port in cluster.more_listeners.items()]
        self.options = ("--nodes", str(cluster.count))
        self.ways: dict[str, Proxy] = {}  # to "engine" and "store", which can be cut
        self.processes = 1 + cluster.count

    @property
    def name(self) -> str:
        """As owners' rows have it, of its newest life."""
        return str([event["machine"] for event in self.events if event["event"] == "machine_started"][-1])

    @property
    def family(self) -> list[int]:
        """The ids of its processes, its supervisor's first."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    def wait_until_ready(self) -> Self:
        own = self.listener
        super().wait_until_ready()
        self.listener = own  # the address may be another machine's
        return self

    def stand_still(self) -> None:
        """Returns when none of its threads runs."""
        self.suspend()  # the supervisor first: from then on it makes no other process, and those that end keep their ids
        for pid in self.family[1:]:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(states(pid) <= set("TZX") for pid in self.family), "a process goes on")

    def go_on(self) -> None:
        for pid in reversed(self.family):
            os.kill(pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """kill -9 to all its processes, whether they stand still or not."""
        self.suspend()
        family = self.family
        for pid in reversed(family):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        wait_until(lambda: not any(map(runs, family)), "a process has survived")

    def lose(self) -> None:
        """``kill_all``, and its disk is gone."""
        self.kill_all()
        shutil.rmtree(self.data_dir)


class Cluster:
    """``machines`` are those that were ever started, by their number from 0 on."""

    def __init__(
        self,
        directory: Path,
        postgres: PostgresServer,
        count: int = 3,
        *settings: str,
        more_listeners: Mapping[str, int] | None = None,
        store: S3Server | None = None,
    ) -> None:
        """``more_listeners``: of each machine, besides Kafka's; schemes with the first node's port. ``store``: in place of a
        directory; then machines reach it and the engine by proxies of their own, ``ways``."""
        self.more_listeners = more_listeners or {}
        self.directory = directory
        self.postgres = postgres
        self.count = count
        self.store = store
        objects = f"file://{directory / 'objects'}" if store is None else f"s3://{BUCKET}/{fresh_prefix()}"
        self.settings = [f"catalogue={postgres.url}", f"objects={objects}", *settings]
        self.schema = "broker"
        self.machines: list[Machine] = []

    def machine(self, *settings: str, environment: Mapping[str, str] | None = None) -> Machine:
        """A new one, which does not run yet."""
        directory = self.directory / f"machine-{len(self.machines)}"
        ways: dict[str, Proxy] = {}
        if self.store is not None:
            ways = {"engine": Proxy(self.postgres.port), "store": Proxy(self.store.port)}
            endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{ways['store'].port}"}
            environment = {**self.store.environment, **endpoint, **(environment or {})}
        machine = Machine(self, directory, *settings, environment=environment)
        if ways:
            machine.ways = ways
            machine.settings[0] = machine.settings[0].replace(f":{self.postgres.port}/", f":{ways['engine'].port}/")
        self.machines.append(machine)
        return machine

    def start(self, count: int) -> list[Machine]:
        """So many more machines; returns when all nodes serve and are divided among the living."""
        started = [self.machine().start() for _ in range(count)]  # one after the other: many start slowly together
        self.wait_for_balance(self.running())
        return started

    def running(self) -> list[Machine]:
        return [each for each in self.machines if each.is_running]

    def serving(self) -> dict[int, str]:
        """Which machine has each node, of those that serve."""
        with self.postgres.connect() as connection:
            found = connection.execute(
                f"SELECT owners.node, holder FROM ({owners_of(Address(self.postgres.url, self.schema), self.count)}) AS owners "
                f"JOIN {self.schema}.nodes ON nodes.node = owners.node AND nodes.epoch = owners.epoch WHERE leased"
            ).fetchall()
        return {int(str(node)): machine_of(str(holder)) for node, holder in found}

    def wait_for_balance(self, among: Iterable[Machine]) -> None:
        names = [machine.name for machine in among]

        def is_balanced() -> bool:
            had = list(self.serving().values())
            shares = [had.count(name) for name in names]
            is_even = sum(shares) == self.count and max(shares) - min(shares) <= 1
            return is_even and self._know_each_other()

        self._wait_until(is_balanced, f"not divided among {names}")

    def wait_for_all(self, among: Iterable[Machine]) -> None:
        """All nodes serve, on these."""
        names = {machine.name for machine in among}

        def all_serve() -> bool:
            had = self.serving()  # at one moment: a node that is just being taken over is not among them
            return len(had) == self.count and set(had.values()) <= names and self._know_each_other()

        self._wait_until(all_serve, f"not all nodes serve on {names}")

    def _know_each_other(self) -> bool:
        """Whether each node, if clients reach it without TLS, has heard of all: they hear of one a little after it serves."""
        with self.postgres.connect() as connection:
            rows = connection.execute(f"SELECT about FROM {self.schema}.nodes WHERE node < {self.count}".encode())
            nodes = [json.loads(str(about)) for (about,) in rows.fetchall()]
        expected = {node["node_id"] for node in nodes}
        for host, port in [node["endpoints"]["kafka"] for node in nodes if "kafka" in node["endpoints"]]:
            try:
                with KafkaConnection((host, port)) as connection:
                    known = connection.ask(ApiKey.METADATA, 12, topics=[]).brokers
            except OSError:  # it has just gone
                return False
            if expected != {broker.node_id for broker in known}:
                return False
        return True

    def _wait_until(self, condition: Callable[[], bool], complaint: str) -> None:
        try:
            wait_until(condition, complaint, (1 + self.count) * PATIENCE_S)  # as for their start
        except AssertionError:
            for machine in self.machines:
                print(machine.directory.name, *machine.output.splitlines()[-40:], sep="\n")
            print(self.serving())
            raise

    def wait_for_standbys(self, machine: Machine) -> None:
        """Another one is there that would take what this machine has."""
        had = [node for node, name in self.serving().items() if name == machine.name]
        session = ClusterSession(Address(self.postgres.url, self.schema), PATIENCE_S)
        with contextlib.closing(session):
            self._wait_until(lambda: all(map(session.somebody_waits_for, had)), "nobody stands by")

    def owners(self, topic: str, partitions: int, machine: Machine) -> dict[int, str]:
        """Where clients reach the owners of those partitions which this machine has."""
        had = [node for node, name in self.serving().items() if name == machine.name]
        places = {partition: owner_of(topic, partition, self.count) for partition in range(partitions)}
        return {each: f"{machine.host}:{KAFKA_PORT + place}" for each, place in places.items() if place in had}

    @property
    def addresses(self) -> str:
        """For Kafka's clients."""
        return self.first_at(KAFKA_PORT)

    def first_at(self, port: int) -> str:
        """The first node's addresses with this port, for clients to begin with: it is on one of the machines."""
        return ",".join(f"{machine.host}:{port}" for machine in self.machines)

    def endpoints(self, listener: str) -> dict[int, str]:
        """Where each node listens that has served, or has listened last, by its place."""
        with self.postgres.connect() as connection:
            rows = connection.execute(f"SELECT node, about FROM {self.schema}.nodes".encode()).fetchall()
        found = {int(str(node)): json.loads(str(about))["endpoints"][listener] for node, about in rows}
        return {place: f"{host}:{port}" for place, (host, port) in found.items()}

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for machine in self.machines for event in machine.events]

    def end(self) -> None:
        for machine in self.running():
            machine.kill_all()
        for machine in self.machines:
            for way in machine.ways.values():
                way.close()
