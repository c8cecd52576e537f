"""What several nodes cost and how long clients wait when one is lost: three nodes on one machine, and on several that share a
PostgreSQL with fsync (Linux, 15 or newer).

    failover    kill -9 of a node, or of a machine, until a client's write to its partition is acknowledged
    settle      CreateTopics, one topic at a time, by the number of nodes, which all have the topic before the client is answered
    topics      the same beside 10 topics and beside 10,000
    partitions  10,000 partitions: made, started after a kill, taken over by another machine; and the memory of a node
    idle        transactions of PostgreSQL in a second, and the CPU of both, when no client is there
    loaded      the same for producers of one record at a time, acks=all

Several machines are processes of this one.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from broker.cluster.nodes import owner_of
from protocol.kafka.api_keys import ApiKey
from tests.bench.frame import Figures, Meter, Options, Row, percentiles
from tests.bench.process import BrokerProcess, OwnProcess
from tests.bench.stores import PATIENCE_S, Backends, Stores, opened
from tests.bench.wire import Wire, batch, produce, produce_frame
from tests.durable.machines import Cluster

NODES = 3
_TOPIC = "bench"
_IDLE_S = 20.0
# An idle session of PostgreSQL reports its transactions after 10 s.
_REPORTED_S = 12.0
_AGAIN_S = 0.005
_TOGETHER = 1000


class _Family:
    """The CPU of these processes and of their children."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    def cpu_s(self) -> float:
        return sum(_process(pid).cpu_s() for pid in self._pids)


def _process(pid: int) -> OwnProcess:
    process = OwnProcess()
    process.pid = pid
    return process


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class _Leaders:
    """Finds the leader of each partition as a client does: it asks any node that answers."""

    def __init__(self, addresses: str) -> None:
        self.addresses = set(addresses.split(","))

    def anybody(self) -> str:
        """Of a node that answers."""
        for address in self.addresses:
            try:
                Wire(address).close()
                return address
            except OSError:
                continue
        raise AssertionError("nobody answers")

    def metadata(self, topic: str = _TOPIC) -> Any:
        """Raises ConnectionError if nobody answers."""
        for address in self.addresses:
            try:
                wire = Wire(address)
                try:
                    found = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": topic}]})
                finally:
                    wire.close()
            except OSError:
                continue
            self.addresses |= {f"{broker.host}:{broker.port}" for broker in found.brokers}
            return found
        raise ConnectionError("nobody answers")

    def address(self, partition: int) -> str | None:
        """Of the partition's leader. None: it has none now, or nobody answers."""
        try:
            found = self.metadata()
        except OSError:
            return None
        brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in found.brokers}
        leaders = {each.partition_index: each.leader_id for each in found.topics[0].partitions}
        return brokers.get(leaders.get(partition))

    def write(self, partition: int, records: bytes) -> None:
        """Returns when a write is acknowledged."""
        frame, deadline = produce_frame(_TOPIC, records, -1, partition), time.perf_counter() + PATIENCE_S
        while True:
            assert time.perf_counter() < deadline, "no write is acknowledged"
            address = self.address(partition)
            try:
                if address is not None:
                    wire = Wire(address)
                    try:
                        produce(wire, frame, _TOPIC, 1, 1)
                        return
                    finally:
                        wire.close()
            except (OSError, AssertionError):
                pass
            time.sleep(_AGAIN_S)


@contextmanager
def _one_machine(options: Options, nodes: int = NODES) -> Iterator[BrokerProcess]:
    with BrokerProcess(directory=options.directory, nodes=nodes) as broker:
        yield broker


@contextmanager
def _machines(stores: Stores, count: int, nodes: int = NODES) -> Iterator[Cluster]:
    cluster = Cluster(Path(stores.directory, stores.new_schema()), stores.postgres, nodes)
    try:
        cluster.start(count)
        yield cluster
    finally:
        cluster.end()
        with stores.postgres.connect() as connection:  # the next one's are made anew
            for (name,) in connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'broker%'"
            ).fetchall():
                connection.execute(f"DROP SCHEMA {name} CASCADE".encode())


def _make(address: str, first: int, count: int, partitions: int = 1, together: int = 1) -> list[float]:
    """So many topics. The time of each request in s; AssertionError for an error reply."""
    wire, took = Wire(address), []
    for at in range(first, first + count, together):
        topics = [
            {
                "name": f"t{number:06}",
                "num_partitions": partitions,
                "replication_factor": 1,
                "assignments": (),
                "configs": (),
            }
            for number in range(at, min(at + together, first + count))
        ]
        began = time.perf_counter()
        reply = wire.call(ApiKey.CREATE_TOPICS, 5, {"topics": topics, "timeout": 50_000, "validate_only": False})
        took.append(time.perf_counter() - began)
        assert not any(topic.error_code for topic in reply.topics), reply
    wire.close()
    return took


