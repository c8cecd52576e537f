"""`broker consume --share-group`: prints records as a member of a share group, and accepts the records that it has
printed.

Tests: tests/cli/test_consume_share.py.
"""

import sys

from broker.cli.broker_options import Target
from broker.cli.client import client_errors
from broker.cli.record_format import Renderer

# How long to wait for an assignment, and then, without --follow, for another record.
_ASSIGNMENT_S = 60.0
_IDLE_S = 1.0

_POLL_S = 0.25
_POLL_RECORDS = 500


def consume_shared(
    target: Target,
    group: str,
    topics: tuple[str, ...],
    render: Renderer,
    *,
    from_beginning: bool,
    follow: bool,
    limit: int | None,
) -> None:
    """Runs until Ctrl-C with ``follow``; otherwise until no more records come. Raises BrokerError."""
    from broker.client.kafka.share.share_consumer import ShareConsumer
    from broker.runtime.clock import SystemClock

    out, clock = sys.stdout.buffer, SystemClock()
    left = limit
    with client_errors(target):
        if from_beginning:
            _start_at_the_beginning(target, group)
        # Each poll is accepted by the commit after it, so that everything accepted has been printed.
        with ShareConsumer(target.config("consume"), group, topics) as consumer:
            last_at = clock.monotonic()
            while left is None or left > 0:
                records = consumer.poll(_POLL_S, min(left or _POLL_RECORDS, _POLL_RECORDS))
                now = clock.monotonic()
                if records:
                    out.write(b"".join([render(record.topic, record.partition, record) for record in records]))
                    out.flush()
                    consumer.commit()
                    last_at = now
                    if left is not None:
                        left -= len(records)
                elif not follow and now - last_at >= (_IDLE_S if consumer.has_fetched else _ASSIGNMENT_S):
                    return


def _start_at_the_beginning(target: Target, group: str) -> None:
    """Set the group's start position, which is the end by default."""
    from broker.client.kafka.admin.configs import GROUP, alter_configs
    from broker.client.kafka.cluster import Cluster
    from broker.errors import BrokerError

    resource = (GROUP, group)
    with Cluster(target.config("consume")) as cluster:
        changes = {resource: {"share.auto.offset.reset": "earliest"}}
        answer = alter_configs(cluster.routing, changes)[resource]
    if answer.code:
        raise BrokerError(f"The group {group} cannot be made to start at the first record: {answer.said}.")
