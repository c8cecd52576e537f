"""The connection by which a node asks another: that of the Kafka client, which logs in with the secret of the nodes. Between
machines it has TLS where the listener for clients has it.

Used by the thread that asks (``kafka/transactions/neighbours.py``).

Tests: tests/process/test_nodes_transactions.py, tests/durable/test_nodes_tls.py.
"""

from collections.abc import Callable

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.connection import Connection
from broker.client.kafka.routing import client_context
from broker.client.security_settings import Sasl
from broker.cluster.nodes import MECHANISM, Link
from broker.config import BrokerConfig
from broker.config.listener import NODES_LISTENER
from broker.config.per_listener import for_listener
from broker.errors import ConfigError
from broker.runtime.client_tls import TlsSettings
from broker.runtime.disk import Disk

# A node on the same machine that does not take a connection within this time stands still.
_CONNECT_MS = 2_000
# How long an answer may take that waits for an fsync or two.
_ANSWER_MS = 5_000


def link(user: str, secret: str, address: tuple[str, int], tls: Callable[[], TlsSettings] | None = None) -> Link:
    """``user``: as this node calls itself. ``tls``: is asked for each connection, as authorities change. Raises ConfigError."""
    settings = None if tls is None else tls()
    config = ClientConfig(
        bootstrap=(address,),
        client_id=user,
        tls=settings,
        sasl=Sasl(MECHANISM, user, secret),
        connect_timeout_ms=_CONNECT_MS,
        request_timeout_ms=_ANSWER_MS,
    )
    return Connection(address, config, None if settings is None else client_context(settings))


def client_tls(config: BrokerConfig, disk: Disk) -> TlsSettings:
    """How this node verifies the certificates of others: with the authorities of the trust store, or without one with those of
    the machine. Raises ConfigError."""
    from broker.security.key_store import as_pem, read_trust_store

    settings = for_listener(config, NODES_LISTENER)
    given = settings.ssl_truststore_certificates or settings.ssl_truststore_location
    if given is None:
        return TlsSettings()
    try:
        data = given.encode() if "-----BEGIN " in given else _read(disk, given.strip())
        return TlsSettings(ca_data=as_pem(read_trust_store(data, settings.ssl_truststore_password)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"Correct the trust store of the listener {NODES_LISTENER}: {error}.") from None


def _read(disk: Disk, path: str) -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