# -- failover ----------------------------------------------------------------------------------------------------------


def bench_failover(options: Options) -> Iterator[Row]:
    times, records = options.count(10 * options.rounds, 1), batch(1, 100)
    if options.wants(name := "a node of one machine"):
        yield Row(name, percentiles("", [_lose_node(options, records) for _ in range(times)]))
    for machines in (2, 3):
        if options.wants(name := f"one of {machines} machines"):
            with opened(options) as stores, _machines(stores, machines) as cluster:
                leaders = _Leaders(cluster.addresses)
                Wire(leaders.anybody()).create_topic(_TOPIC, NODES)
                took = [_lose_machine(cluster, leaders, records) for _ in range(max(1, times // 2))]
                yield Row(name, percentiles("", took))


def _lose_node(options: Options, records: bytes) -> float:
    """A node that is not the first one, until its partition takes records again, in s. Each time of a new broker: a node that
    ends at once again is started later."""
    with _one_machine(options) as broker:
        Wire(broker.address).create_topic(_TOPIC, NODES)
        leaders = _Leaders(broker.address)
        partition = next(each for each in range(NODES) if owner_of(_TOPIC, each, NODES) == NODES - 1)
        leaders.write(partition, records)
        port = int(str(leaders.address(partition)).rpartition(":")[2])
        pid = next(pid for pid in _children(broker.pid) if port in _ports(pid))
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        leaders.write(partition, records)
        return time.perf_counter() - began


def _ports(pid: int) -> set[int]:
    """Those at which the process listens."""
    found = set()
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def _lose_machine(cluster: Cluster, leaders: _Leaders, records: bytes) -> float:
    """The machine that has the node of partition 0, until that takes records again, in s; then it comes back."""
    leaders.write(0, records)
    name = cluster.serving()[owner_of(_TOPIC, 0, NODES)]
    lost = next(machine for machine in cluster.running() if machine.name == name)
    began = time.perf_counter()
    lost.lose()
    leaders.write(0, records)
    took_s = time.perf_counter() - began
    lost.launch()
    lost.wait_until_ready()
    cluster.wait_for_balance(cluster.running())
    return took_s


# -- changes of topics -------------------------------------------------------------------------------------------------


def bench_settle(options: Options) -> Iterator[Row]:
    times = options.count(50 * options.rounds, 2)
    for nodes in (1, 2, 3, 4, 8):
        if options.wants(name := f"{nodes} nodes, one machine"):
            with _one_machine(options, nodes) as broker:
                yield Row(name, _settle(broker.address, [broker.pid], 0, times))
    for nodes in (2, 3, 6):
        if options.wants(name := f"{nodes} nodes, 2 machines"):
            with opened(options) as stores, _machines(stores, 2, nodes) as cluster:
                pids = [machine.process.pid for machine in cluster.machines]
                yield Row(name, _settle(_Leaders(cluster.addresses).anybody(), pids, 0, times))


def _settle(address: str, pids: list[int], first: int, times: int) -> Figures:
    with Meter(_Family(pids)) as meter:
        took = _make(address, first, times)
    return {**percentiles("", took), "CPU ms": meter.cpu_s / times * 1e3}


def bench_topics(options: Options) -> Iterator[Row]:
    times = options.count(50 * options.rounds, 2)
    with _one_machine(options) as broker:
        there = 0
        for beside in (10, options.count(1_000, 10), options.count(10_000, 10)):
            more = max(0, beside - there)
            _make(broker.address, there, more, together=_TOGETHER)
            there += more
            yield Row(f"beside {there} topics, one machine", _settle(broker.address, [broker.pid], there, times))
            there += times


# -- partitions --------------------------------------------------------------------------------------------------------


def bench_partitions(options: Options) -> Iterator[Row]:
    total = options.count(10_000, 30)
    for partitions in (1, 100):
        topics = total // partitions
        with _one_machine(options) as broker:
            if not topics or not options.wants(name := f"{topics} topics of {partitions}, one machine"):
                continue
            before = max(_process(pid).rss_mb() for pid in _children(broker.pid))
            with Meter(_Family([broker.pid])) as meter:
                _make(broker.address, 0, topics, partitions, together=max(1, _TOGETHER // partitions))
            made = {"made s": meter.took_s, "CPU s": meter.cpu_s}
            memory = max(_process(pid).rss_mb() for pid in _children(broker.pid)) - before
            broker.end(signal.SIGKILL)
            broker.start()
            started = {"started s": broker.ready_s, "nodes' CPU s": _Family(_children(broker.pid)).cpu_s()}
            yield Row(name, {**made, **started, "MB a node": memory})
    for partitions in (1, 100):
        topics = total // partitions
        if topics and options.wants(name := f"{topics} topics of {partitions}, 2 machines"):
            with opened(options) as stores, _machines(stores, 2) as cluster:
                yield Row(name, _take_over_many(cluster, topics, partitions))


def _take_over_many(cluster: Cluster, topics: int, partitions: int) -> Figures:
    leaders = _Leaders(cluster.addresses)
    address = leaders.anybody()
    Wire(address).create_topic(_TOPIC, NODES)
    with Meter(_Family([machine.process.pid for machine in cluster.machines])) as meter:
        _make(address, 0, topics, partitions, together=max(1, _TOGETHER // partitions))
    names = list(cluster.serving().values())
    lost, other = sorted(cluster.machines, key=lambda machine: -names.count(machine.name))
    nodes = [node for node, name in cluster.serving().items() if name == lost.name]
    before = _Family([other.process.pid]).cpu_s()
    began = time.perf_counter()
    lost.kill_all()  # its disk stays: to delete so many directories takes longer than the take-over
    for partition in range(NODES):  # of each node
        leaders.write(partition, batch(1, 100))
    took_s = time.perf_counter() - began
    return {
        "made s": meter.took_s,
        "CPU s": meter.cpu_s,
        f"{len(nodes)} nodes taken over s": took_s,
        "CPU of that s": _Family([other.process.pid]).cpu_s() - before,
        "MB a node": max(_process(pid).rss_mb() for pid in other.family[1:]),
    }


# -- the database ------------------------------------------------------------------------------------------------------


def _asked(stores: Stores, cluster: Cluster, seconds: float, load: "_Load | None" = None) -> Figures:
    """Transactions, and CPU of the machines and of PostgreSQL's backends, in a second."""
    family = _Family([machine.process.pid for machine in cluster.machines])
    before = stores.transactions()
    with Meter(Backends(stores)) as backends, Meter(family) as own:
        if load is None:
            time.sleep(seconds)
        else:
            load.run(seconds)
    if load is not None:
        time.sleep(_REPORTED_S)
    asked = stores.transactions() - before
    figures = {
        "transactions a s": asked / own.took_s,
        "brokers' CPU ms a s": own.cpu_s / own.took_s * 1e3,
        "PostgreSQL's CPU ms a s": backends.cpu_s / own.took_s * 1e3,
        "connections": _connections(stores),
    }
    if load is not None:
        figures |= {
            "requests a s": load.count / own.took_s,
            "transactions a request": asked / load.count,
            "PostgreSQL's CPU ms a request": backends.cpu_s / load.count * 1e3,
        }
    return figures


def _connections(stores: Stores) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ((count,),) = stores.connection.execute(query).fetchall()
    return int(str(count))


class _Load:
    """Producers of one record at a time: ``each`` for each partition."""

    def __init__(self, leaders: _Leaders, each: int) -> None:
        self.count = 0
        self._leaders = leaders
        self._each = each
        self._lock = threading.Lock()

    def run(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        partitions = [partition for partition in range(NODES) for _ in range(self._each)]
        threads = [threading.Thread(target=self._one, args=(partition, end)) for partition in partitions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, partition: int, end: float) -> None:
        wire = Wire(str(self._leaders.address(partition)))
        frame, count = produce_frame(_TOPIC, batch(1, 100), -1, partition), 0
        while time.perf_counter() < end:
            produce(wire, frame, _TOPIC, 1, 1)
            count += 1
        with self._lock:
            self.count += count


def bench_idle(options: Options) -> Iterator[Row]:
    seconds = min(_IDLE_S, 10 * options.seconds)
    for machines in (1, 2, 3):
        if options.wants(name := f"{NODES} nodes, {machines} machines"):
            with opened(options) as stores, _machines(stores, machines) as cluster:
                time.sleep(min(_REPORTED_S, seconds))
                yield Row(name, _asked(stores, cluster, seconds))


def bench_loaded(options: Options) -> Iterator[Row]:
    for each in (1, 8):
        if options.wants(name := f"{each} producers for each of {NODES} nodes, 2 machines"):
            with opened(options) as stores, _machines(stores, 2) as cluster, ExitStack():
                leaders = _Leaders(cluster.addresses)
                Wire(leaders.anybody()).create_topic(_TOPIC, NODES)
                yield Row(name, _asked(stores, cluster, 3 * options.seconds, _Load(leaders, each)))


SECTIONS = {
    "failover": bench_failover,
    "settle": bench_settle,
    "topics": bench_topics,
    "partitions": bench_partitions,
    "idle": bench_idle,
    "loaded": bench_loaded,
}
