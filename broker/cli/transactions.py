"""`broker transactions`: list, describe and abort transactions, with Kafka's protocol, so that it works with any Kafka broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from broker.cli.broker_options import Target, broker_options
from broker.cli.client import client_settings, format_time, plain_errors
from broker.cli.output import print_table

_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group()
def command() -> None:
    """List, describe and abort transactions."""


@command.command("list")
@broker_options
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only transactions in this state.")
def list_transactions(target: Target, states: tuple[str, ...]) -> None:
    """List the transactional ids that the broker knows, one per line."""
    with _admin(target) as admin:
        found = admin.list_transactions(state_filters=list(states) or None)
    rows = sorted(
        (one.transactional_id, one.producer_id, _text(one.state)) for of_broker in found.values() for one in of_broker
    )
    print_table(["transactional id", "producer id", "state"], rows)


@command.command()
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@broker_options
def describe(names: tuple[str, ...], target: Target) -> None:
    """Show the state, producer and partitions of transactional ids."""
    with _admin(target) as admin:
        found = admin.describe_transactions(list(names))
    for name in names:
        one = found[name]
        click.echo(
            f"{name}: {_text(one.state)}, producer {one.producer_id} epoch {one.producer_epoch}, "
            f"started {format_time(one.transaction_start_time_ms)}, timeout {one.transaction_timeout_ms} ms"
        )
        for topic, partition in sorted(tuple(key) for key in one.topic_partitions):
            click.echo(f"  {topic}-{partition}")


@command.command()
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@broker_options
def abort(names: tuple[str, ...], target: Target) -> None:
    """Abort the open transactions of these ids and fence their producers, whose next request will fail."""
    with _admin(target) as admin:
        admin.describe_transactions(list(names))  # fails for an unknown id, which the next step would create
    from broker.client.kafka.cluster import Cluster

    with Cluster(target.config("transactions")) as cluster:
        for name in names:
            # Takes over the id from its producer. The coordinator then aborts the open transaction.
            cluster.abort_transaction(name)
            click.echo(f"aborted {name}")


def _text(state: Any) -> str:
    return str(getattr(state, "value", state))


@contextmanager
def _admin(target: Target) -> Iterator[Any]:
    with plain_errors(target):
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(**client_settings(target, "transactions"))
        try:
            yield admin
        finally:
            admin.close()
