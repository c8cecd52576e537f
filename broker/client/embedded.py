"""A broker inside the process that uses it: for tests, notebooks and small programs."""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, runtime_checkable

import attrs

from broker.client.broker_calls import BrokerCalls, NotRunning
from broker.client.settings import Settings
from broker.config import BrokerConfig, load
from broker.config.listener import Listener
from broker.errors import BrokerError, ConfigError
from broker.log import get_logger
from broker.runtime import forks
from broker.runtime.directory_image import DirectoryImage
from broker.runtime.forks import in_thread
from broker.runtime.net import reserve_port
from broker.runtime.temporary import TemporaryDirectory
from broker.runtime.threads import RLock, run_aside

if TYPE_CHECKING:
    from broker.faults.faults import Faults
    from broker.server import BrokerServer
    from broker.server.contents import AfterReset

# How long (s) a stopping broker waits for requests in flight.
_DRAIN_S = 1.0
# More ids than producers get between two resets; there are 2**63.
_PRODUCER_IDS = 1 << 32
P = ParamSpec("P")
T = TypeVar("T")
_LISTENERS = ("kafka://127.0.0.1:0", "shuffle://127.0.0.1:0")


@runtime_checkable
class PathLike(Protocol):
    """The part of ``pathlib.Path`` that this module needs; only the runtime imports ``pathlib``."""

    def __fspath__(self) -> str: ...


class Serving(Protocol):
    """The part of ``BrokerServer`` that starting and stopping needs."""

    @property
    def listeners(self) -> dict[str, str]: ...

    def stop(self, *, drain: float | None = None) -> bool: ...


@attrs.frozen(eq=False, repr=False)
class Snapshot:
    """The state of a broker, for ``Broker.reset``."""

    image: DirectoryImage


