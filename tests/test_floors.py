"""Imports only go down from floor to floor and never in a circle, and only the runtime touches the world outside. Checked by
reading every import.

docs/ARCHITECTURE.md draws the floors. A folder or module that is on none of them fails the first test: say where it stands.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Unit -> floor. A unit is a folder or a module; units on the same floor do not know each other. The two `errors` and the
# rest of floor 0 are the words that everybody above uses.
FLOORS: dict[str, float] = {
    "protocol": 0,
    "protocol.sasl": 0.5,
    "protocol.kafka": 1,
    "protocol.shuffle": 1,
    "protocol.pulsar": 1,
    # Records of Kafka's format as messages of Pulsar's, and the other way round.
    "protocol.translation": 1.2,
    "broker": 1.5,
    "broker.errors": 1.5,
    "broker.addresses": 1.6,
    "broker.runtime": 2,
    "broker.config": 2,
    "broker.metrics": 2.2,
    "broker.log": 1.6,
    "broker.expressions": 1.6,
    "broker.transitions": 1.6,
    "broker.metadata": 2.5,
    # Above the owner's row in the catalogue's database. Below the storage and the reactor, which it does not know: the server
    # tells them who leads.
    "broker.cluster": 2.8,
    "broker.live_config": 2.6,
    # Faults on demand, as services ask for them.
    "broker.faults": 2.3,
    "broker.security": 2.7,
    "broker.network": 3,
    "broker.storage": 3,
    # What services say over HTTP.
    "broker.web": 3.2,
    # What a service is given, and what it gives.
    "broker.part": 3.4,
    "broker.other_nodes": 3.5,
    # Records in flight: pure, under Pulsar's dispatchers and Kafka's share groups.
    "broker.delivery": 3,
    "broker.kafka": 4,
    "broker.shuffle": 4,
    "broker.pulsar": 4,
    "broker.http": 4,
    "broker.server": 5,
    "broker.client": 5,
    "broker.cli": 6,
    "broker.spark": 6,
    "broker.__main__": 7,
}

# What may be used although, or may not although, the floors alone say otherwise.
CLIENT_MAY_USE = {
    "protocol",
    "protocol.sasl",
    "protocol.kafka",
    "protocol.shuffle",
    "protocol.pulsar",
    "broker.errors",
    "broker.transitions",
    "broker.runtime",
}
ALSO = {
    # A broker in a `with` block has to put one together.
    "broker.client.embedded": {"broker.server", "broker.config", "broker.log", "broker.faults"},
    "broker.client.process_broker": {"broker.server", "broker.config", "broker.faults"},
    # Nodes ask each other over Kafka's protocol.
    "broker.server.node_link": {"broker.client"},
    # Sends the broker's events to pytest's log.
    "broker.client.pytest_plugin": {"broker.log"},
    # Plans of faults.
    "broker.client.chaos": {"broker.faults"},
    # And to look into it.
    "broker.client.broker_calls": {"broker.server"},
    # Makes a temporary directory for the script that starts a packaged Java.
    "broker.spark.java": {"broker.runtime"},
    # Tells the C library to keep freed memory.
    "broker.spark.worker": {"broker.runtime"},
}
ONLY = {"broker.client": CLIENT_MAY_USE, "broker.spark": {"broker.client", "broker.errors"}}

# Modules through which one reaches clocks, sockets, threads, processes, files, or chance.
OUTSIDE = set(
    "time sched socket socketserver ssl select selectors selectors2 asyncio signal threading _thread queue multiprocessing "
    "concurrent subprocess os posix io_uring mmap fcntl resource pathlib glob shutil tempfile fileinput random secrets "
    "sqlite3 ctypes http urllib".split()
)
# Who else may, and why. Nothing below `broker` is in here but the runtime.
ALLOWED_OUTSIDE = {
    "broker.runtime": OUTSIDE,
    # Arguments, standard streams, signals and limits of the process, and what they name: a settings file, the ready file.
    "broker.cli": {"os", "signal", "resource"},
    # The catalogue's embedded default is SQLite; the simulator puts another one in its place.
    "broker.metadata.sqlite_database": {"sqlite3"},
    # The environment variable by which pyspark is told not to report a traceback.
    "broker.spark.sentences": {"os"},
    # Looks for a Java on the machine, and writes the script that starts a packaged one.
    "broker.spark.java": {"os", "shutil"},
}
# Calls that reach outside from modules that are harmless as such.
OUTSIDE_CALLS = {"open", "uuid.uuid1", "uuid.uuid4", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
MAY_CALL = {"broker.runtime": OUTSIDE_CALLS, "broker.cli": {"open"}, "broker.spark.java": {"open"}}

# Each service maps what the storage refuses to its own codes (broker/kafka/error_codes.py). The format of record batches
# (protocol.kafka.records) is not in here: it is the format of the storage's files.
STORAGE_MUST_NOT_KNOW = (
    "protocol.kafka.errors",
    "protocol.kafka.api_keys",
    "protocol.kafka.messages",
    "protocol.shuffle",
    "protocol.pulsar",
)


def modules() -> Iterator[tuple[str, str]]:
    """Name and source of every module of the two packages."""
    for package in ("broker", "protocol"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield name, path.read_text(encoding="utf-8")


def unit_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if ".".join(parts[:2]) in FLOORS else parts[0]


def allowance(table: dict[str, set[str]], module: str) -> set[str]:
    return {
        item for owner, items in table.items() if module == owner or module.startswith(owner + ".") for item in items
    }


def imports(source: str) -> Iterator[str]:
    """Every imported module, wherever the import stands. `from a import b` counts as a.b: b may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> the modules among ``sources`` that it imports, anywhere in the file and for types only included."""
    graph = {}
    for name, source in sources.items():
        targets = set()
        for target in imports(source):
            module = target if target in sources else target.rpartition(".")[0]
            if module in sources and module != name:
                targets.add(module)
        graph[name] = targets
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """The sets of more than one module in which each reaches each other one: Tarjan's strongly connected components."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}  # the earliest module, by ``order``, that is known to be reached from this one
    path: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        path.append(name)
        for target in sorted(graph[name]):
            if target not in order:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in path:
                lowest[name] = min(lowest[name], order[target])
        if lowest[name] == order[name]:
            component = frozenset(path[path.index(name) :])
            del path[path.index(name) :]
            if len(component) > 1:
                found.append(component)

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def way_round(graph: Mapping[str, set[str]], circle: frozenset[str]) -> str:
    """A shortest way from one module of a circle back to it, as text."""
    start = min(circle)
    ways = [[start]]
    for way in ways:
        for target in sorted(graph[way[-1]] & circle):
            if target == start:
                return " -> ".join([*way, start])
            if not any(target in other for other in ways):
                ways.append([*way, target])
    raise AssertionError(f"{circle} is not a circle")


