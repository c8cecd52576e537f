"""`broker cluster`: shows the brokers of a cluster, their listeners, features and APIs, with Kafka's protocol, so that
it works with any Kafka broker; and, by the admin API, the machines of one of several machines, which divide its nodes.

A command that waits for nodes to move asks whichever node is there: the one that it began with may be among those that move.

Tests: tests/cli/test_cluster.py, tests/durable/test_nodes_moves.py.
"""

from collections import Counter
from collections.abc import Callable
from itertools import permutations
from typing import TYPE_CHECKING, Any

import attrs
import click

from broker.cli.admin_api import AdminApi, AdminError, admin_options, parse_admin_url, quoted
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import kafka
from broker.cli.migrate import config_of, moving, state_options
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
    """Show the brokers of a cluster, and which machine has which.

    describe, features and apis work with any Kafka broker. The other commands are for nodes on several machines: resize needs
    their catalogue while they are stopped, the others the address of an http:// listener.
    """


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


_LOOK_S = 0.5
_PATH = "/api/v1/cluster/machines"
_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait. What was ordered goes on afterwards.",
)


@command.command("machines")
@output_option
@admin_options
def list_machines(api: AdminApi, as_json: bool) -> None:
    """List the machines among which the nodes are divided, one per line."""
    found = _Machines(api).look()
    rows = [
        (each["machine"], each["version"], each["weight"], each["drained"], " ".join(map(str, each["nodes"])) or None)
        for each in found
    ]
    print_rows(["machine", "version", "weight", "drained", "nodes"], rows, as_json)


@command.command()
@click.argument("machine", metavar="MACHINE")
@click.option("--back", is_flag=True, help="The machine takes nodes again, and gets its share.")
@_timeout
@admin_options
def drain(machine: str, back: bool, timeout: float, api: AdminApi) -> None:
    """Have a machine give its nodes to the others, and wait until it has none.

    MACHINE is a name that `broker cluster machines` shows, or its beginning. The nodes move one at a time, and clients go on. The
    machine goes on to run and takes no nodes, unless no other machine is there, until --back or until its `broker serve` is
    started again.
    """
    machines = _Machines(api)
    name = _chosen(machines.look(), machine)
    machines.ask("DELETE" if back else "POST", f"{_PATH}/{quoted(name)}/drain")
    if back:
        say(f"{name} takes nodes again")
        machines.wait(timeout, _is_even)
    else:
        machines.wait(timeout, lambda found: not any(each["nodes"] for each in found if each["machine"] == name))


@command.command()
@_timeout
@admin_options
def balance(timeout: float, api: AdminApi) -> None:
    """Wait until the nodes are divided evenly among the machines that are there.

    Machines see to that by themselves, one node at a time. When this ends, a machine that was started again has its share, and
    the next one can be stopped.
    """
    _Machines(api).wait(timeout, _is_even)


@command.command()
@click.argument("nodes", metavar="N", type=click.IntRange(1, 64))
@click.option(
    "--data-dir",
    metavar="DIR",
    required=True,
    help="An empty directory, or a broker's cache: it is emptied, and used meanwhile.",
)
@state_options
@output_option
def resize(
    nodes: int, data_dir: str, catalogue: str | None, schema: str | None, objects: str | None, as_json: bool
) -> None:
    """Change how many nodes a catalogue in PostgreSQL is divided among, while no broker runs.

    From one broker to several, back, and from one number to another: all brokers are stopped, and started afterwards with
    --nodes N, or without it if N is 1. Everything stays as it is, but partitions, groups and transactional ids are at other
    nodes. If this was interrupted, either number is in force; run it again.
    """
    config = config_of(data_dir, catalogue, schema, objects)
    from broker.runtime import system_runtime
    from broker.server.resizing import resize as change

    with moving(as_json, config.data_dir) as progress:
        resized = change(config, nodes, system_runtime(), progress)
    if as_json:
        print_object(attrs.asdict(resized))
        return
    how = f"with --nodes {nodes}" if nodes > 1 else "without --nodes"
    if resized.was == nodes:
        say(f"The number of nodes is {nodes} already. Start the brokers {how}.")
    else:
        say(f"{resized.was} to {nodes} nodes: {resized.partitions} partitions have moved. Start the brokers {how}.")


class _Machines:
    """Asks any node of the cluster, the one that has answered last first."""

    def __init__(self, api: AdminApi) -> None:
        self._apis = [api]
        self._count = 0  # of nodes

    def ask(self, method: str, path: str) -> Any:
        error: BrokerError | None = None
        for api in list(self._apis):
            try:
                answer = api.ask(method, path)
            except BrokerError as problem:  # its node is on the way to another machine
                if isinstance(problem, AdminError) and problem.status < 500:
                    raise
                error = error or problem
                continue
            self._apis.remove(api)
            self._apis.insert(0, api)
            return answer
        assert error is not None
        raise error

    def look(self) -> list[dict[str, Any]]:
        answer = self.ask("GET", _PATH)
        self._count = answer["nodes"]
        answered = self._apis[0]
        known = [parse_admin_url(url, answered.security) for url in answer["addresses"]]
        others = [api for api in known if api != answered and api.is_https == answered.is_https]
        self._apis = [answered, *others]
        machines: list[dict[str, Any]] = answer["machines"]
        if not machines:
            raise BrokerError("This broker is not one of a cluster on several machines.")
        return machines

    def wait(self, timeout_s: float, is_done: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Until all nodes serve, and it is done. Says which machine has which nodes, whenever that has changed."""
        from broker.runtime.clock import SystemClock
        from broker.runtime.threads import Event

        deadline = SystemClock.monotonic() + timeout_s
        shown = ""
        while True:
            problem = "not all nodes serve"
            try:
                found = self.look()
                text = ", ".join(f"{each['machine']}: {' '.join(map(str, each['nodes'])) or 'none'}" for each in found)
                if text != shown:
                    shown = text
                    say(text)
                if sum(len(each["serving"]) for each in found) == self._count:
                    if is_done(found):
                        return
                    problem = "the nodes have not moved yet"
            except BrokerError as error:  # all that are known are on their way
                if isinstance(error, AdminError) and error.status < 500:
                    raise
                problem = str(error).rstrip(".")
            if SystemClock.monotonic() >= deadline:
                raise BrokerError(f"After {timeout_s:g} s: {problem}.")
            Event().wait(_LOOK_S)


def _chosen(machines: list[dict[str, Any]], beginning: str) -> str:
    names = [str(each["machine"]) for each in machines]
    found = [name for name in names if name == beginning] or [name for name in names if name.startswith(beginning)]
    if len(found) != 1:
        what = "several machines begin" if found else "no machine begins"
        raise BrokerError(f"Name one of these machines, as {what} with {beginning!r}: {', '.join(names)}.")
    return found[0]


def _is_even(machines: list[dict[str, Any]]) -> bool:
    """Whether no node will move any more, as ``ClusterView.has_too_many`` has it."""
    had = [(len(each["nodes"]), 0.0 if each["drained"] else each["weight"]) for each in machines]
    return not any(
        count > 0 and other > 0 and (count - 1) * other >= (fewer + 1) * mine
        for (count, mine), (fewer, other) in permutations(had, 2)
    )


def _words(name: str) -> str:
    """FETCH_SNAPSHOT -> FetchSnapshot, as Kafka writes it."""
    return "".join(word.capitalize() for word in name.split("_"))
