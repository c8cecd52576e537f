"""A Python that has imported the commands already, for tests that run hundreds of them.

A command takes half a second of CPU, nearly all of it for imports. Here each is a process of its own, too, with its own streams,
environment, directory and exit status, but forked from one that has the imports behind it, and ends as Python ends. What a new
process needs to find by itself is left to the tests that start one (``command_line`` of conftest.py).

``python -m tests.cli.prepared SOCKET`` is that process; it ends when its standard input does. It has no thread but the first,
so that it may fork.
"""

import array
import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from broker.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent.parent
# Requests are far smaller: a command line and an environment. A message is read whole or not at all (SOCK_SEQPACKET).
REQUEST_MAX_BYTES = 150_000


class PreparedPython:
    """The other end: runs commands in the prepared process's children. Any thread may run one."""

    def __init__(self, directory: Path) -> None:
        """``directory``: for its socket. OSError if the path is too long for one."""
        self._address = str(directory / "prepared")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self._address)
        self._listener.listen(16)
        # Pipes, as a command's streams are: what Python has found out about its streams stays true after the fork.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.prepared", str(self._listener.fileno())],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[self._listener.fileno()],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        _, errors = self._process.communicate(timeout=60)
        assert b"" == errors, errors.decode()

    def run(
        self, arguments: list[str], environment: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> "subprocess.CompletedProcess[bytes]":
        """As ``subprocess.run`` with ``capture_output``; also raises its TimeoutExpired. Variables that Python reads
        at its start only have no effect."""
        request = json.dumps({"arguments": arguments, "environment": dict(environment), "directory": os.getcwd()})
        assert len(request) <= REQUEST_MAX_BYTES
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = os.pipe(), os.pipe(), os.pipe()
        output: dict[int, bytes] = {}

        def write() -> None:
            try:
                with open(ours_in, "wb") as file:
                    file.write(stdin)
            except BrokenPipeError:
                pass  # it has ended without reading all

        def read(descriptor: int) -> None:
            with open(descriptor, "rb") as file:
                output[descriptor] = file.read()

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
            asked.connect(self._address)
            socket.send_fds(asked, [request.encode()], [theirs_in, theirs_out, theirs_err])
            for descriptor in (theirs_in, theirs_out, theirs_err):
                os.close(descriptor)
            threads = [threading.Thread(target=write)]
            threads += [threading.Thread(target=read, args=(descriptor,)) for descriptor in (ours_out, ours_err)]
            for thread in threads:
                thread.start()
            asked.settimeout(timeout_s)
            pid = int(asked.recv(100))
            try:
                status = int(asked.recv(100))
            except TimeoutError:
                os.kill(pid, 9)
                raise subprocess.TimeoutExpired(arguments, timeout_s) from None
            finally:
                for thread in threads:
                    thread.join()
        return subprocess.CompletedProcess(arguments, status, output[ours_out], output[ours_err])


def _next_command(listener: socket.socket, end: IO[bytes]) -> list[str]:
    """Returns in the children only: the arguments of the command that the process is to be."""
    while True:
        readable, _, _ = select.select([listener, end], [], [])
        _reap()
        if listener not in readable:
            os._exit(0)
        asked, _ = listener.accept()
        if os.fork():
            asked.close()
            continue
        listener.close()
        request, descriptors, _, _ = socket.recv_fds(asked, REQUEST_MAX_BYTES, 3)
        command = os.fork()
        if command:  # waits for it, so that the one that forks need not
            for descriptor in descriptors:
                os.close(descriptor)
            try:
                asked.send(b"%d" % command)
                status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
                asked.send(b"%d" % status)
            except BrokenPipeError:
                pass  # nobody waits for it any more
            finally:
                os._exit(0)
        asked.close()
        return _become(json.loads(request), descriptors)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _become(request: dict[str, object], descriptors: "list[int] | array.array[int]") -> list[str]:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(str(request["directory"]))
    environment, arguments = request["environment"], request["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    return arguments


def _prepare() -> None:
    """Import the commands and what they import when they run."""
    for name in COMMANDS:
        if name != "serve":  # a broker is a process of its own
            importlib.import_module(f"broker.cli.{name}")
    for name in ("cluster", "admin.cluster", "admin.configs", "admin.groups", "admin.positions"):
        importlib.import_module(f"broker.client.kafka.{name}")
    for name in ("broker.client.shuffle.admin", "rich.console", "rich.table", "rich.progress"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _prepare()
    main(_next_command(socket.socket(fileno=int(sys.argv[1])), sys.stdin.buffer))
