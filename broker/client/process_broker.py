"""A broker in a process of its own, which a test can kill.

``ProcessBroker`` keeps the ports and the data directory; the process has the server and the faults. It serves one request after
the other (``serve``): to start and to stop, calls of ``broker.server.contents``, and calls of its ``Faults``. It ends when the
channel to its maker does, and removes the maker's temporary directory if the maker could not.

Tests: tests/client/test_process_broker.py.
"""

import contextlib
import importlib
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar, Unpack

from broker.client.broker_calls import NotRunning
from broker.client.embedded import Broker, PathLike, Serving, call_all, when_dropped
from broker.client.settings import Settings
from broker.config import BrokerConfig
from broker.errors import BrokerError, ConfigError
from broker.faults.fault import Fault, Passing, fault_of
from broker.faults.faults import FaultHandle, Faults
from broker.runtime import forks
from broker.runtime.clock import SystemClock
from broker.runtime.dial import pause
from broker.runtime.nursery import Channel, Nursery, Process
from broker.runtime.temporary import remove_when_abandoned

if TYPE_CHECKING:
    from broker.server import BrokerServer
    from broker.server.contents import AfterReset

P = ParamSpec("P")
T = TypeVar("T")

_nursery = Nursery(__name__)
# How often (s) ``FaultHandle.wait`` asks.
_LOOK_S = 0.005


class ProcessBroker(Broker):
    """A ``Broker`` in a process of its own, so that it can be killed.

    >>> with ProcessBroker() as broker:
    ...     broker.kill()  # kill -9
    ...     broker.start()  # the same data, on the same ports

    It has the calls and settings of ``Broker``; only ``server`` is out of reach. The process ends with ``kill``, with ``close``,
    and with this program, also if that is killed, and leaves nothing behind.
    """

    def __init__(self, data_dir: str | PathLike | None = None, **settings: Unpack[Settings]) -> None:
        super().__init__(data_dir, **settings)
        self._process: Process | None = None
        self._faults_there = _ProcessFaults(self._call_with_turn)
        self._dropped: list[Callable[[], None]] = []  # called if the program drops a stopped broker
        when_dropped(self, call_all, self._dropped)

    def start(self) -> "ProcessBroker":
        """See ``Broker.start``. Also after the process has ended by itself."""
        if self._forks == forks.count():
            with self._turn:
                if self._process is not None:
                    with contextlib.suppress(NotRunning):
                        self._call("answer")
        super().start()
        return self

    def kill(self) -> None:
        """End the broker's process at once, as ``kill -9`` does, also while another thread is in a call, which then raises
        NotRunning. ``start`` continues with the data that is on the disk, on the same ports. The faults are gone. Does nothing if
        there is no process, and in a forked process."""
        process = self._process
        if process is None or self._forks != forks.count():
            return
        process.kill()
        with self._turn:
            if self._process is process:
                self._end()

    def close(self) -> None:
        """See ``Broker.close``."""
        if self._forks != forks.count():
            return
        with self._turn:
            try:
                super().close()
            finally:
                self._end()

    @property
    def pid(self) -> int:
        """The number of the broker's process. Raises NotRunning."""
        process = self._process
        if process is None or self._server is None:
            raise NotRunning
        return process.pid

    @property
    def server(self) -> "BrokerServer":
        """Raises BrokerError: the server is in another process."""
        raise BrokerError("The server of a ProcessBroker is in another process: use Broker() to look into it.")

    @property
    def faults(self) -> Faults:
        """See ``Broker.faults``. ``when`` is refused, because it is a function of this process. Faults stay over stops and
        starts, and end with the process."""
        return self._faults_there

    def _serve(self, config: BrokerConfig) -> tuple[Serving, str]:
        if self._process is None:
            self._launch()  # it takes its time; the ports stay reserved meanwhile
        call_all(self._reserved)
        cluster_id, listeners = self._call("start", config, self._has_own_drain, self._after_reset)
        return _Server(listeners, self._stop_server), cluster_id

    def _stop_server(self) -> None:
        with contextlib.suppress(NotRunning):
            self._call("stop")

    def _ask(self, function: "Callable[Concatenate[BrokerServer, P], T]", *args: P.args, **kwargs: P.kwargs) -> T:
        with self._turn:
            if self._server is None:
                raise NotRunning
            answer: T = self._call("ask", function.__name__, args, kwargs)
        return answer

    def _call_with_turn(self, verb: str, *args: Any) -> Any:
        with self._turn:
            return self._call(verb, *args)

    def _call(self, verb: str, *args: Any) -> Any:
        """Have the process do something, with the turn. Raises what it raises there; NotRunning if it ends meanwhile."""
        process = self._process if self._process is not None else self._launch()
        try:
            worked, answer = process.channel.ask((verb, args))
        except EOFError:
            self._end()
            raise NotRunning("The broker's process has ended: it was killed, or crashed.") from None
        if not worked:
            raise answer
        return answer

    def _launch(self) -> Process:
        control = self._config.control_listener
        listeners = [*self._config.listeners, *([] if control is None else [control])]
        try:
            self._process = process = _nursery.start([listener.scheme for listener in listeners])
        except ChildProcessError as error:
            raise BrokerError(f"The broker's process could not be started: {error}") from None
        self._dropped[:] = [process.channel.close]
        self._call("begin", self._config)
        return process

    def _end(self) -> None:
        """The process has ended or is to end: wait for that."""
        process, self._process = self._process, None
        if process is not None:
            process.end()
            self._faults_there.forget()
        if self._server is not None:
            self._server = None
            self._reserve_ports()
            if self._temporary is not None:
                self._temporary.before_exit = None


