"""`broker topics`: create, alter, list, describe and delete topics, with Kafka's protocol, so that it works with any Kafka
broker."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from broker.cli import completing
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import kafka
from broker.cli.output import output_option, print_done, print_object, print_rows, print_table, say
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.client.kafka import Cluster
    from broker.client.kafka.admin.configs import Entry, Outcome, Partition, Topic, Topics
    from broker.client.kafka.admin.positions import Position
    from broker.client.kafka.values import TopicPartition


@click.group()
def command() -> None:
    """Create, alter, list, describe and delete topics."""


@command.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(min=1),
    help="Number of partitions.  [default: the broker's num_partitions]",
)
@click.option(
    "--replication-factor", type=click.IntRange(min=1), help="Copies of each partition.  [default: the broker's]"
)
@click.option(
    "--config", "-c", "configs", metavar="KEY=VALUE", multiple=True, help="A setting, e.g. retention.ms=3600000."
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail if the topic exists.")
@output_option
@broker_options
def create(
    names: tuple[str, ...],
    as_json: bool,
    target: Target,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create topics."""
    from broker.client.kafka.admin.configs import create_topics
    from protocol.kafka.errors import ErrorCode

    settings = dict(_key_and_value(pair) for pair in configs)
    with kafka(target, "topics") as cluster:
        outcomes = create_topics(
            cluster.routing,
            list(dict.fromkeys(names)),
            partitions=partitions,
            replication_factor=replication_factor,
            settings=settings,
        )
    _report(outcomes, "created", ErrorCode.topic_already_exists if if_not_exists else None, as_json)


@command.command("list")
@click.option("--internal", is_flag=True, help="Also list topics whose names begin with __.")
@output_option
@broker_options
def list_topics(target: Target, internal: bool, as_json: bool) -> None:
    """List the topics, one per line."""
    from broker.client.kafka.admin.configs import describe_topics

    with kafka(target, "topics") as cluster:
        described = describe_topics(cluster.routing)
    rows = [
        (topic.name, len(topic.partitions))
        for topic in described.topics
        if internal or not (topic.is_internal or topic.name.startswith("__"))
    ]
    print_rows(["topic", "partitions"], rows, as_json)


@command.command("describe")
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=completing.topics)
@click.option("--internal", is_flag=True, help="Without TOPIC: also topics whose names begin with __.")
@output_option
@broker_options
def describe_topics(names: tuple[str, ...], internal: bool, as_json: bool, target: Target) -> None:
    """Show the partitions, offsets, sizes and settings of topics (by default, of all topics).

    A partition that cannot be read is shown with the reason. The settings are those that differ from the broker's.
    """
    from broker.client.kafka.admin import configs as admin
    from broker.client.kafka.admin.positions import offsets_at
    from broker.client.kafka.values import EARLIEST, LATEST

    with kafka(target, "topics") as cluster:
        routing = cluster.routing
        described = admin.describe_topics(routing, names or None)
        shown = [
            topic
            for topic in described.topics
            if names or internal or not (topic.is_internal or topic.name[:2] == "__")
        ]
        for topic in shown:
            admin.check_exists(topic)
        leaders = {
            key: leader for key, leader in described.leaders().items() if key[0] in {topic.name for topic in shown}
        }
        starts = offsets_at(routing, leaders, dict.fromkeys(leaders, EARLIEST))
        ends = offsets_at(routing, leaders, dict.fromkeys(leaders, LATEST))
        sizes = admin.sizes(routing, leaders)
        settings = _settings(cluster, [topic.name for topic in shown])
        problems = _problems(cluster, described, ends)
    for index, topic in enumerate(shown):
        rows = [
            _row(
                partition,
                starts[topic.name, partition.number],
                ends[topic.name, partition.number],
                sizes.get((topic.name, partition.number)),
            )
            for partition in topic.partitions
        ]
        wrong = {partition.number: problems.get((topic.name, partition.number)) for partition in topic.partitions}
        if as_json:
            _print_as_json(topic, rows, settings.get(topic.name), wrong)
            continue
        if index:
            say()
        _print(topic, rows, settings.get(topic.name), wrong)


# Partition, leader, replicas, in sync, start, end, size.
_Row = tuple[int, int | None, tuple[int, ...], tuple[int, ...], int | None, int | None, int | None]


def _row(partition: "Partition", start: "Position", end: "Position", size: int | None) -> _Row:
    return (
        partition.number,
        partition.leader,
        partition.replicas,
        partition.in_sync,
        start.offset,
        end.offset,
        size,
    )


def _print(
    topic: "Topic", rows: Sequence[_Row], settings: "Mapping[str, Entry] | None", wrong: Mapping[int, str | None]
) -> None:
    if settings is None:
        shown = "unknown"
    else:
        own = (f"{name}={entry.value}" for name, entry in sorted(settings.items()) if entry.is_own)
        shown = ", ".join(own) or "all as the broker's"
    count = len(rows)
    say(f"{topic.name}: {count} partition{'s' * (count != 1)}; settings: {shown}")
    columns = ["partition", "leader", "replicas", "in sync", "start offset", "end offset", "records at most", "bytes"]
    cells = [
        (
            number,
            leader,
            _numbers(replicas),
            _numbers(in_sync),
            start,
            end,
            None if start is None or end is None else end - start,
            size,
        )
        for number, leader, replicas, in_sync, start, end, size in rows
    ]
    print_table(columns, cells)
    for number, problem in wrong.items():
        if problem is not None:
            say(f"{topic.name}-{number}: {problem}")


