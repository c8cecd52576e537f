"""`broker topics`: create, list, describe and delete topics, with Kafka's protocol, so that it works with any Kafka broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from broker.cli.broker_options import Target, broker_options
from broker.cli.client import client_settings, describe, plain_errors
from broker.cli.output import print_table
from broker.errors import BrokerError


@click.group()
def command() -> None:
    """Create, list, describe and delete topics."""


@command.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@broker_options
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
def create(
    names: tuple[str, ...],
    target: Target,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create topics."""
    settings = dict(_key_and_value(pair) for pair in configs)
    wanted = {"num_partitions": partitions or -1, "replication_factor": replication_factor or -1, "configs": settings}
    with _admin(target) as admin:
        answer = admin.create_topics({name: dict(wanted) for name in names}, raise_errors=False)
        _report(answer["topics"], "created", "TopicAlreadyExistsError" if if_not_exists else None)


@command.command("list")
@broker_options
@click.option("--internal", is_flag=True, help="Also list topics whose names begin with __.")
def list_topics(target: Target, internal: bool) -> None:
    """List the topics, one per line."""
    with _admin(target) as admin:
        topics = sorted(admin.describe_topics(), key=lambda topic: str(topic["name"]))
    rows = [
        (topic["name"], len(topic["partitions"]))
        for topic in topics
        if internal or not (topic["is_internal"] or topic["name"].startswith("__"))
    ]
    print_table(["topic", "partitions"], rows)


@command.command("describe")
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@broker_options
def describe_topics(names: tuple[str, ...], target: Target) -> None:
    """Show the partitions, offsets and settings of topics (by default, of all topics)."""
    from kafka import errors

    with _admin(target) as admin:
        topics = sorted(admin.describe_topics(list(names) or None), key=lambda topic: str(topic["name"]))
        for topic in topics:
            if topic["error_code"]:
                raise BrokerError(f"{topic['name']}: {describe(errors.for_code(topic['error_code'])())}.")
        first = True
        for topic in topics:
            if not first:
                click.echo()
            first = False
            _describe_one(admin, topic)


@command.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@broker_options
@click.option("--if-exists", is_flag=True, help="Do not fail if the topic does not exist.")
def delete(names: tuple[str, ...], target: Target, if_exists: bool) -> None:
    """Delete topics and all their records."""
    with _admin(target) as admin:
        answer = admin.delete_topics(list(names), raise_errors=False)
        _report(answer["topics"], "deleted", "UnknownTopicOrPartitionError" if if_exists else None)


@contextmanager
def _admin(target: Target) -> Iterator[Any]:
    with plain_errors(target):
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(**client_settings(target, "topics"))
        try:
            yield admin
        finally:
            admin.close()


def _report(results: list[dict[str, Any]], done: str, harmless: str | None) -> None:
    """Print one line for each topic, and raise one error for those that failed."""
    from kafka import errors

    failed = []
    for result in results:
        error = errors.for_code(result["error_code"])
        if not result["error_code"]:
            click.echo(f"{done} {result['name']}")
        elif error.__name__ != harmless:
            said = result.get("error_message") or describe(error())
            failed.append(said if result["name"] in said else f"{result['name']}: {said}")
    if failed:
        raise BrokerError("; ".join(text.rstrip(".") for text in failed) + ".")


def _key_and_value(pair: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals:
        raise click.UsageError(f"Write --config {pair} as --config key=value.")
    return key.strip(), value.strip()


def _describe_one(admin: Any, topic: dict[str, Any]) -> None:
    from kafka import OffsetSpec, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType

    name = topic["name"]
    partitions = sorted(topic["partitions"], key=lambda partition: int(partition["partition_index"]))
    keys = [TopicPartition(name, partition["partition_index"]) for partition in partitions]
    earliest = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST))
    latest = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.LATEST))
    configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])["topic"][name]
    settings = ", ".join(f"{key}={entry['value']}" for key, entry in sorted(configs.items())) or "all as the broker's"
    click.echo(f"{name}: {len(partitions)} partitions; settings: {settings}")
    rows = [
        (
            partition["partition_index"],
            partition["leader_id"],
            earliest[key].offset,
            latest[key].offset,
            latest[key].offset - earliest[key].offset,
        )
        for key, partition in zip(keys, partitions, strict=True)
    ]
    print_table(["partition", "leader", "earliest offset", "end offset", "records at most"], rows)
