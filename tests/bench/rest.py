"""A broker with one Kafka listener at rest, beside what it has imported; and commands of the command line.

``start``: CPU until it is ready, and memory then, beside a process that only imports the same modules. The start is from a new
data directory, with the log's default level. ``RSS`` counts shared libraries in full, ``PSS`` their share. ``commands``: CPU of
whole processes, with a broker beside them.

As with a package that pip has installed, the bytecode of all modules is there; it is written into a temporary directory. Where
Python may not write any (``PYTHONDONTWRITEBYTECODE``), every start of a checkout compiles all modules, which doubles its CPU.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.bench.frame import Figures, Options, Row, compared
from tests.bench.process import TREE, BrokerProcess

# Prints the modules of a broker for Kafka that has started, has written events, and has stopped. Its argument: a new directory.
SERVED = """if True:
    import json, sys
    from broker.cli.main import main
    from broker.server import BrokerServer
    start = BrokerServer.start

    def started(server):
        start(server)
        server.request_stop()

    BrokerServer.start = started
    try:
        main(["serve", "--listener", "kafka://127.0.0.1:0", "--data-dir", sys.argv[1], "--set", "logging_file=/dev/null"])
    except SystemExit as end:
        assert not end.code, end.code
    print(json.dumps([name for name in sys.modules if name != "__main__"]))
"""
_IMPORTS = """if True:
    import importlib, json, sys
    names = json.loads(sys.argv[1])
    if "rich" not in names:
        sys.modules["rich"] = None  # as the broker keeps it from structlog
    for name in names:
        importlib.import_module(name)
    import time
    used = time.process_time()
    print(json.dumps([used, open("/proc/self/smaps_rollup").read()]))
"""


def _run(*command: str) -> str:
    return subprocess.run([sys.executable, *command], cwd=TREE, check=True, capture_output=True, text=True).stdout


def _memory(smaps: str) -> Figures:
    """``smaps``: the content of smaps_rollup."""
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in smaps.splitlines()[1:]}
    return {f"{name} MB": kilobytes[f"{name.title()}:"] / 1024 for name in ("RSS", "PSS")}


def _import(names: str) -> Figures:
    cpu_s, smaps = json.loads(_run("-c", _IMPORTS, names))
    return {"CPU s": cpu_s} | _memory(smaps)


def _start(directory: str | None) -> Figures:
    with BrokerProcess("logging_level=info", "logging_file=/dev/null", directory=directory) as broker:
        cpu_s = broker.cpu_s()
        memory = _memory(Path(f"/proc/{broker.pid}/smaps_rollup").read_text())
        return {"CPU s": cpu_s} | memory | {"ready after s": broker.ready_s}


@contextmanager
def _bytecode() -> Iterator[None]:
    """The processes that start here read and write bytecode, in a directory of their own."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as directory:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = directory
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def bench_start(options: Options) -> Iterator[Row]:
    with _bytecode(), tempfile.TemporaryDirectory(prefix="broker-bench-") as directory:
        names = _run("-c", SERVED, directory).splitlines()[-1]
        _import(names)  # of those that belong to the broker only now
        variants = {"its imports": partial(_import, names), "a broker": partial(_start, options.directory)}
        yield from compared(options.rounds, variants)
        packages = [name.split(".")[0] for name in json.loads(names)]
        own = packages.count("broker") + packages.count("protocol")
        yield Row("modules", {"all": len(packages), "the broker's own": own})


def _command(*arguments: str) -> Figures:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run("-m", "broker", *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"CPU s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def bench_commands(options: Options) -> Iterator[Row]:
    lines = options.count(100_000)
    with _bytecode(), tempfile.NamedTemporaryFile("w", prefix="broker-bench-") as file, BrokerProcess() as broker:
        file.write("".join(f"{number:0100}\n" for number in range(lines)))
        file.flush()
        to = ("-b", broker.address)
        _command("produce", "lines", file.name, *to)
        commands = {
            "broker --help": ("--help",),
            "broker topics list": ("topics", "list", *to),
            f"broker consume, {lines} lines": ("consume", "lines", *to),
        }
        for arguments in commands.values():
            _command(*arguments)  # writes the bytecode
        yield from compared(options.rounds, {name: partial(_command, *each) for name, each in commands.items()})


SECTIONS = {"start": bench_start, "commands": bench_commands}