def _numbers(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


def _print_as_json(
    topic: "Topic", rows: Sequence[_Row], settings: "Mapping[str, Entry] | None", wrong: Mapping[int, str | None]
) -> None:
    """Print an object for each topic."""
    partitions = [
        {
            "partition": number,
            "leader": leader,
            "replicas": list(replicas),
            "in_sync": list(in_sync),
            "start_offset": start,
            "end_offset": end,
            "bytes": size,
            "problem": wrong[number],
        }
        for number, leader, replicas, in_sync, start, end, size in rows
    ]
    own = None if settings is None else {name: entry.value for name, entry in sorted(settings.items()) if entry.is_own}
    print_object(
        {
            "topic": topic.name,
            "topic_id": str(topic.topic_id) if topic.topic_id and topic.topic_id.int else None,
            "internal": topic.is_internal,
            "settings": own,
            "partitions": partitions,
        }
    )


def _settings(cluster: "Cluster", names: Sequence[str]) -> "dict[str, Mapping[str, Entry]]":
    """The settings by topic, without topics whose settings the broker does not show to this user."""
    from broker.client.kafka.admin.configs import TOPIC, describe_configs
    from broker.client.kafka.errors import UnsupportedVersionError

    try:
        configs = describe_configs(cluster.routing, [(TOPIC, name) for name in names])
    except UnsupportedVersionError:
        return {}
    return {name: answer.entries for (_, name), answer in configs.items() if not answer.code}


def _problems(
    cluster: "Cluster", described: "Topics", ends: "Mapping[TopicPartition, Position]"
) -> "dict[TopicPartition, str]":
    """The problem of each partition that cannot be read, in the broker's words if it gives any."""
    from broker.client.kafka.admin.configs import why_offline
    from broker.client.kafka.errors import code_name
    from protocol.kafka.errors import ErrorCode

    offline = (ErrorCode.kafka_storage_error, ErrorCode.leader_not_available)
    leaders = described.leaders()
    problems = {}
    for topic in described.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.number)
            if key not in ends:
                continue
            leader, code = leaders[key], ends[key].code
            if leader is None:
                problems[key] = "offline: no leader"
            elif code:
                reason = why_offline(cluster.routing, key, leader) or code_name(code)
                problems[key] = f"{'offline' if code in offline else 'cannot be read'}: {reason}"
            elif len(partition.in_sync) < len(partition.replicas):
                problems[key] = (
                    f"{len(partition.replicas) - len(partition.in_sync)} of {len(partition.replicas)} replicas not in sync"
                )
    return problems


@command.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=completing.topics)
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="Number of partitions from now on.")
@click.option("--config", "-c", "sets", metavar="KEY=VALUE", multiple=True, help="Set a setting; can be repeated.")
@click.option(
    "--delete-config",
    "-d",
    "deletes",
    metavar="KEY",
    multiple=True,
    help="Remove a setting, so that the broker's setting applies.",
)
@output_option
@broker_options
def alter(
    names: tuple[str, ...],
    partitions: int | None,
    sets: tuple[str, ...],
    deletes: tuple[str, ...],
    as_json: bool,
    target: Target,
) -> None:
    """Give topics more partitions or other settings.

    Partitions can only be added, and records with a key may then go to another partition than earlier ones.
    """
    from broker.client.kafka.admin.configs import TOPIC, add_partitions, alter_configs, check_exists
    from broker.client.kafka.admin.configs import describe_topics as describe

    if not (partitions or sets or deletes):
        raise click.UsageError("Say what to change: --partitions N, --config KEY=VALUE or --delete-config KEY.")
    changes: dict[str, str | None] = dict(_key_and_value(pair) for pair in sets)
    changes |= dict.fromkeys(deletes)
    wanted = list(dict.fromkeys(names))
    with kafka(target, "topics") as cluster:
        for topic in describe(cluster.routing, wanted).topics:
            check_exists(topic)
        if changes:
            answers = alter_configs(cluster.routing, {(TOPIC, name): changes for name in wanted})
            failed = [f"{name}: {answer.said}" for (_, name), answer in answers.items() if answer.code]
            if failed:
                raise BrokerError("; ".join(failed) + ".")
        if partitions:
            outcomes = add_partitions(cluster.routing, dict.fromkeys(wanted, partitions))
            _report([outcome for outcome in outcomes if outcome.code], "altered", None, as_json)
    for name in wanted:
        print_done("altered", "topic", name, as_json)


@command.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=completing.topics)
@click.option("--if-exists", is_flag=True, help="Do not fail if the topic does not exist.")
@output_option
@broker_options
def delete(names: tuple[str, ...], as_json: bool, target: Target, if_exists: bool) -> None:
    """Delete topics and all their records."""
    from broker.client.kafka.admin.configs import delete_topics
    from protocol.kafka.errors import ErrorCode

    with kafka(target, "topics") as cluster:
        outcomes = delete_topics(cluster.routing, list(dict.fromkeys(names)))
    _report(outcomes, "deleted", ErrorCode.unknown_topic_or_partition if if_exists else None, as_json)


def _report(outcomes: "Iterable[Outcome]", done: str, harmless: int | None, as_json: bool) -> None:
    """Print a line for each topic, and raise an error for topics that failed."""
    from broker.client.kafka.errors import code_name

    failed = []
    for outcome in outcomes:
        if not outcome.code:
            print_done(done, "topic", outcome.name, as_json)
        elif outcome.code != harmless:
            message = outcome.message or code_name(outcome.code)
            failed.append(message if outcome.name in message else f"{outcome.name}: {message}")
    if failed:
        raise BrokerError("; ".join(text.rstrip(".") for text in failed) + ".")


def _key_and_value(pair: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals:
        raise click.UsageError(f"Write --config {pair} as --config key=value.")
    return key.strip(), value.strip()
