"""`broker serve`: reads the settings, handles signals, writes the ready file. ``BrokerServer`` does everything else.

It runs on the main thread, which only waits while the broker serves, so that signals are handled at once. On a
terminal, `screen` shows the addresses, the next commands to type, and how to stop, once clients can connect.
"""

import gc
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from broker.config import BrokerConfig, load
from broker.errors import BrokerError, ConfigError, Fenced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.runtime.files import LogFile
    from broker.server import BrokerServer
    from broker.server.engine import OpenEngine
    from broker.server.machine_supervisor import MachineSupervisor
    from broker.server.member import Member
    from broker.server.supervisor import Supervisor

from collections.abc import Callable, Iterable

import attrs

_SPEAKS = {"kafka": "Kafka", "shuffle": "shuffle", "pulsar": "Pulsar", "http": "HTTP"}


@attrs.frozen
class Address:
    """``encrypted`` and ``login``: whether a client needs TLS and a login."""

    scheme: str
    address: str
    encrypted: bool = False
    login: bool = False


def screen(version: str, addresses: Iterable[Address], data_dir: str, command: str) -> str:
    """``command``: how to call this program from the user's shell."""
    ordered = sorted(
        addresses, key=lambda address: list(_SPEAKS).index(address.scheme) if address.scheme in _SPEAKS else 9
    )
    rows = [(_SPEAKS.get(address.scheme, address.scheme), _shown(address)) for address in ordered]
    rows.append(("topics", data_dir))
    kafka = next((address for address in ordered if address.scheme == "kafka"), None)
    if kafka is not None and not kafka.encrypted and not kafka.login:
        where = "" if kafka.address.endswith(":9092") and _is_loopback(kafka.address) else f" -b {kafka.address}"
        rows.append(("next", "in another terminal:"))
        rows.append(("", f"  echo hello | {command} produce greetings{where}"))
        rows.append(("", f"  {command} consume greetings{where}"))
    rows.append(("stop", "Ctrl-C"))
    width = max(len(title) for title, _ in rows)
    lines = [f"reactor-broker {version} is running", *(f"  {title:{width}}  {text}".rstrip() for title, text in rows)]
    return "\n" + "\n".join(lines) + "\n"


def _shown(address: Address) -> str:
    if address.scheme == "http":
        return f"{'https' if address.encrypted else 'http'}://{address.address}/"
    needs = [text for text, needed in (("TLS", address.encrypted), ("a login", address.login)) if needed]
    return f"{address.address} (with {' and '.join(needs)})" if needs else address.address


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost:", "[::1]"))


def command_name(program: str, path: str, is_program: Callable[[str], bool]) -> str:
    """ "broker" if that name runs this program; otherwise its path. ``path``: the variable PATH."""
    if program.endswith("__main__.py"):
        return "python -m broker"
    for directory in path.split(":"):
        candidate = f"{directory.rstrip('/')}/broker"
        if directory and is_program(candidate):
            return "broker" if candidate == program else program
    return program


_NOTICE_SIGNALS_S = 1.0
# Time (s) from ``shutdown_timeout_ms`` to the end of the process, for writing the last line of the log.
_GRACE_S = 0.5


class _StopRequested(Exception):
    """SIGTERM or SIGINT, while the broker serves."""