class _ProcessFaults(Faults):
    """The faults in the process, for its maker."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__(dict)  # only the process checks faults
        self._call = call
        self._handles: dict[int, _ProcessFault] = {}  # by number: all that were not removed

    def add(self, kind: str | Fault, **fields: Any) -> FaultHandle:
        fault = kind if isinstance(kind, Fault) else fault_of({"kind": kind, **fields})
        if fault.when is not None:
            raise ConfigError(
                "Leave out when: the requests are in the broker's process, and the function is in this one."
            )
        handle = _ProcessFault(self, *self._call("add_fault", fault))
        self._handles[handle.number] = handle
        return handle

    def trigger(self, kind: str | Fault, **fields: Any) -> None:
        self._call("trigger_fault", kind if isinstance(kind, Fault) else fault_of({"kind": kind, **fields}))

    def list(self) -> Sequence[FaultHandle]:
        return [self._handles[number] for number in sorted(self._handles.copy())]

    def get(self, number: int) -> FaultHandle | None:
        return self._handles.get(number)

    def remove(self, handle: FaultHandle) -> None:
        if self._handles.pop(handle.number, None) is handle:
            assert isinstance(handle, _ProcessFault)
            handle.seen = self._call("remove_fault", handle.number)

    def clear(self) -> None:
        for handle in self.list():
            self.remove(handle)

    def is_in_force(self, handle: FaultHandle) -> bool:
        return handle.left != 0

    def look(self, handle: "_ProcessFault") -> "_Seen":
        """What the fault has met until now, or until it was removed, or what was last known before its process ended."""
        if self._handles.get(handle.number) is handle:
            try:
                handle.seen = self._call("look_at_fault", handle.number)
            except NotRunning:
                pass
        return handle.seen

    def has(self, handle: FaultHandle) -> bool:
        return self._handles.get(handle.number) is handle

    def forget(self) -> None:
        """The process has ended, and its faults with it."""
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            handle.seen = handle.seen._replace(left=0)


class _Seen(NamedTuple):
    """What a fault has met."""

    hits: int
    left: int | None
    passed: list[Passing]


class _ProcessFault(FaultHandle):
    def __init__(self, faults: _ProcessFaults, number: int, fault: Fault) -> None:
        super().__init__(faults, number, fault, {})
        self._there = faults
        self.seen = _Seen(0, fault.count, [])

    @property
    def hits(self) -> int:
        return self._there.look(self).hits

    @property
    def left(self) -> int | None:
        return self._there.look(self).left

    @property
    def passed(self) -> list[Passing]:
        return self._there.look(self).passed

    def wait(self, hits: int = 1, timeout: float = 30.0) -> None:
        """See ``FaultHandle.wait``. Raises NotRunning if the process ends before that."""
        clock = SystemClock()
        deadline = clock.monotonic() + timeout
        while self.hits < hits:
            if not self._there.has(self):
                raise NotRunning("The fault was removed, or the broker's process has ended.")
            if clock.monotonic() >= deadline:
                raise TimeoutError(f"{self!r}: waited {timeout} s for {hits} hits")
            pause(_LOOK_S)


class _Server:
    """What the maker knows of the server."""

    def __init__(self, listeners: dict[str, str], stop: Callable[[], None]) -> None:
        self.listeners = listeners
        self._stop = stop

    def stop(self, *, drain: float | None = None) -> bool:
        self._stop()
        return True


def prepare(*schemes: str) -> None:
    """Import what a server with such listeners needs, before its process is forked."""
    for module in ("broker.server.contents", "encodings.idna"):
        importlib.import_module(module)
    for scheme in {"kafka", *schemes}:
        importlib.import_module(f"broker.{scheme}.assembly")
        if scheme in ("kafka", "pulsar"):
            importlib.import_module(f"broker.{scheme}.handlers").load()


def serve(channel: Channel) -> None:
    """The process's work, until its maker ends it or has ended."""
    served = _Served()
    while True:
        try:
            verb, args = channel.receive()
        except EOFError:
            break
        try:
            answer = True, getattr(served, verb)(*args)
        except Exception as error:
            answer = False, _portable(error)
        channel.send(answer)
    served.end()


