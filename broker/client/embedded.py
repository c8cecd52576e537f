"""A broker inside the process that uses it: for tests, notebooks and small programs."""

import shutil
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from broker.config import load
from broker.errors import ConfigError
from broker.server import BrokerServer

_LISTENERS = ("kafka://127.0.0.1:0", "shuffle://127.0.0.1:0")


class Broker:
    """A real broker on free ports of the loopback interface.

    >>> with Broker() as broker:
    ...     producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    Without ``data_dir`` it works in a temporary directory that goes when it stops. ``settings`` are the broker's settings by
    name (see docs/OPERATIONS.md), for example ``Broker(num_partitions=4)``. Raises ConfigError for a setting that can't be.
    """

    def __init__(self, data_dir: str | None = None, **settings: Any) -> None:
        self._temporary = data_dir is None
        self._data_dir = data_dir
        self._settings: Mapping[str, Any] = settings
        self._server: BrokerServer | None = None

    def start(self) -> "Broker":
        """Start; returns when clients can connect."""
        assert self._server is None, "already started"
        data_dir = self._data_dir or tempfile.mkdtemp(prefix="broker-")
        settings = {"listeners": _LISTENERS, "shutdown_timeout_ms": 1000, **self._settings}
        try:
            server = BrokerServer(load(data_dir=data_dir, **settings))
            server.start()
        except BaseException:
            if self._temporary:
                shutil.rmtree(data_dir, ignore_errors=True)
            raise
        self._server, self._data_dir = server, data_dir
        return self

    def stop(self) -> None:
        """Stop, and remove the temporary directory. Stopping twice is no error."""
        server, self._server = self._server, None
        if server is None:
            return
        server.stop()
        if self._temporary and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None

    @property
    def server(self) -> BrokerServer:
        """The running broker's inside."""
        assert self._server is not None, "not started"
        return self._server

    @property
    def bootstrap_servers(self) -> str:
        """What a client's setting of that name wants: ``host:port``."""
        return self._address("kafka")

    @property
    def shuffle_address(self) -> str:
        """Where ``ShuffleWriter`` and ``InputGate`` find it: ``host:port``."""
        return self._address("shuffle")

    def _address(self, scheme: str) -> str:
        """Of the first listener of this kind."""
        for listener in self.server.config.listeners:
            if listener.scheme == scheme:
                return self.server.listeners[listener.name]
        raise ConfigError(f"Give the broker a {scheme}:// listener.")

    @property
    def data_dir(self) -> str:
        """Where its files are."""
        assert self._data_dir is not None, "not started"
        return self._data_dir

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
