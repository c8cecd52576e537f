"""Every block of the README and of the tutorials, as somebody would type them one after the other: in a new virtual environment,
against real brokers, on ports that are free.

The environment has only what the blocks install (``stand_in_pip.py``). BROKER_TEST_REAL_PIP=1 uses the real pip and the network.
"""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from broker.runtime.net import SystemNetwork, reserve_port
from tests.docs.blocks import Block, blocks, printed_as_expected
from tests.durable.postgres import fresh_schema, shared_server

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 600.0
# Ports that the documents name: each gets a free one.
_PORT = re.compile(r"(?<![\d.:])(?:9092|9310|9094|6650|8080|9644)(?!\d)|(?<=:)(?:9092|9310|9094|6650|8080|9644)(?!\d)")

# Blocks that are not run, by their first line. Whoever adds one says why, in the document and here.
SKIPPED = {
    "README.md": {
        "docker compose up broker": "it needs Docker; `make docker-check` does it",
        "pip install '.[postgres,objects]'": "it needs PostgreSQL and an object store; docs/SCALING.md does it with both",
        "export BROKER_ALLOW_ANONYMOUS_LISTENERS=true    # or a listener with logins: docs/SECURITY.md": (
            "it needs several machines; tests/durable/test_nodes_machines.py has them"
        ),
    },
    "docs/SCALING.md": {
        "export BROKER_CATALOGUE=postgresql://broker:secret@localhost:5432/broker": "the test has a database of its own",
        "docker compose --profile durable up postgres seaweedfs broker-a broker-b durable": "it needs Docker",
        "docker compose --profile cluster up postgres seaweedfs cluster-1 cluster-2 cluster-3": "it needs Docker",
        "export BROKER_CATALOGUE=postgresql://broker:secret@db.example:5432/broker": (
            "it needs several machines; tests/durable/test_nodes_machines.py has them"
        ),
        "export BROKER_ADMIN_URL=http://machine-1.example:8080": (
            "it needs several machines; tests/durable/test_nodes_moves.py has them"
        ),
        "broker cluster resize 6 --objects s3://bucket/prefix --data-dir /var/cache/broker": (
            "it needs a cluster that has run; tests/durable/test_resizing.py has one"
        ),
        "broker restore --from s3://bucket/prefix /var/lib/broker": (
            "it needs a lost disk; tests/durable/test_restore.py has one"
        ),
        "BROKER_CATALOGUE=postgresql://broker:secret@db.example:5432/broker broker migrate --data-dir /var/lib/broker "
        "--objects s3://bucket/prefix": "it needs a broker that has run; tests/durable/test_migration.py has one",
    },
}
DOCUMENTS = ["README.md", "docs/QUEUES.md", "docs/SCALING.md"]

# A machine without it can run everything else.
OPTIONAL_COMMANDS = ("curl",)