class Broker(BrokerCalls):
    """A real broker on free ports of the loopback interface.

    >>> with Broker() as broker:
    ...     producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    ``stop()`` and ``start()`` restart it with the same data and on the same ports, so that a test can see how its
    clients react. ``close()``, the end of the ``with`` block and the end of the program end the broker; a later start
    begins anew.

    Without ``data_dir`` the broker works in a temporary directory, which is removed when the broker is closed or when
    the program ends, also by an exception. If the program is killed (also by a SIGTERM that it does not handle), the
    next ``Broker()`` of the same user removes the directory. A ``data_dir`` of the caller's is never removed.
    ``settings`` are the broker's settings by name (see docs/SETTINGS.md), for example ``Broker(num_partitions=4)``.
    Raises ConfigError for a wrong name or value, before anything is started. ``async with Broker() as broker`` starts
    and closes it without blocking asyncio's event loop.
    """

    def __init__(self, data_dir: str | PathLike | None = None, **settings: Unpack[Settings]) -> None:
        self._given_dir = data_dir = data_dir.__fspath__() if isinstance(data_dir, PathLike) else data_dir
        self._temporary: TemporaryDirectory | None = None
        self._server: Serving | None = None
        self._restarted: Serving | None = None  # that for which a restart was asked for last
        self._turn = RLock()  # a call of one thread and a stop by another wait for each other
        self._forks = forks.count()
        self._has_own_drain = "shutdown_timeout_ms" in settings
        # Name and password of the user that ``client_settings`` log in.
        self.login: tuple[str, str] | None = None
        values: dict[str, Any] = {"listeners": _LISTENERS, **settings}
        if data_dir is not None:
            values["data_dir"] = data_dir
        self._config = load(**values)
        self._addresses: dict[str, str] = {}  # by listener, from the first start on
        self._ports: dict[str, int] = {}
        self._faults: Faults | None = None  # made when they are first asked for
        self._resets = 0
        self._empty: Snapshot | None = None
        self._cluster_id = ""
        self._after_reset: AfterReset | None = None  # for the next start
        self._reserved: list[Callable[[], None]] = []  # functions that free the ports while the broker is stopped
        when_dropped(self, call_all, self._reserved)

    def __repr__(self) -> str:
        server = self._server
        if server is None:
            has_place = self._given_dir is not None or self._temporary is not None
            place = repr(self.data_dir) if has_place else "a temporary directory"
            return f"<{type(self).__name__}, not running, data in {place}>"
        addresses = ", ".join(f"{name}://{address}" for name, address in server.listeners.items())
        return f"<{type(self).__name__} at {addresses}, data in {self.data_dir!r}>"

    def start(self) -> "Broker":
        """Start the broker, after a stop with the same data and ports. When this returns, clients can connect. Raises
        ConfigError, also if another program has taken one of its ports meanwhile."""
        if self._forks != forks.count():
            self._turn = RLock()  # another thread of the parent may have held it
        with self._turn:
            if self._server is not None:
                raise BrokerError(f"This broker is running already: {self!r}.")
            self._forks = forks.count()
            if self._given_dir is None and self._temporary is None:
                self._temporary = TemporaryDirectory()
                when_dropped(self, self._temporary.remove)
            self._start()
        return self

    def _start(self) -> None:
        try:
            config = attrs.evolve(self._config, data_dir=self.data_dir, **self._fixed_listeners())
            server, cluster_id = self._serve(config)
        except BaseException:
            if self._ports:
                self._reserve_ports()
            else:
                self._remove_directory()
            raise
        self._server = server
        self._cluster_id = cluster_id
        self._after_reset = None
        self._addresses = dict(server.listeners)
        self._ports = {name: int(address.rpartition(":")[2]) for name, address in self._addresses.items()}
        if self._temporary is not None:
            self._temporary.before_exit = self.close

    def _serve(self, config: BrokerConfig) -> tuple[Serving, str]:
        """A server that has started, on the ports that were reserved, and its cluster id."""
        # Not at the top: pytest imports all test modules, also to run one test, and the server is most of the broker.
        from broker.server import contents

        call_all(self._reserved)
        server = contents.start(config, self.faults, self._after_reset)
        return server, server.kafka.cluster_id

    def stop(self) -> None:
        """Stop the broker; ``start`` continues with the same data and ports. Does nothing if the broker is stopped
        already, or in a process that was forked from the process that started it."""
        if forks.count() != self._forks:
            return
        with self._turn:
            server, self._server = self._server, None
            if server is None:
                return
            try:
                # The clients are in this process and will not finish their requests, so do not wait long unless a time was set.
                server.stop(drain=None if self._has_own_drain else _DRAIN_S)
            finally:
                self._reserve_ports()
                if self._temporary is not None:
                    self._temporary.before_exit = None

    def kill(self) -> None:
        """End the broker at once, as ``kill -9`` does. Raises BrokerError: only a ``ProcessBroker`` can do that."""
        raise BrokerError(
            "This broker is in the program's own process, so a kill would end both: use ProcessBroker() in place of Broker()."
        )

    def restart(self) -> None:
        """``stop`` and ``start``: the same ports, the same data. Clients lose their connections and find the broker again."""
        with self._turn:
            self.stop()
            self.start()

    def _restart_soon(self) -> None:
        """For a thread of the broker, which must not wait until it has ended."""
        server = self._server
        if server is None or self._restarted is server:
            return
        self._restarted = server

        def restart() -> None:
            try:
                with self._turn:
                    if self._server is server:
                        self.restart()
            except BrokerError as error:
                get_logger("client").error("restart_failed", exc_info=error)

        run_aside("broker-restart", restart)

    def snapshot(self) -> Snapshot:
        """The state of the broker, kept in memory, for ``reset``: topics, records, groups, transactions, users. A running broker
        is restarted for it, so that nothing changes meanwhile."""
        with self._turn:
            was_running = self._server is not None
            self.stop()
            try:
                return Snapshot(DirectoryImage.of(self.data_dir))
            finally:
                if was_running:
                    self.start()

    def reset(self, snapshot: Snapshot | None = None) -> None:
        """Go back to the state of the snapshot, or become empty, on the same ports. A running broker is restarted; a stopped one
        stays stopped. Clients may go on: they see a broker that was restarted with older data. Raises ConfigError for a
        broker with a directory of the caller's, which is never emptied."""
        if self._given_dir is not None:
            raise ConfigError(f"Leave out data_dir to reset a broker: {self._given_dir} is never emptied.")
        with self._turn:
            was_running = self._server is not None
            self.stop()
            if snapshot is None and self._empty is None:
                self._put_back(DirectoryImage())
                self.start()  # it takes twice as long without a catalogue
                self._empty = self.snapshot()
                self.stop()
            image = snapshot or self._empty
            assert image is not None
            self._put_back(image.image)
            if was_running:
                self.start()

    def _put_back(self, image: DirectoryImage) -> None:
        image.put_back(self.data_dir)
        # Clients that go on have ids that this state does not know; nobody else may get them.
        self._resets += 1
        from broker.server.contents import AfterReset  # not at the top: see ``_start``

        self._after_reset = AfterReset(self._cluster_id, self._resets * _PRODUCER_IDS)

    def close(self) -> None:
        """Stop the broker and remove the temporary directory. A later start begins anew, on other free ports.
        Does nothing in a forked process."""
        if forks.count() != self._forks:
            return
        with self._turn:
            try:
                if self._faults is not None:
                    self._faults.clear()  # a slow disk would slow down the stop
                self.stop()
            finally:
                call_all(self._reserved)
                self._addresses, self._ports = {}, {}
                self._empty = self._after_reset = None
                self._remove_directory()

    def _ask(self, function: "Callable[Concatenate[BrokerServer, P], T]", *args: P.args, **kwargs: P.kwargs) -> T:
        with self._turn:
            return function(self.server, *args, **kwargs)

    def _remove_directory(self) -> None:
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.remove()

    def _fixed_listeners(self) -> dict[str, Any]:
        """The settings of the listeners, with the ports of the last start."""
        if not self._ports:
            return {}
        control = self._config.control_listener
        return {
            "listeners": tuple(self._fixed(listener) for listener in self._config.listeners),
            "control_listener": None if control is None else self._fixed(control),
        }

    def _fixed(self, listener: Listener) -> Listener:
        port = self._ports[listener.name]
        return attrs.evolve(listener, port=port, port_max=port)

    def _reserve_ports(self) -> None:
        control = self._config.control_listener
        for listener in (*self._config.listeners, *(() if control is None else (control,))):
            release = reserve_port(listener.host, self._ports[listener.name])
            if release is not None:
                self._reserved.append(release)

    @property
    def server(self) -> "BrokerServer":
        """The running server, for tests and programs that inspect it."""
        if self._server is None:
            raise NotRunning
        return cast("BrokerServer", self._server)

    @property
    def faults(self) -> "Faults":
        """Faults on demand (see docs/TESTING.md). They can be added before the start, and stay over stops and starts.

        >>> with broker.faults.add("error", api="PRODUCE", topic="orders", error="NOT_LEADER_OR_FOLLOWER") as fault:
        ...     producer.produce("orders", b"1")
        ...     fault.wait()
        >>> broker.faults.trigger("rebalance", group="billing")
        """
        if self._faults is None:
            from broker.server.services import new_faults  # not at the top: see ``_start``

            self._faults = new_faults(self._config, has_machine=True, restart=self._restart_soon)
        return self._faults

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, for the client setting of the same name."""
        return self.address(self._listener("kafka").name)

    @property
    def client_settings(self) -> dict[str, str]:
        """What a Kafka client needs to connect, by the names of librdkafka and of Java: ``Producer(broker.client_settings)``.
        The user in ``login``, a pair of name and password, logs in with SCRAM-SHA-256."""
        listener = self._listener("kafka")
        protocol = ("SASL_" if listener.sasl else "") + ("SSL" if listener.ssl else "PLAINTEXT")
        settings = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": protocol}
        if self.login is not None and listener.sasl:
            name, password = self.login
            settings |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": name, "sasl.password": password}
        return settings

    @property
    def shuffle_address(self) -> str:
        """``host:port``, for ``ShuffleWriter`` and ``InputGate``."""
        return self.address(self._listener("shuffle").name)

    def address(self, listener: str) -> str:
        """``host:port`` of the listener with this name: its scheme, such as ``kafka+sasl+ssl``, unless its URL gives
        another."""
        addresses = self._addresses
        if not addresses:
            raise NotRunning
        if listener not in addresses:
            raise ConfigError(f"There is no listener {listener!r}: this broker has {', '.join(addresses)}.")
        return addresses[listener]

    def _listener(self, scheme: str) -> Listener:
        """The first listener of this service."""
        for listener in self._config.listeners:
            if listener.scheme == scheme:
                return listener
        raise ConfigError(f"Give the broker a {scheme}:// listener.")

    @property
    def data_dir(self) -> str:
        """The directory with the broker's files."""
        if self._given_dir is not None:
            return self._given_dir
        if self._temporary is None:
            raise NotRunning
        return self._temporary.path

    async def __aenter__(self) -> "Broker":
        return await in_thread(self.start, undo=self.close)

    async def __aexit__(self, *_error: object) -> None:
        await in_thread(self.close)

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.close()


def when_dropped(broker: Broker, *call: Any) -> None:
    """Call this when the program has dropped a stopped broker. ``before_exit`` keeps a running broker alive."""
    weakref.finalize(broker, *call).atexit = False


def call_all(functions: list[Callable[[], None]]) -> None:
    while functions:
        functions.pop()()
