"""The connection by which a node of one machine asks another: that of the Kafka client, which logs in with the secret of the
nodes.

Used by the thread that asks (``kafka/transactions/neighbours.py``).

Tests: tests/process/test_nodes_transactions.py.
"""

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.connection import Connection
from broker.client.security_settings import Sasl
from broker.cluster.nodes import MECHANISM, Link

# A node on the same machine that does not take a connection within this time stands still.
_CONNECT_MS = 2_000
# How long an answer may take that waits for an fsync or two.
_ANSWER_MS = 5_000


def link(user: str, secret: str, address: tuple[str, int]) -> Link:
    """``user``: as this node calls itself."""
    config = ClientConfig(
        bootstrap=(address,),
        client_id=user,
        sasl=Sasl(MECHANISM, user, secret),
        connect_timeout_ms=_CONNECT_MS,
        request_timeout_ms=_ANSWER_MS,
    )
    return Connection(address, config)
