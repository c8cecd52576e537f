"""What a buffer costs the broker beside Flink's own server, read by Flink's own network client.

    python -m tests.bench.flink [--size BYTES] [--channels N,...] [--credit N,...] [--from memory,files]
                                      [--base TREE] [--rounds N] [--buffers N]

Both servers have the same partitions: finished, of one subpartition each, with full buffers, as many partitions as the reading
gate has channels. ``memory``: pipelined partitions, written before they are read. ``files``: the broker's blocking partitions
beside Flink's two kinds of them, ``sort`` (sort-merge, Flink's default) and ``hash`` (a file of each subpartition, sent by
sendfile). The gate has that many exclusive buffers for each channel, and eight floating ones, Flink's default. It gives each
buffer back as soon as it has come.

A round reads everything from each server in turn; another one begins each round. The figure is the CPU time of the server's
process, all threads, divided by the number of data buffers; the median of the rounds is told. The ratio is the median of those
of the rounds. The JVMs are warmed up before, and their first round of each cell does not count. ``--base``: the tree of an
earlier commit, whose broker takes part.

Needs java, javac and Flink's jar (``tests/compat/flink/jars.py``; BROKER_FLINK_DOWNLOAD=1 gets it from PyPI).
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tests.bench.shuffle import BLOCKING, PIPELINED, Frames, Process, connect, new_id, w, write
from tests.bench.process import cpu_s, figure
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
    name: str

    @property
    def cpu_s(self) -> float: ...

    @property
    def address(self) -> str: ...

    def fill(self, kind: str, count: int, size: int, each: int) -> list[bytes]:
        """The ids of ``count`` partitions of ``each`` buffers."""

    def empty(self) -> None: ...


class FlinkServer(FlinkProgram):
    def __init__(self, size: int, directory: str, stack: ExitStack) -> None:
        self.name = "flink"
        most = max(_ROUND_BYTES // size, _EACH_MIN * 256) * 2
        options = ("-XX:MaxDirectMemorySize=2g",)
        super().__init__(RELEASE, _SOURCE, _MAIN, directory, str(size), str(most), options=options)
        stack.push(self)
        self.address = f"127.0.0.1:{self._line()}"

    @property
    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)

    def fill(self, kind: str, count: int, size: int, each: int) -> list[bytes]:
        return [bytes.fromhex(each) for each in self._ask_line(f"make {kind} {count} {each}").split()]

    def empty(self) -> None:
        assert self._ask_line("drop") == "dropped"


class OurServer:
    def __init__(self, name: str, tree: str | None, directory: str, stack: ExitStack) -> None:
        self.name = name
        self._broker = stack.enter_context(Process(*_SETTINGS, directory=directory, tree=tree))
        self._ids: list[bytes] = []

    @property
    def cpu_s(self) -> float:
        return self._broker.cpu_s()

    @property
    def address(self) -> str:
        return self._broker.address

    def fill(self, kind: str, count: int, size: int, each: int) -> list[bytes]:
        self._ids = [new_id() for _ in range(count)]
        for partition in self._ids:
            write(self._broker.port, partition, 1, PIPELINED if kind == "pipelined" else BLOCKING, size, each).close()
        return self._ids

    def empty(self) -> None:
        sock = connect(self._broker.port)
        frames = Frames(sock)
        for number, partition in enumerate(self._ids):
            sock.sendall(w.encode_release_partition(number, partition))
            frames.next()
        sock.close()
        self._ids = []


class Cell:
    """One combination: what all servers are measured with."""

    def __init__(self, reader: FlinkReader, size: int, channels: int, credit: int, where: str, buffers: int) -> None:
        self._reader = reader
        self.size, self.channels, self.credit, self.where = size, channels, credit, where
        wanted = buffers or min(_ROUND_BYTES // size, _ROUND_BUFFERS_MAX)
        self.each = max(_EACH_MIN, wanted // channels)
        reader.configure({"memory.buffers-per-channel": credit})

    @property
    def name(self) -> str:
        return f"{self.size:6} B from {self.where:6} {self.channels:4} channels, credit {self.credit:3}"

    def round(self, server: Server, ids: Sequence[bytes], kind: str) -> float:
        """us of CPU a buffer."""
        gate = self._reader.gate(server.address, *ids, kind="PIPELINED_BOUNDED" if kind == "pipelined" else "BLOCKING")
        before = server.cpu_s
        gate.start(delay_us=-1)
        result = gate.result()
        spent = server.cpu_s - before
        assert result.finished and not result.error, result.error
        count = gate.buffers
        assert count == len(ids) * self.each or kind == "sort", count
        gate.close()
        return spent / (len(ids) * self.each) * 1e6

    def measure(self, contenders: Sequence[tuple[Server, str]], rounds: int) -> dict[str, list[float]]:
        """The figures of each server and kind of partition, round by round."""
        figures: dict[str, list[float]] = {f"{server.name} {kind}": [] for server, kind in contenders}
        kept: dict[str, list[bytes]] = {}
        for number in range(rounds + 1):
            turn = number % len(contenders)
            for server, kind in [*contenders[turn:], *contenders[:turn]]:
                name = f"{server.name} {kind}"
                ids = kept.get(name) or server.fill(kind, self.channels, self.size, self.each)
                if kind != "pipelined":
                    kept[name] = ids
                spent = self.round(server, ids, kind)
                if kind == "pipelined":
                    server.empty()
                if number:
                    figures[name].append(spent)
        if kept:
            for server in {id(server): server for server, _ in contenders}.values():
                server.empty()
        return figures


def contenders(servers: Sequence[Server], where: str) -> list[tuple[Server, str]]:
    found: list[tuple[Server, str]] = []
    for server in servers:
        kinds = ["pipelined"] if where == "memory" else ["sort", "hash"] if server.name == "flink" else ["files"]
        found += [(server, kind) for kind in kinds]
    return found


def report(cell: Cell, figures: dict[str, list[float]]) -> None:
    ours = next(name for name in figures if name.startswith("now"))
    told = []
    for name, found in figures.items():
        middle = statistics.median(found)
        if name == ours:
            told.append(f"{name} {middle:6.2f} us")
            figure(cell.name, middle)
        else:
            ratio = statistics.median(now / other for now, other in zip(figures[ours], found, strict=True))
            told.append(f"{name} {middle:6.2f} us ({ratio:4.2f})")
    print(f"{cell.name}: {', '.join(told)}", flush=True)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=numbers, default=[32768, 1024])
    parser.add_argument("--channels", type=numbers, default=[1, 16, 256])
    parser.add_argument("--credit", type=numbers, default=[2, 64])
    parser.add_argument("--from", dest="where", type=lambda text: text.split(","), default=["memory", "files"])
    parser.add_argument("--base", help="the directory of another tree")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--buffers", type=int, default=0, help="of a round (default: 128 MB, at most 65,536)")
    parser.add_argument("--dir", help="where the files lie")
    options = parser.parse_args()
    if (reason := jars.missing(RELEASE)) is not None:
        sys.exit(reason)
    for size in options.size:
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir, prefix="broker-bench-"))
            jvm = [f"-Dnetwork.memory={_READER_MEMORY_MB}", f"-XX:MaxDirectMemorySize={2 * _READER_MEMORY_MB}m"]
            reader = stack.enter_context(FlinkReader(RELEASE, jvm))
            servers: list[Server] = [FlinkServer(size, directory, stack)]
            if options.base:
                servers.append(OurServer("before", options.base, directory, stack))
            servers.append(OurServer("now", None, directory, stack))
            for where in options.where:
                chosen = contenders(servers, where)
                Cell(reader, size, 4, 2, where, 8192).measure(
                    [c for c in chosen if c[0].name == "flink"], _WARM_UP_ROUNDS
                )
                for channels in options.channels:
                    for credit in options.credit:
                        cell = Cell(reader, size, channels, credit, where, options.buffers)
                        report(cell, cell.measure(chosen, options.rounds))


if __name__ == "__main__":
    main()
