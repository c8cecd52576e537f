"""What the commands say when our own Kafka client fails.

Tests: tests/cli/test_produce_consume.py, tests/cli/test_broker_options.py.
"""

import contextlib
from collections.abc import Iterator

from broker.cli.broker_options import Target
from broker.cli.client import check_port
from broker.errors import BrokerError

# Where Kafka keeps groups, committed offsets, transactions and what share groups have read.
_KAFKAS_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def no_topic(topic: str) -> BrokerError:
    if topic in _KAFKAS_INTERNAL:
        return BrokerError(
            f"There is no topic {topic!r}. A reactor broker keeps groups, offsets and transactions in its catalogue: "
            "`broker groups` and `broker transactions` show them."
        )
    return BrokerError(f"There is no topic {topic!r}: `broker topics list` shows the existing topics.")


@contextlib.contextmanager
def client_errors(target: Target) -> Iterator[None]:
    """Adds what to do where no broker answers. Every other error of the client says it already."""
    from broker.client.kafka.errors import UnreachableError

    check_port(target)
    try:
        yield
    except UnreachableError as error:
        # The client's own sentence has more to say where something listens that is no broker, or one with TLS.
        if "security.protocol" in str(error):
            raise
        raise BrokerError(
            f"No broker answers at {target.bootstrap}: start one with `broker serve`, or name another with -b HOST:PORT."
        ) from error