@click.command()
@click.option("--config", "config_file", metavar="FILE.toml", help="File with settings. docs/SETTINGS.md lists them.")
@click.option("--data-dir", metavar="DIR", help="Directory of the topics.  [default: broker-data]")
@click.option(
    "--listener",
    "listeners",
    metavar="URL",
    multiple=True,
    help="Where to listen, as scheme://host:port; can be repeated.  [default: kafka://127.0.0.1:9092]",
)
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="One setting; takes precedence over FILE.toml."
)
@click.option(
    "--catalogue",
    metavar="URL",
    help="PostgreSQL database for everything but records: postgresql://user@host:port/database. The data directory is a cache"
    " then. Others see the arguments of a process: give a password in BROKER_CATALOGUE, which has the whole URL, or in"
    " PGPASSWORD.",
)
@click.option(
    "--objects",
    metavar="URL",
    help="Object store for closed segments: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory.",
)
@click.option("--standby", is_flag=True, help="Wait until the broker that has the --catalogue is gone, then take over.")
@click.option(
    "--nodes",
    type=click.IntRange(1, 64),
    help="So many processes, each with a part of the partitions. With --catalogue, machines with the same number divide"
    " them among themselves.  [default: 1]",
)
@click.option("--ready-file", metavar="PATH", help="File for the addresses, as JSON, written when clients can connect.")
def command(
    config_file: str | None,
    data_dir: str | None,
    listeners: tuple[str, ...],
    overrides: tuple[str, ...],
    catalogue: str | None,
    objects: str | None,
    standby: bool,
    nodes: int | None,
    ready_file: str | None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C, which stop it cleanly.

    Without options it serves Kafka clients on 127.0.0.1:9092 and stores its topics in ./broker-data. Settings can also be in the
    environment, such as BROKER_NUM_PARTITIONS=3. If one is wrong, it exits with status 2 and a message that says what to change.
    """
    durable = {"catalogue": catalogue, "objects": objects, "standby": standby or None, "nodes": nodes}
    config = read_config(config_file, data_dir, listeners, overrides, durable)

    member, open_engine = _member(config)
    if member is None and config.nodes > 1:
        arguments = _arguments(config_file, data_dir, listeners, overrides)
        for option, value in (("--catalogue", catalogue), ("--objects", objects)):
            arguments += [] if value is None else [option, value]
        _run_nodes(config, config.nodes, [*arguments, "--nodes", str(config.nodes)], ready_file)
        return

    from broker import log
    from broker.runtime.process import ServiceManager, raise_descriptor_limit
    from broker.server import BrokerServer
    from broker.server.broker_server import StandbyEnded

    _configure_logging(config)
    sys.setswitchinterval(config.switch_interval_us / 1e6)
    raise_descriptor_limit()
    if ready_file:
        _check_ready_file(ready_file)

    events = log.get_logger("serve")
    manager = ServiceManager()
    if config.standby:
        manager.standing_by()
    else:
        manager.recovering()
    server = BrokerServer(config, member=member, open_engine=open_engine)
    with _stop_signals(config.shutdown_timeout_ms / 1000) as signals:
        signals.while_starting = server.request_stop
        try:
            _start(server)
        except StandbyEnded:
            signals.stopped()
            events.info("standby_stopped")
            return
        try:
            if ready_file:
                _write_ready_file(ready_file, server.listeners, server.started_ms)
            events.info(
                "broker_started", data_dir=os.path.abspath(config.data_dir), pid=os.getpid(), **server.listeners
            )
            manager.ready(", ".join(server.listeners.values()))
            if sys.stderr.isatty() and config.logging_format != "json":
                click.echo(_welcome(config, server), err=True)
            signals.begin()
            # With a timeout: the system may deliver the signal to another thread; this thread handles it when it wakes
            # up.
            while not server.wait(_NOTICE_SIGNALS_S):
                pass
        except _StopRequested:
            events.info("broker_stopping")
        finally:
            signals.end()
            manager.stopping()
            if ready_file:
                _remove(ready_file)
            server.stop(signals.time_left())
    _end(server, signals)


def _arguments(
    config_file: str | None, data_dir: str | None, listeners: tuple[str, ...], overrides: tuple[str, ...]
) -> list[str]:
    arguments = ["serve"]
    if config_file is not None:
        arguments += ["--config", config_file]
    if data_dir is not None:
        arguments += ["--data-dir", data_dir]
    for listener in listeners:
        arguments += ["--listener", listener]
    for override in overrides:
        arguments += ["--set", override]
    return arguments


def _member(config: BrokerConfig) -> "tuple[Member | None, OpenEngine | None]":
    """Which of several nodes this process is, if it is one. Raises BrokerError."""
    if "BROKER_NODE_PLACE" not in os.environ:
        return None, None
    if config.catalogue is not None:
        from broker.runtime.children import PARENT
        from broker.runtime.process import end_with
        from broker.server.machine_supervisor import seat_of

        end_with(int(os.environ[PARENT]))
        seat = seat_of(os.environ)
        return seat, seat.open_engine
    from broker.server.member import Member
    from broker.server.supervisor import place_of

    found = place_of(os.environ)
    assert found is not None
    return Member(*found), None


def _supervisor(config: BrokerConfig, count: int, arguments: list[str]) -> "Supervisor | MachineSupervisor":
    from broker.runtime import system_runtime

    if config.catalogue is None:
        from broker.server.supervisor import Supervisor

        return Supervisor(config, system_runtime(), count, arguments)
    from broker.server.machine_supervisor import MachineSupervisor

    return MachineSupervisor(config, system_runtime(), count, arguments)


def _run_nodes(config: BrokerConfig, count: int, arguments: list[str], ready_file: str | None) -> None:
    from broker import log
    from broker.runtime import system_runtime
    from broker.runtime.process import ServiceManager

    _configure_logging(config)
    events = log.get_logger("serve")
    manager = ServiceManager()
    manager.recovering()
    supervisor = _supervisor(config, count, arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: supervisor.request_stop())
    reopen = signal.getsignal(signal.SIGHUP)
    if callable(reopen):  # there is a log file, which all have open

        def reopen_all(number: int, frame: FrameType | None) -> None:
            reopen(number, frame)
            supervisor.processes.pass_on(number)

        signal.signal(signal.SIGHUP, reopen_all)

    def ready(listeners: Mapping[str, str]) -> None:
        events.info("nodes_started", nodes=count, data_dir=config.data_dir, pid=os.getpid(), **listeners)
        manager.ready(f"{count} nodes, the first one at {', '.join(listeners.values())}")
        if ready_file:
            _write_ready_file(ready_file, listeners, system_runtime().clock.time_ms())

    if ready_file:
        _check_ready_file(ready_file)
    try:
        supervisor.run(ready)
    finally:
        manager.stopping()
        if ready_file:
            _remove(ready_file)


def _configure_logging(config: BrokerConfig) -> None:
    from broker import log
    from broker.runtime.terminal import wants_colours

    if log.LEVELS[config.logging_level] <= log.LEVELS["info"]:  # the first event is that the broker has started
        _import_structlog()
    file = _open_log_file(config.logging_file)
    log.configure(
        config.logging_level,
        config.logging_format,
        colours=file is None and wants_colours(sys.stderr),
        write_line=None if file is None else file.write_line,
    )


def _import_structlog() -> None:
    """Import structlog, which writes the events, without rich. structlog imports rich where it finds it, for coloured tracebacks
    that the broker does not write: 52 modules, 4 MB, 60 ms. No other thread runs yet, so nobody misses rich meanwhile."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # whoever imports it gets a ModuleNotFoundError
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


def _start(server: "BrokerServer") -> None:
    """Start the server, and set the garbage collection for a process whose requests leave no cycles behind."""
    # Hardly any object that is created during the start is garbage. With 10,000 partitions, collections took 0.7 s.
    gc.disable()
    try:
        server.start()
    except BaseException:
        gc.enable()
        raise
    # The objects that exist now live as long as the broker. With 10,000 partitions, a full garbage collection would
    # stop all threads for 0.3 s after every few large requests.
    gc.freeze()
    # Requests leave no cycles behind, so there is little garbage: with Python's own threshold of 700 objects,
    # collections took 6 % of the CPU of Pulsar's messages. A collection of 5,000 objects takes 0.2 ms.
    gc.set_threshold(5_000)
    gc.enable()


def _end(server: "BrokerServer", signals: "_Signals") -> None:
    """Say how the broker has stopped. Does not return if threads were left behind; raises BrokerError after a crash."""
    from broker import log
    from broker.runtime.process import exit_now

    events = log.get_logger("serve")
    if not server.left_behind:
        signals.stopped()
    else:
        # A normal exit of the interpreter would destroy objects that these threads use.
        events.warning("broker_stopped", left_behind=server.left_behind)
        sys.stdout.flush()
        sys.stderr.flush()
        exit_now(0 if server.crash is None else 1)
    if isinstance(server.crash, Fenced):
        raise BrokerError(f"The broker has stopped because it does not own its state any more: {server.crash}.")
    if server.crash is not None:
        raise BrokerError("The broker has stopped because a thread failed; the previous event has the traceback.")
    events.info("broker_stopped")


def _welcome(config: BrokerConfig, server: "BrokerServer") -> str:
    from importlib.metadata import version

    addresses = [
        Address(listener.scheme, server.listeners[listener.name], listener.ssl, listener.sasl)
        for listener in config.listeners
    ]
    program = command_name(sys.argv[0], os.environ.get("PATH", ""), lambda path: os.access(path, os.X_OK))
    near = os.path.relpath(config.data_dir)
    data_dir = config.data_dir if near.startswith("..") else near
    return screen(version("reactor-broker"), addresses, data_dir, program)


def _open_log_file(path: str | None) -> "LogFile | None":
    """Raises ConfigError."""
    if path is None:
        return None
    from broker.runtime.files import LogFile, explain_denial

    try:
        file = LogFile(path)
    except OSError as error:
        raise ConfigError(
            f"Choose another logging_file: {path} cannot be written: {explain_denial(error, path)}."
        ) from error
    # Without a file the signal ends the process, as by default: its terminal has gone.
    signal.signal(signal.SIGHUP, lambda _number, _frame: file.reopen())
    return file


def read_config(
    config_file: str | None,
    data_dir: str | None,
    listeners: tuple[str, ...],
    overrides: tuple[str, ...],
    others: Mapping[str, Any],
) -> BrokerConfig:
    """--data-dir, --listener and the ``others`` that are not None take precedence over --set, that over environment variables,
    and those over the file."""
    text = None
    if config_file is not None:
        try:
            with open(config_file, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Name a TOML file that can be read with --config: {error}.") from error
    settings: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
    if data_dir is not None:
        settings["data_dir"] = data_dir
    if listeners:
        settings["listeners"] = listeners
    config = load(text, source=config_file or "", variables=os.environ, overrides=overrides, **settings)
    import attrs

    # Absolute, because admin tools and events show it.
    return attrs.evolve(config, data_dir=os.path.abspath(os.path.expanduser(config.data_dir)))


class _Signals:
    """SIGTERM and SIGINT: remembered while the broker starts (``while_starting`` is called: a standby stops waiting), an
    exception while it serves.

    The first signal starts the time limit of the stop, whatever the broker is doing; at its end the process ends. A
    second signal ends the process at once. The log survives both, as it survives kill -9.
    """

    def __init__(self, time_to_stop_s: float) -> None:
        from broker.runtime.clock import SystemClock
        from broker.runtime.process import LastResort, exit_now

        self._now = SystemClock.monotonic
        self._exit_now = exit_now
        self._last_resort = LastResort
        self._armed: LastResort | None = None
        self._time_to_stop_s = time_to_stop_s
        self._deadline: float | None = None
        self._received = False
        self._serving = False
        self.while_starting: Callable[[], None] = lambda: None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if self._received:
            self._exit_now(128 + number)
        self._received = True
        self._begin_to_stop()
        if self._serving:
            raise _StopRequested
        self.while_starting()

    def time_left(self) -> float:
        """Seconds until the broker must have stopped."""
        if self._deadline is None:  # no signal: a thread has crashed
            self._begin_to_stop()
        assert self._deadline is not None
        return max(0.0, self._deadline - self._now())

    def stopped(self) -> None:
        """The broker has stopped in time."""
        if self._armed is not None:
            self._armed.call_off()

    def _begin_to_stop(self) -> None:
        self._deadline = self._now() + self._time_to_stop_s
        why = f"broker: not stopped within {self._time_to_stop_s:g} s; the process ends now"
        self._armed = self._last_resort(self._time_to_stop_s + _GRACE_S, 1, why)

    def begin(self) -> None:
        self._serving = True
        if self._received:
            raise _StopRequested

    def end(self) -> None:
        self._serving = False


@contextmanager
def _stop_signals(time_to_stop_s: float) -> "Iterator[_Signals]":
    signals = _Signals(time_to_stop_s)
    before = {number: signal.signal(number, signals.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_ready_file(path: str, listeners: Mapping[str, str], started_ms: int) -> None:
    import json

    content = {"pid": os.getpid(), "listeners": dict(listeners), "started_ms": started_ms}
    # Renamed when complete, so that a reader never sees a part of it.
    unfinished = f"{path}.{os.getpid()}"
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")
    os.replace(unfinished, path)


def _check_ready_file(path: str) -> None:
    # A file of an earlier broker would announce readiness too early.
    try:
        _remove(path)
        directory = os.path.dirname(os.path.abspath(path))
        if not os.access(directory, os.W_OK):
            raise PermissionError(f"{directory} is not a writable directory")
    except OSError as error:
        raise ConfigError(f"Choose another --ready-file: {error}.") from error


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
