"""`broker cluster`: shows the brokers of a cluster, their listeners, features and APIs, with Kafka's protocol, so that
it works with any Kafka broker.
"""

from collections import Counter
from typing import TYPE_CHECKING

import click

from broker.cli.broker_options import Target, broker_options
from broker.cli.client import kafka
from broker.cli.output import output_option, print_object, print_rows, print_table, say
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.client.kafka import Cluster
    from broker.client.kafka.connection import Connection

_broker = click.option(
    "--broker", type=click.IntRange(min=0), metavar="ID", help="Ask this broker.  [default: the one at -b]"
)


@click.group()
def command() -> None:
    """Show the brokers of a cluster, their listeners, features and APIs."""


@command.command()
@output_option
@broker_options
def describe(as_json: bool, target: Target) -> None:
    """Show the cluster's id and controller, and its brokers with their listeners, free space and partitions."""
    from broker.client.kafka.admin import cluster as admin
    from broker.client.kafka.admin.configs import describe_topics

    with kafka(target, "cluster") as cluster:
        routing = cluster.routing
        described = admin.describe_cluster(routing)
        details = [
            (broker, admin.listeners(routing, broker), admin.space(routing, broker)) for broker in described.brokers
        ]
        topics = describe_topics(routing).topics
    led = Counter(partition.leader for topic in topics for partition in topic.partitions)
    if as_json:
        brokers = [
            {
                "id": broker.id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "fenced": broker.is_fenced,
                "listeners": list(addresses),
                "total_bytes": space and space.total,
                "usable_bytes": space and space.usable,
                "partitions": led[broker.id],
            }
            for broker, addresses, space in details
        ]
        print_object({"cluster_id": described.cluster_id, "controller": described.controller, "brokers": brokers})
        return
    count = len(details)
    say(
        f"cluster {described.cluster_id or '(no id)'}, controller {described.controller}, {count} broker{'s' * (count != 1)}"
    )
    rows = [
        (
            broker.id,
            f"{broker.host}:{broker.port}",
            broker.rack,
            "fenced" if broker.is_fenced else "up",
            " ".join(addresses) or None,
            space and space.usable,
            space and space.total,
            led[broker.id],
        )
        for broker, addresses, space in details
    ]
    print_table(["broker", "address", "rack", "state", "listeners", "free bytes", "of bytes", "leads partitions"], rows)


@command.command("features")
@_broker
@output_option
@broker_options
def list_features(broker: int | None, as_json: bool, target: Target) -> None:
    """List the features that a broker supports, and the level that the cluster has agreed on."""
    from broker.client.kafka.admin.cluster import features

    with kafka(target, "cluster") as cluster:
        levels = features(_connection(cluster, broker))
    rows = [(level.name, level.least, level.most, level.finalized) for level in levels]
    print_rows(["feature", "lowest", "highest", "finalized"], rows, as_json)


@command.command("apis")
@_broker
@output_option
@broker_options
def list_apis(broker: int | None, as_json: bool, target: Target) -> None:
    """List the APIs that a broker serves, with their versions."""
    from broker.client.kafka.admin.cluster import apis

    with kafka(target, "cluster") as cluster:
        rows = apis(_connection(cluster, broker))
    names = [(key, name and _words(name), least, most) for key, name, least, most in rows]
    print_rows(["key", "api", "lowest", "highest"], names, as_json)


def _connection(cluster: "Cluster", broker: int | None) -> "Connection":
    from broker.client.kafka.admin.cluster import describe_cluster

    routing = cluster.routing
    if broker is None:
        return routing.retrying(routing.any_connection)
    addresses = {node.id: (node.host, node.port) for node in describe_cluster(routing).brokers}
    if broker not in addresses:
        raise BrokerError(f"The cluster has no broker {broker}; it has {', '.join(map(str, addresses))}.")
    return routing.retrying(lambda: routing.connection(addresses[broker]))


def _words(name: str) -> str:
    """FETCH_SNAPSHOT -> FetchSnapshot, as Kafka writes it."""
    return "".join(word.capitalize() for word in name.split("_"))