class Terminal:
    """Runs blocks in one directory and one environment, which shell blocks may change."""

    def __init__(self, directory: Path, home: Path) -> None:
        self.directory = directory
        self.home = home
        self.ports: dict[str, str] = {}
        self._reserved: list[Callable[[], None]] = []
        self._state = home / "environment"
        self._background: list[subprocess.Popen[bytes]] = []
        self._number = 0
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "DOCS_TEST_PROJECT": str(directory),
            "DOCS_TEST_PACKAGES": json.dumps([path for path in sys.path if path.endswith("-packages")]),
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
        }
        if "JAVA_HOME" in os.environ:
            environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
        self.set(environment)

    def set(self, environment: Mapping[str, str]) -> None:
        """Add variables to the environment."""
        with open(self._state, "a") as file:
            file.writelines(f"export {name}={_quoted(value)}\n" for name, value in environment.items())

    def run(self, block: Block) -> None:
        script = self._script(block)
        if block.how.startswith("background"):
            self._start(block, script)
            return
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # A program in Python may log what does not belong to it; a command says what its user should see.
            stderr=subprocess.STDOUT if block.language == "sh" else subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        said = f"{block.where}\n{block.text}\nprinted:\n{result.stdout[-4000:]}\n{(result.stderr or '')[-4000:]}"
        assert 0 == result.returncode, said
        if block.expected is not None:
            assert printed_as_expected(self.with_ports(block.expected), result.stdout), said

    def with_ports(self, text: str) -> str:
        return _PORT.sub(lambda match: self._port(match[0]), text)

    def _port(self, documented: str) -> str:
        """A free port in the place of the documented one, which nobody else is given until the end."""
        if documented not in self.ports:
            listener = SystemNetwork().listen("127.0.0.1", 0, 1, -1, -1)
            port = listener.address[1]
            listener.close()
            release = reserve_port("127.0.0.1", port)
            if release is not None:
                self._reserved.append(release)
            self.ports[documented] = str(port)
        return self.ports[documented]

    def _script(self, block: Block) -> str:
        """A shell script that runs the block in the environment that the blocks before it have left."""
        text = self.with_ports(block.text)
        bootstrap = self.with_ports("127.0.0.1:9092")
        before = f"set -eo pipefail; . {self._state}; export BROKER_BOOTSTRAP_SERVERS={bootstrap}\n"
        # `make run` takes the port of the default listener from here.
        before += f'export ARGS="${{ARGS:---listener kafka://{bootstrap}}}"\n'
        if block.language == "sh":
            return f"{before}{text}\nexport -p > {self._state}.new && mv {self._state}.new {self._state}\n"
        self._number += 1
        name = f"test_block_{self._number}.py" if block.how == "pytest" else f"block_{self._number}.py"
        (self.directory / name).write_text(text)
        # Not with this project's own settings of pytest.
        command = "pytest -q -p no:cacheprovider -c /dev/null --rootdir=." if block.how == "pytest" else "python"
        return f"{before}{command} {name}\n"

    def _start(self, block: Block, script: str) -> None:
        # A terminal, because some programs say more on one.
        control, side = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.directory,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        os.close(side)
        self._background.append(process)
        output: list[str] = []
        seen = threading.Event()
        wanted = self.with_ports(block.until or "")

        def read() -> None:
            with open(control, encoding="utf-8", errors="replace", closefd=True) as lines:
                try:
                    for line in lines:
                        output.append(line)
                        if wanted in line:
                            seen.set()
                except OSError:  # Linux's way of saying that the other side has closed
                    pass
            seen.set()

        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + PATIENCE_S
        while not seen.wait(0.1) and time.monotonic() < deadline:
            pass
        # The documents' ports are the default ones, which need not be named.
        text = re.sub(r" -b 127\.0\.0\.1:\d+", "", "".join(output))
        assert any(wanted in line for line in output), f"{block.where} did not print {wanted!r}:\n{text}"
        if block.expected is not None:
            assert printed_as_expected(self.with_ports(block.expected), text), f"{block.where} printed:\n{text}"

    def close(self) -> None:
        for process in self._background:
            os.killpg(process.pid, signal.SIGINT)
        for process in self._background:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for release in self._reserved:
            release()


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """In a copy of the project, as somebody has it who has just cloned it, with an environment that has nothing but pip."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("README.md", "LICENSE", "Makefile", "pyproject.toml", "docs", "broker", "packaging", "protocol"):
        (project / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / ".ci", project / ".ci")
    (tmp_path / "home").mkdir()
    if not os.environ.get("BROKER_TEST_REAL_PIP"):
        _stand_in_environment(project / ".venv")
    terminal = Terminal(project, tmp_path / "home")
    yield terminal
    terminal.close()


def _stand_in_environment(directory: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=PATIENCE_S)
    (site,) = (directory / "lib").glob("python3*/site-packages")
    (site / "pip").mkdir()
    (site / "pip" / "__init__.py").touch()
    shutil.copyfile(Path(__file__).parent / "stand_in_pip.py", site / "pip" / "__main__.py")
    command = directory / "bin" / "pip"
    command.write_text(f'#!/bin/sh\nexec "{directory}/bin/python" -m pip "$@"\n')
    command.chmod(0o755)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_block_runs_as_it_stands(name: str, terminal: Terminal) -> None:
    if name == "docs/SCALING.md":
        terminal.set({"BROKER_CATALOGUE": shared_server().url, "BROKER_CATALOGUE_SCHEMA": fresh_schema()})
    for block in blocks(ROOT / name):
        missing = [name for name in OPTIONAL_COMMANDS if f"{name} " in block.text and shutil.which(name) is None]
        if block.skipped is None and not missing:
            terminal.run(block)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks_that_are_not_run_are_listed(name: str) -> None:
    skipped = {block.text.splitlines()[0]: block.skipped for block in blocks(ROOT / name) if block.skipped}
    assert SKIPPED.get(name, {}) == skipped


def test_links_lead_to_existing_files_and_headings() -> None:
    broken = []
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            linked = document if not path else document.parent / path
            if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(linked)):
                broken.append(f"{document.name}: {target}")
    assert [] == broken


def anchors(document: Path) -> set[str]:
    """The headings as links name them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_blocks_are_collected_with_their_remarks(tmp_path: Path) -> None:
    document = tmp_path / "x.md"
    document.write_text(
        "# X\n\n```sh\none\n```\n\n```text\n1 ...\n```\n\n<!-- test: skip: no Docker -->\n```sh\ntwo\n```\n\nProse.\n\n"
        "```text\nnot its output\n```\n\n<!-- test: background until=it is up -->\n\n```python\nthree\n```\n"
    )
    one, two, three = blocks(document)
    assert ("x.md:3", "sh", "one\n", "1 ...\n", None) == (one.where, one.language, one.text, one.expected, one.skipped)
    assert ("two\n", None, "no Docker") == (two.text, two.expected, two.skipped)
    assert ("python", "it is up", None) == (three.language, three.until, three.skipped)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("a ... c\n", "a b b c\n", True),
        ("a\n...\nc\n", "a\nb\nb\nc\n", True),
        ("a", "ab", False),
        ("a.c", "abc", False),
    ],
)
def test_three_dots_stand_for_anything(expected: str, printed: str, same: bool) -> None:
    assert same == printed_as_expected(expected, printed)
