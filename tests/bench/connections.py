"""What connections cost each other: several at once, each with requests of its own kind, in a closed loop.

Each connection sends as soon as it is answered, as most services do. The driver is in C (`closed_loop.c`, compiled here with
``cc``): one in Python would be as slow as the broker, and hide what independent clients cost. By kind of connection: the rate,
and the median and the 99th percentile of the latency. The CPU is that of all requests together. If a case has both acks=1 and
acks=all, they take turns in one broker; with ``--processors 1 3`` or ``--nodes 1 2``, brokers of so many take turns. A connection
goes to the node that has its partition, and the CPU is that of all nodes. With ``--bare``, the first is a loop in Python that
does the least for the same requests (``bare.py``), and the others have ratios to it.
"""

import argparse
import functools
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from protocol.kafka.api_keys import ApiKey
from tests.bench.frame import CPU, Figures, Meter, Options, Row, compared
from tests.bench.process import ROOT, BrokerProcess, Helper, OwnProcess
from tests.bench.wire import Wire, batch, produce, produce_frame


class Kind(NamedTuple):
    """So many connections, each with so many requests at a time, of so many records of so many bytes."""

    name: str
    connections: int
    requests: int = 1
    records: int = 1
    size: int = 100
    topics: int = 1  # that the connections share out
    partitions: int = 1  # of each topic, shared out, too


