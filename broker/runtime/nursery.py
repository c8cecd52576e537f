"""Processes that start in milliseconds and can be killed: forked from a process that has imported what they need.

A process with threads must not be forked, because the locks that its threads hold stay locked in the child. So the first
``Nursery.start`` runs a new interpreter, the nursery, which has one thread for all its life. It imports modules, forks a process
whenever it is asked to, and has no other duties. ``main`` is what it runs.

Each process has a ``Channel`` to its maker. When the maker ends, however it ends, the kernel closes the maker's side of all
channels. The nursery and its processes see that and end.

A ``Nursery`` may be used by any thread; a channel by one thread at a time.

Tests: tests/client/test_process_broker.py.
"""

import atexit
import importlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from broker.runtime import forks

_LENGTH = struct.Struct("!Q")
# Of messages; the largest has the records of a topic.
_READ_BYTES = 1024 * 1024
# How often (s) the maker asks whether a process has ended, and how long before it kills it.
_LOOK_S = 0.002
_PATIENCE_S = 10.0


class Channel:
    """Messages from one process to another, both ways. Both run the same code and nobody else can reach the channel, so a message
    is a pickled value. ``EOFError``: the other process has closed the channel or has ended."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._asked = False

    def ask(self, value: Any, descriptors: Sequence[int] = ()) -> Any:
        """Send a message and return the answer. Raises EOFError, also if an exception such as Ctrl-C's has ended an earlier call
        before its answer came; and what pickle raises, before anything is sent."""
        data = pickle.dumps(value)
        if self._asked:
            raise EOFError
        self._asked = True
        self._send(data, descriptors)
        answer = self.receive()
        self._asked = False
        return answer

    def send(self, value: Any) -> None:
        """Raises EOFError, and what pickle raises before anything is sent."""
        self._send(pickle.dumps(value), ())

    def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        try:
            if descriptors:
                socket.send_fds(self._sock, [_LENGTH.pack(len(data))], descriptors)
                self._sock.sendall(data)
            else:
                self._sock.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            raise EOFError from None

    def receive(self) -> Any:
        """Raises EOFError."""
        return pickle.loads(self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0]))

    def receive_with(self, most: int) -> tuple[Any, list[int]]:
        """A message, and at most so many descriptors that came with it. Raises EOFError."""
        head, descriptors, _, _ = socket.recv_fds(self._sock, _LENGTH.size, most)
        head += self._read(_LENGTH.size - len(head)) if head else b""
        if not head:
            raise EOFError
        return pickle.loads(self._read(_LENGTH.unpack(head)[0])), descriptors

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._sock.recv(min(size - len(parts), _READ_BYTES))
            except OSError:
                part = b""
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def close(self) -> None:
        self._sock.close()

    def forked(self) -> None:
        """In a child of the maker: the other process must see the end of the maker, not of its children."""
        self._sock.close()


class Process:
    """A process that the nursery has forked."""

    def __init__(self, nursery: "Nursery", pid: int, channel: Channel) -> None:
        self.pid = pid
        self.channel = channel
        self._nursery = nursery
        self._status: int | None = None
        forks.tell(channel)

    def kill(self) -> None:
        """Send SIGKILL, and return at once. ``end`` waits. While it is not known to have ended, no other process gets its id."""
        if self._status is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # the nursery was killed, and with it the memory of this process
                pass

    def end(self) -> None:
        """Close the channel and wait until the process has ended, which it does by itself; kill it if that takes long."""
        self.channel.close()
        deadline = time.monotonic() + _PATIENCE_S
        while not self.has_ended():
            if time.monotonic() >= deadline:
                self.kill()
                deadline += _PATIENCE_S
            time.sleep(_LOOK_S)
        self._nursery.forget(self)

    def has_ended(self) -> bool:
        """Whether it has, for whatever reason."""
        if self._status is None:
            self._status = self._nursery.status(self.pid)
        return self._status is not None


class Nursery:
    """Starts processes that call ``module.serve(channel)``. Before each fork the nursery calls ``module.prepare(*names)``, which
    imports what the process needs; it must not start a thread."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._processes: set[Process] = set()
        forks.tell(self)
        atexit.register(self.close)

    def start(self, names: Sequence[str]) -> Process:
        """Start a process that has the maker's working directory and standard error. ``names`` are for ``prepare``. Raises
        ChildProcessError if that cannot be done."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            pid = self._ask(("start", (_directory(), *names)), [theirs.fileno(), *_standard_error()])
            process = Process(self, pid, Channel(ours))
            self._processes.add(process)
        return process

    def status(self, pid: int) -> int | None:
        """The exit status of a process, as ``subprocess.Popen.returncode``; None: it still runs."""
        with self._lock:
            if self._channel is None:
                return 0
            try:
                status: int | None = self._ask(("status", pid), [])
            except ChildProcessError:  # the nursery was killed: nobody knows
                return 0
            return status

    def forget(self, process: Process) -> None:
        self._processes.discard(process)

    def forked(self) -> None:
        """In a child of the maker, which gets a nursery of its own if it needs one."""
        if self._channel is not None:
            self._channel.forked()
        self._lock = threading.Lock()
        self._channel = self._process = None
        self._processes = set()

    def _ask(self, request: tuple[Any, ...], descriptors: Sequence[int]) -> Any:
        channel = self._channel if self._channel is not None else self._open()
        try:
            worked, answer = channel.ask(request, descriptors)
        except EOFError:
            self._end_nursery()
            raise ChildProcessError("The process that starts others has ended.") from None
        if not worked:
            raise ChildProcessError(answer)
        return answer

    def _open(self) -> Channel:
        ours, theirs = socket.socketpair()
        with theirs:
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main;"
                f" main({theirs.fileno()}, {self._module!r})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._channel = Channel(ours)
        return self._channel

    def close(self) -> None:
        """End all processes and the nursery, and wait for that."""
        for process in list(self._processes):
            process.end()
        with self._lock:
            self._end_nursery()

    def _end_nursery(self) -> None:
        channel, self._channel = self._channel, None
        process, self._process = self._process, None
        if channel is not None and process is not None:
            channel.close()
            process.wait()


def main(descriptor: int, name: str) -> None:
    """The nursery's work, until its maker ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C goes to all processes of a terminal; the maker decides what follows
    channel = Channel(socket.socket(fileno=descriptor))
    module = importlib.import_module(name)
    while True:
        try:
            (verb, argument), descriptors = channel.receive_with(2)
        except EOFError:
            return
        try:
            if verb == "start":
                directory, *names = argument
                module.prepare(*names)
                answer: Any = _fork(channel, module.serve, directory, descriptors)
            else:
                answer = _status(argument)
        except Exception:
            channel.send((False, traceback.format_exc()))
        else:
            channel.send((True, answer))
        finally:
            for each in descriptors:
                os.close(each)


def _fork(parent: Channel, serve: Callable[[Channel], object], directory: str, descriptors: Sequence[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        parent.close()
        os.chdir(directory)
        own, *standard_error = descriptors
        for descriptor in standard_error:
            os.dup2(descriptor, 2)
            os.close(descriptor)
        serve(Channel(socket.socket(fileno=own)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def _standard_error() -> list[int]:
    try:
        os.fstat(2)
    except OSError:  # closed
        return []
    return [2]
