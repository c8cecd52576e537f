"""What a buffer costs the broker beside Flink's own server, read by Flink's own network client.

Both servers have the same partitions: finished, of one subpartition each, with full buffers, as many partitions as the reading
gate has channels. ``memory``: pipelined partitions, written before they are read. ``files``: the broker's blocking partitions
beside Flink's two kinds of them, ``sort`` (sort-merge, Flink's default) and ``hash`` (a file of each subpartition, sent by
sendfile). The gate has that many exclusive buffers for each channel, and eight floating ones, Flink's default. It gives each
buffer back as soon as it has come.

A round reads everything from each server in turn. The CPU is that of the server's process, all threads, divided by the number of
data buffers. A ratio is the broker's beside this kind of Flink's partitions, the median of the rounds. The JVMs are warmed up
before, and the first round of each cell does not count. ``--base``: the tree of an earlier commit, whose broker takes part.

Needs java, javac and Flink's jar (``tests/compat/flink/jars.py``; BROKER_FLINK_DOWNLOAD=1 gets it from PyPI).
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.bench.frame import CPU, RATIO, Figures, Options, Row, Section, in_turns, medians, ratios
from tests.bench.process import BrokerProcess, OwnProcess
from tests.bench.shuffle import BLOCKING, PIPELINED, new_id, release, write
from tests.compat.flink import jars
from tests.compat.flink.flink_program import FlinkProgram
from tests.compat.flink.flink_reader import FlinkReader

RELEASE = "2.3.0"
_SOURCE = Path(__file__).parent / "java" / "ServeBuffers.java"
_MAIN = "org.apache.flink.runtime.io.network.partition.ServeBuffers"
_READER_MEMORY_MB = 1024
# A round: enough that requests and first credits do not count for much, few enough that several rounds take seconds.
_ROUND_BYTES = 128 << 20
_ROUND_BUFFERS_MAX = 65536
_EACH_MIN = 24  # buffers of a channel
_WARM_UP_ROUNDS = 8
# A pipelined partition is filled before it is read, and stays in memory.
_SETTINGS = ("shuffle_pipelined_bytes=1073741824", "shuffle_memory_bytes=4294967296")


class Server(Protocol):
    address: str

    def cpu_s(self) -> float: ...

    def fill(self, kind: str, count: int, size: int, each: int) -> Sequence[bytes]:
        """The ids of ``count`` partitions of ``each`` buffers."""

    def empty(self) -> None: ...


class FlinkServer(FlinkProgram, OwnProcess):
    def __init__(self, size: int, directory: str) -> None:
        most = max(_ROUND_BYTES // size, _EACH_MIN * 256) * 2
        options = ("-XX:MaxDirectMemorySize=2g",)
        super().__init__(RELEASE, _SOURCE, _MAIN, directory, str(size), str(most), options=options)
        self.pid = self._process.pid
        self.address = f"127.0.0.1:{self._line()}"

    def fill(self, kind: str, count: int, size: int, each: int) -> Sequence[bytes]:
        return [bytes.fromhex(each) for each in self._ask_line(f"make {kind} {count} {each}").split()]

    def empty(self) -> None:
        assert self._ask_line("drop") == "dropped"


class OurServer(BrokerProcess):
    def fill(self, kind: str, count: int, size: int, each: int) -> Sequence[bytes]:
        self._ids = [new_id() for _ in range(count)]
        for partition in self._ids:
            write(self.address, partition, 1, PIPELINED if kind == "memory" else BLOCKING, size, each).close()
        return self._ids

    def empty(self) -> None:
        release(self.address, self._ids)


class Cell:
    """A combination with which all servers are measured."""

    def __init__(self, reader: FlinkReader, size: int, channels: int, credit: int, buffers: int) -> None:
        self._reader, self._size, self._channels = reader, size, channels
        self._each = max(_EACH_MIN, buffers // channels)
        self._kept: dict[str, Sequence[bytes]] = {}
        reader.configure({"memory.buffers-per-channel": credit})

    def once(self, name: str, server: Server, kind: str) -> Figures:
        """The CPU of a buffer. Partitions in memory are gone afterwards."""
        in_memory = kind in ("pipelined", "memory")
        ids = self._kept.get(name) or server.fill(kind, self._channels, self._size, self._each)
        gate = self._reader.gate(server.address, *ids, kind="PIPELINED_BOUNDED" if in_memory else "BLOCKING")
        before = server.cpu_s()
        gate.start(delay_us=-1)
        result = gate.result()
        spent = server.cpu_s() - before
        assert result.finished and not result.error, result.error
        count = len(ids) * self._each
        assert gate.buffers == count or kind == "sort", gate.buffers
        gate.close()
        if in_memory:
            server.empty()
        else:
            self._kept[name] = ids
        return {CPU: spent / count * 1e6}

    def measure(self, contenders: dict[str, tuple[Server, str]], rounds: int) -> dict[str, list[Figures]]:
        works = {name: partial(self.once, name, *contender) for name, contender in contenders.items()}
        runs = in_turns(rounds + 1, works)
        if self._kept:
            for server in {id(server): server for server, _ in contenders.values()}.values():
                server.empty()
        return {name: figures[1:] for name, figures in runs.items()}


def _cells(options: Options, where: str) -> Iterator[Row]:
    if (reason := jars.missing(RELEASE)) is not None:
        sys.exit(reason)
    for size in options.size:
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory, prefix="broker-bench-"))
            jvm = [f"-Dnetwork.memory={_READER_MEMORY_MB}", f"-XX:MaxDirectMemorySize={2 * _READER_MEMORY_MB}m"]
            reader = stack.enter_context(FlinkReader(RELEASE, jvm))
            flink = stack.enter_context(FlinkServer(size, directory))
            kinds = ["pipelined"] if where == "memory" else ["sort", "hash"]
            contenders: dict[str, tuple[Server, str]] = {f"Flink {kind}": (flink, kind) for kind in kinds}
            warm_up = Cell(reader, size, 4, 2, options.count(8192))
            warm_up.measure(contenders, options.count(_WARM_UP_ROUNDS))
            for name, tree in (("before", options.base), ("broker", None)):
                if tree or name == "broker":
                    ours = OurServer(*_SETTINGS, listener="shuffle", directory=directory, tree=tree)
                    contenders[name] = stack.enter_context(ours), where
            for channels in options.channels:
                for credit in options.credit:
                    buffers = options.count(min(_ROUND_BYTES // size, _ROUND_BUFFERS_MAX))
                    runs = Cell(reader, size, channels, credit, buffers).measure(contenders, options.rounds)
                    figures = medians(runs["broker"])
                    for name in [name for name in runs if name != "broker"]:
                        figures[f"{name} us"] = medians(runs[name])[CPU]
                        figures[f"{name} us{RATIO}"] = ratios(runs["broker"], runs[name])[CPU + RATIO]
                    yield Row(f"{size:5} B from {where}, {channels} channels, credit {credit}", figures)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rounds=5)
    parser.add_argument("--size", type=_numbers, default=[32768, 1024], help="of a buffer, several with commas")
    parser.add_argument("--channels", type=_numbers, default=[1, 16, 256])
    parser.add_argument("--credit", type=_numbers, default=[2, 64])
    parser.add_argument("--base", help="the directory of another tree")


SECTIONS: dict[str, Section] = {where: partial(_cells, where=where) for where in ("memory", "files")}