SMALL = Kind("small", 10)
LARGE = Kind("1 MB", 3, records=1000, size=1000)
BOTH = (1, -1)
# By name: acks, and the connections.
CASES: dict[str, tuple[Sequence[int], list[Kind]]] = {
    "1 small": (BOTH, [SMALL._replace(connections=1)]),
    "10 small": (BOTH, [SMALL]),
    "100 small": (BOTH, [SMALL._replace(connections=100)]),
    "100 small, a topic each": (BOTH, [SMALL._replace(connections=100, topics=100)]),
    "100 small, 8 partitions": (BOTH, [SMALL._replace(connections=100, partitions=8)]),
    "16 KB, 8 partitions": (BOTH, [Kind("16 KB", 16, records=16, size=1000, partitions=8)]),
    "3 small": ((1,), [SMALL._replace(connections=3)]),
    "small and 16 KB": (BOTH, [SMALL, Kind("16 KB", 10, records=16, size=1000)]),
    "small and runs": ((1,), [SMALL, Kind("100 at a time", 3, requests=100)]),
    "small and long runs": ((1,), [SMALL, Kind("1,000 at a time", 1, requests=1000)]),
    "large": ((1,), [LARGE._replace(connections=6)]),
    "small and large": (BOTH, [SMALL, LARGE]),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processors", nargs="+", default=[], help="compare brokers with so many network_threads")
    parser.add_argument("--nodes", nargs="+", default=[], help="compare brokers of so many nodes on this machine")
    parser.add_argument("--bare", action="store_true", help="beside the bare loop")


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc")


@functools.cache
def driver() -> Path:
    """`closed_loop`, compiled if it is older than its source."""
    source, program = Path(__file__).with_name("closed_loop.c"), ROOT / "build" / "bench" / "closed_loop"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        cc = compiler()
        if cc is None:
            raise SystemExit(f"This scenario needs a C compiler for {source.name}: install one that is called cc.")
        program.parent.mkdir(parents=True, exist_ok=True)
        new = program.with_suffix(f".{os.getpid()}")
        subprocess.run([cc, "-O2", "-Wall", "-Wextra", "-o", new, source], check=True)
        new.replace(program)
    return program


def clients(broker: OwnProcess, kinds: Sequence[Kind], acks: int) -> bytes:
    """What the driver reads."""
    described = bytearray()
    for number, kind in enumerate(kinds):
        records = batch(kind.records, kind.size)
        ports = leaders(broker, kind)
        for each in range(kind.connections):
            topic, partition = f"bench-{each % kind.topics}", each // kind.topics % kind.partitions
            data = produce_frame(topic, records, acks, partition) * kind.requests
            port = ports[topic, partition]
            described += struct.pack("=4I", number, port, kind.requests, len(data)) + data
    return bytes(described)


def leaders(server: OwnProcess, kind: Kind) -> dict[tuple[str, int], int]:
    """The port of the node that has it, by topic and partition. The bare loop takes requests for any."""
    names = [f"bench-{number}" for number in range(kind.topics)]
    if not isinstance(server, BrokerProcess):
        return {(name, number): server.port[1] for name in names for number in range(kind.partitions)}
    wire = Wire(server.address)
    topics = [{"name": name} for name in names]
    answer = wire.call(ApiKey.METADATA, 5, {"topics": topics, "allow_auto_topic_creation": False})
    wire.close()
    ports = {node.node_id: node.port for node in answer.brokers}
    return {
        (topic.name, partition.partition_index): ports[partition.leader_id]
        for topic in answer.topics
        for partition in topic.partitions
    }


def measure(broker: OwnProcess, acks: int, kinds: Sequence[Kind], seconds: float) -> Figures:
    command = [driver(), str(seconds)]
    with Meter(broker) as meter:
        answer = subprocess.run(command, input=clients(broker, kinds, acks), check=True, stdout=subprocess.PIPE).stdout
    figures: Figures = {}
    answered = 0
    for kind, line in zip(kinds, answer.decode().splitlines(), strict=True):
        rounds, took_s, median_us, slow_us = map(float, line.split())
        answered += int(rounds) * kind.requests
        figures[f"{kind.name}/s"] = rounds * kind.requests / took_s
        figures |= {f"{kind.name} p50 ms": median_us / 1e3, f"{kind.name} p99 ms": slow_us / 1e3}
    return {CPU: meter.cpu_s / answered * 1e6} | figures


def prepare(broker: BrokerProcess, kinds: Sequence[Kind]) -> None:
    """Create the topics, and see that the broker takes these requests without an error, which the driver does not look for."""
    wire = Wire(broker.address)
    for number in range(max(kind.topics for kind in kinds)):
        wire.create_topic(f"bench-{number}", max(kind.partitions for kind in kinds))
    for kind in kinds:
        for (topic, partition), port in leaders(broker, kind).items():
            leader = Wire(f"127.0.0.1:{port}")
            produce(leader, produce_frame(topic, batch(kind.records, kind.size), 1, partition), topic, 1, 1)
            leader.close()


def variations(options: Options) -> list[tuple[str, list[str], int]]:
    """What to call them, their settings, and their number of nodes."""
    if options.nodes:
        return [(f", {count} nodes", [], int(count)) for count in options.nodes]
    if options.processors:
        return [(f", {count} processors", [f"network_threads={count}"], 1) for count in options.processors]
    return [("", [], 1)]


def case(name: str) -> Callable[[Options], Iterator[Row]]:
    def section(options: Options) -> Iterator[Row]:
        all_acks, kinds = CASES[name]
        kinds = [kind._replace(requests=options.count(kind.requests)) for kind in kinds]
        variants: dict[str, Callable[[], Figures]] = {}
        with ExitStack() as stack:
            if options.bare:
                files = stack.enter_context(TemporaryDirectory(prefix="broker-bench-", dir=options.directory))
                loop = stack.enter_context(Helper("bare", "fetch", files))
                variants["1, bare loop"] = partial(measure, loop, 1, kinds, options.seconds)
            for what, setting, nodes in variations(options):
                broker = stack.enter_context(BrokerProcess(*setting, directory=options.directory, nodes=nodes))
                prepare(broker, kinds)
                measure(broker, 1, kinds, options.seconds / 10)
                for acks in all_acks:
                    variant = ("all" if acks < 0 else str(acks)) + what
                    variants[variant] = partial(measure, broker, acks, kinds, options.seconds)
            yield from compared(options.rounds, variants, f"{name}, acks=")

    return section


SECTIONS = {name.replace(" ", "-").replace(",", ""): case(name) for name in CASES}
