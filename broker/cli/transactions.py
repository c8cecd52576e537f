"""`broker transactions`: list, describe and abort transactions, with Kafka's protocol, so that it works with any Kafka broker."""

import click

from broker.cli import completing
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import format_time, kafka
from broker.cli.output import output_option, print_done, print_object, print_rows, say

_names = click.argument(
    "names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True, shell_complete=completing.transactional_ids
)
_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group()
def command() -> None:
    """List, describe and abort transactions."""


@command.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only transactions in this state.")
@output_option
@broker_options
def list_transactions(target: Target, states: tuple[str, ...], as_json: bool) -> None:
    """List the transactional ids that the brokers know, one per line."""
    from broker.client.kafka.admin.cluster import list_ids

    with kafka(target, "transactions") as cluster:
        listed = list_ids(cluster.routing, states)
    rows = [(transaction.transactional_id, transaction.producer_id, transaction.state) for transaction in listed]
    print_rows(["transactional id", "producer id", "state"], rows, as_json)


@command.command()
@_names
@output_option
@broker_options
def describe(names: tuple[str, ...], as_json: bool, target: Target) -> None:
    """Show the state, producer and partitions of transactional ids."""
    from broker.client.kafka.admin.cluster import describe_id

    with kafka(target, "transactions") as cluster:
        described = [describe_id(cluster.routing, name) for name in dict.fromkeys(names)]
    for transaction in described:
        if as_json:
            print_object(
                {
                    "transactional_id": transaction.transactional_id,
                    "state": transaction.state,
                    "producer_id": transaction.producer_id,
                    "producer_epoch": transaction.producer_epoch,
                    "started_ms": transaction.started_ms if transaction.started_ms >= 0 else None,
                    "timeout_ms": transaction.timeout_ms,
                    "partitions": [
                        {"topic": topic, "partition": partition} for topic, partition in transaction.partitions
                    ],
                }
            )
            continue
        say(
            f"{transaction.transactional_id}: {transaction.state}, producer {transaction.producer_id} "
            f"epoch {transaction.producer_epoch}, started {format_time(transaction.started_ms)}, "
            f"timeout {transaction.timeout_ms} ms"
        )
        for topic, partition in transaction.partitions:
            say(f"  {topic}-{partition}")


@command.command()
@_names
@output_option
@broker_options
def abort(names: tuple[str, ...], as_json: bool, target: Target) -> None:
    """Abort the open transactions of these ids and fence their producers, whose next request will fail."""
    from broker.client.kafka.admin.cluster import describe_id

    with kafka(target, "transactions") as cluster:
        for name in names:
            describe_id(cluster.routing, name)  # fails for an unknown id, which the next step would create
        for name in names:
            # Takes over the id from its producer. The coordinator then aborts the open transaction.
            cluster.abort_transaction(name)
            print_done("aborted", "transactional_id", name, as_json)