def calls(source: str) -> Iterator[str]:
    """Dotted names that are called, their last two parts at most."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name):
                yield function.id
            elif isinstance(function, ast.Attribute):
                owner = function.value
                last = (
                    owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
                )
                yield f"{last}.{function.attr}"


def upward_imports(module: str, source: str) -> list[str]:
    unit = unit_of(module)
    wrong = []
    for target in imports(source):
        if target.split(".")[0] not in ("broker", "protocol"):
            continue
        other = unit_of(target)
        if other == unit or other in allowance(ALSO, module):
            continue
        if other not in ONLY.get(unit, {other}) or FLOORS[other] >= FLOORS[unit]:
            wrong.append(f"{module} imports {target}")
    return wrong


def outside_contacts(module: str, source: str) -> list[str]:
    wrong = [
        f"{module} imports {target}"
        for target in imports(source)
        if target.split(".")[0] in OUTSIDE - allowance(ALLOWED_OUTSIDE, module)
    ]
    return wrong + [
        f"{module} calls {name}()" for name in calls(source) if name in OUTSIDE_CALLS - allowance(MAY_CALL, module)
    ]


def test_every_folder_and_module_stands_on_a_floor() -> None:
    units = {".".join(name.split(".")[:2]) for name, _ in modules()}
    unplaced = {unit for unit in units if unit.startswith("broker") and unit not in FLOORS}
    assert set() == unplaced


def test_imports_only_go_down() -> None:
    assert [] == [wrong for name, source in modules() for wrong in upward_imports(name, source)]


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = import_graph(dict(modules()))
    found = [f"{len(circle)} files: {way_round(graph, circle)}" for circle in circles(graph)]
    assert [] == found, "let both import what they share, or pass values and callables"


def test_the_storage_knows_no_protocol() -> None:
    knows = [
        f"{name} imports {target}"
        for name, source in modules()
        if name.startswith("broker.storage")
        for target in imports(source)
        if target.startswith(STORAGE_MUST_NOT_KNOW)
    ]
    assert [] == knows


def test_only_the_runtime_touches_the_world_outside() -> None:
    assert [] == [wrong for name, source in modules() for wrong in outside_contacts(name, source)]


def test_the_codecs_know_nothing_of_the_broker() -> None:
    inward = [(n, t) for n, s in modules() if n.startswith("protocol") for t in imports(s) if t.startswith("broker")]
    assert [] == inward


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, source in modules() if source.strip() and not ast.get_docstring(ast.parse(source))]
    assert [] == silent


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("broker.storage.log.log", "from broker.kafka import api"),
        ("broker.storage.log.log", "import broker.network.mute"),
        ("broker.storage.log.log", "def f():\n    from broker.server import BrokerServer"),
        ("broker.metrics", "from broker.security.acl import Acl"),
        ("broker.client.shuffle.reading.input_gate", "from broker.storage.log.log import Log"),
        ("broker.client.shuffle.reading.input_gate", "from broker.server import BrokerServer"),
        ("broker.spark.sink.batch_sink", "from broker.runtime.clock import Clock"),
        ("protocol.wire", "from protocol.kafka import records"),
        ("protocol.kafka.records.records", "from protocol.pulsar import frames"),
    ],
)
def test_import_that_goes_up_or_sideways_is_reported(module: str, source: str) -> None:
    assert 1 == len(upward_imports(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("broker.storage.log.log", "import time"),
        ("broker.storage.log.log", "from os import path"),
        ("broker.storage.log.log", "with open('x') as f: pass"),
        ("broker.storage.log.log", "import sqlite3"),
        ("broker.kafka.service", "import uuid\nuuid.uuid4()"),
        ("broker.kafka.service", "import datetime\ndatetime.datetime.now()"),
        ("broker.cli.serve", "import socket"),
        ("protocol.wire", "import concurrent.futures"),
    ],
)
def test_a_contact_with_the_outside_is_found(module: str, source: str) -> None:
    assert 1 == len(outside_contacts(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("broker.client.embedded", "from broker.server import BrokerServer"),
        (
            "broker.network.processor",
            "from broker.runtime.poller import Poller\nfrom protocol.errors import ProtocolError",
        ),
        ("broker.cli.serve", "import os, signal\nfrom broker.server import BrokerServer\nopen('x')"),
        ("broker.runtime.net", "import socket, os"),
    ],
)
def test_allowed_imports_are_not_reported(module: str, source: str) -> None:
    assert [] == upward_imports(module, source) + outside_contacts(module, source)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"a": "import b", "b": "import c", "c": ""}, []),
        ({"a": "import b", "b": "import c", "c": "import a", "d": "import a"}, ["a -> b -> c -> a"]),
        ({"a": "import b", "b": "if TYPE_CHECKING:\n    from a import A"}, ["a -> b -> a"]),
        ({"a": "def f():\n    import b", "b": "import a"}, ["a -> b -> a"]),
        ({"a": "from p import b", "p.b": "import a", "p": ""}, ["a -> p.b -> a"]),
        ({"a": "from p import name", "p.b": "import a", "p": ""}, []),
        ({"a": "import b", "b": "import a, c", "c": "import d", "d": "import c"}, ["a -> b -> a", "c -> d -> c"]),
        ({"a": "import b, d", "b": "import c", "c": "import d", "d": "import a"}, ["a -> d -> a"]),
        ({"a": "import a"}, []),
    ],
)
def test_a_circle_is_found_and_named(sources: dict[str, str], expected: list[str]) -> None:
    graph = import_graph(sources)
    assert expected == sorted(way_round(graph, circle) for circle in circles(graph))