def _portable(error: Exception) -> Exception:
    """The error, if pickle can take it to another process."""
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    except Exception:
        pass
    return BrokerError(f"{type(error).__name__}: {error}")


class _Inside(Broker):
    """The broker in its process. Its directory is the maker's."""

    def __init__(self, config: BrokerConfig, has_own_drain: bool, faults: Faults) -> None:
        super().__init__(config.data_dir)
        self._config = config
        self._has_own_drain = has_own_drain
        self._faults = faults

    def start_after(self, after: "AfterReset | None") -> tuple[str, dict[str, str]]:
        self._after_reset = after
        self.start()
        return self._cluster_id, self._addresses

    def restart_soon(self) -> None:
        self._restart_soon()

    def ask(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self._ask(getattr(importlib.import_module("broker.server.contents"), name), *args, **kwargs)


class _Served:
    """What the maker may ask for, by name."""

    def __init__(self) -> None:
        self._faults: Faults
        self._broker: _Inside | None = None
        self._data_dir = ""

    def begin(self, config: BrokerConfig) -> None:
        """Called first."""
        from broker.server.services import new_faults  # not at the top: the maker does not need it

        self._faults = new_faults(config, has_machine=True, restart=self._restart_soon)

    def start(
        self, config: BrokerConfig, has_own_drain: bool, after: "AfterReset | None"
    ) -> tuple[str, dict[str, str]]:
        if self._broker is None:
            self._data_dir = config.data_dir
            self._broker = _Inside(config, has_own_drain, self._faults)
        return self._broker.start_after(after)

    def answer(self) -> None:
        """Shows that the process lives."""

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()

    def ask(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert self._broker is not None
        return self._broker.ask(name, args, kwargs)

    def _restart_soon(self) -> None:
        if self._broker is not None:
            self._broker.restart_soon()

    def add_fault(self, fault: Fault) -> tuple[int, Fault]:
        handle = self._faults.add(fault)
        return handle.number, handle.fault

    def trigger_fault(self, fault: Fault) -> None:
        self._faults.trigger(fault)

    def look_at_fault(self, number: int) -> "_Seen":
        return self._seen(self._fault(number))

    def remove_fault(self, number: int) -> "_Seen":
        handle = self._fault(number)
        handle.remove()
        return self._seen(handle)

    def _fault(self, number: int) -> FaultHandle:
        handle = self._faults.get(number)
        assert handle is not None
        return handle

    @staticmethod
    def _seen(handle: FaultHandle) -> "_Seen":
        return _Seen(handle.hits, handle.left, handle.passed)

    def end(self) -> None:
        try:
            if self._broker is not None:
                self._broker.close()
        finally:
            if self._data_dir:
                remove_when_abandoned(self._data_dir)
