"""`broker subscriptions`: list, describe, skip and reset Pulsar's subscriptions, by the admin API of an http:// listener."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from broker.cli.admin_api import AdminApi, AdminError, admin_options, quoted
from broker.cli.client import Moment
from broker.cli.output import json_line, output_option, print_object, print_table, say
from broker.errors import BrokerError, Refusal
from broker.pulsar.topic_names import TopicName, check_namespace, parse_topic

_EARLIEST = {"ledgerId": -1, "entryId": -1}
_LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


class _Topic(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on only
    name = "topic"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> TopicName:
        if isinstance(value, TopicName):
            return value
        try:
            return parse_topic(value)
        except Refusal as error:
            self.fail(str(error))


class _MessageId(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "ledger:entry"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        ledger, colon, entry = str(value).partition(":")
        if not colon or not ledger.isdecimal() or not entry.isdecimal():
            self.fail(f"{value!r} is no message id: write LEDGER:ENTRY, such as 3:120.")
        return {"ledgerId": int(ledger), "entryId": int(entry)}


_topic = click.argument("topic", metavar="TOPIC", type=_Topic())
_subscription = click.argument("subscription", metavar="SUBSCRIPTION")


@click.group()
def command() -> None:
    """List, describe, skip and reset Pulsar's subscriptions.

    A TOPIC is a name in public/default, or persistent://TENANT/NAMESPACE/NAME.
    """


@command.command("list")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, type=_Topic())
@click.option(
    "--namespace", "-n", default="public/default", show_default=True, help="Without TOPIC: of all its topics."
)
@admin_options
@output_option
def list_subscriptions(topics: tuple[TopicName, ...], namespace: str, api: AdminApi, as_json: bool) -> None:
    """List subscriptions with their backlogs, one per line."""
    rows = []
    for topic in topics or _topics(api, namespace):
        for name, stats in _stats(api, topic)["subscriptions"].items():
            rows.append(
                {
                    "topic": str(topic),
                    "subscription": name,
                    "type": stats["type"],
                    "backlog": stats["msgBacklog"],
                    "unacknowledged": stats["unackedMessages"],
                    "consumers": len(stats["consumers"]),
                }
            )
    _print(rows, ("topic", "subscription", "type", "backlog", "unacknowledged", "consumers"), as_json)


@command.command()
@_topic
@_subscription
@admin_options
@output_option
def describe(topic: TopicName, subscription: str, api: AdminApi, as_json: bool) -> None:
    """Show where a subscription stands, partition by partition, and its consumers."""
    places, consumers = [], []
    for part in _parts(api, topic):
        stats = _one(api, part, subscription)
        cursor = api.ask("GET", f"{_path(part)}/internalStats")["cursors"][subscription]
        places.append(
            {
                "topic": str(part),
                "type": stats["type"],
                "durable": stats["isDurable"],
                "backlog": stats["msgBacklog"],
                "unacknowledged": stats["unackedMessages"],
                "mark_delete": cursor["markDeletePosition"],
                "read": cursor["readPosition"],
                "ranges": cursor["totalNonContiguousDeletedMessagesRange"],
            }
        )
        consumers += [
            {
                "topic": str(part),
                "consumer": consumer["consumerName"],
                "address": consumer["address"].removeprefix("/"),
                "client": consumer["clientVersion"],
                "permits": consumer["availablePermits"],
                "unacknowledged": consumer["unackedMessages"],
                "messages_out": consumer["msgOutCounter"],
            }
            for consumer in stats["consumers"]
        ]
    if as_json:
        click.echo(json_line({"subscription": subscription, "partitions": places, "consumers": consumers}), nl=False)
        return
    _print(places, tuple(places[0]), False)
    if consumers:
        say()
        _print(consumers, tuple(consumers[0]), False)


@command.command()
@_topic
@_subscription
@click.option(
    "--messages", "-m", type=click.IntRange(min=1), help="This many of the oldest messages of each partition."
)
@click.option("--older-than", "seconds", type=click.IntRange(min=0), metavar="SECONDS", help="Messages that are older.")
@click.option("--all", "everything", is_flag=True, help="All messages.")
@admin_options
@output_option
def skip(
    topic: TopicName,
    subscription: str,
    messages: int | None,
    seconds: int | None,
    everything: bool,
    api: AdminApi,
    as_json: bool,
) -> None:
    """Acknowledge messages without consuming them."""
    if (messages is not None) + (seconds is not None) + everything != 1:
        raise click.UsageError("Say what to skip with one of --messages, --older-than and --all.")
    if everything:
        action = "skip_all"
    else:
        action = f"skip/{messages}" if messages is not None else f"expireMessages/{seconds}"
    api.ask("POST", f"{_path(topic)}/subscription/{quoted(subscription)}/{action}")
    _print_backlog(api, topic, subscription, as_json)


@command.command()
@_topic
@_subscription
@click.option("--to", "moment", type=Moment(), metavar="TIME", help="To the first message of this time or later.")
@click.option("--to-message", "message_id", type=_MessageId(), help="To this message; of one partition.")
@click.option("--to-earliest", "earliest", is_flag=True, help="To the first message that is there.")
@click.option("--to-latest", "latest", is_flag=True, help="To the end.")
@admin_options
@output_option
def reset(
    topic: TopicName,
    subscription: str,
    moment: int | None,
    message_id: Mapping[str, int] | None,
    earliest: bool,
    latest: bool,
    api: AdminApi,
    as_json: bool,
) -> None:
    """Let a subscription continue at another message. Its consumers are disconnected and connect again by themselves."""
    if (moment is not None) + (message_id is not None) + earliest + latest != 1:
        raise click.UsageError("Say where to go on with one of --to, --to-message, --to-earliest and --to-latest.")
    if moment is not None:
        api.ask("POST", f"{_path(topic)}/subscription/{quoted(subscription)}/resetcursor/{max(0, moment)}")
    else:
        place = message_id or (_EARLIEST if earliest else _LATEST)
        parts = [topic] if message_id is not None else _parts(api, topic)
        for part in parts:
            api.ask("POST", f"{_path(part)}/subscription/{quoted(subscription)}/resetcursor", place)
    _print_backlog(api, topic, subscription, as_json)


# -- asking ---------------------------------------------------------------------------------------------------------------


def _path(topic: TopicName) -> str:
    local = topic.as_local.local
    return f"/admin/v2/persistent/{quoted(topic.tenant)}/{quoted(topic.namespace_name)}/{quoted(local)}"


def _topics(api: AdminApi, namespace: str) -> Iterator[TopicName]:
    """The topics of a namespace; a partitioned topic counts once."""
    try:
        check_namespace(namespace)
    except Refusal as error:
        raise click.BadParameter(str(error), param_hint="--namespace") from None
    tenant, _, name = namespace.partition("/")
    listed = api.ask("GET", f"/admin/v2/persistent/{quoted(tenant)}/{quoted(name)}")
    partitioned = set(api.ask("GET", f"/admin/v2/persistent/{quoted(tenant)}/{quoted(name)}/partitioned"))
    names = dict.fromkeys(
        str(topic.whole) if str(topic.whole) in partitioned else str(topic) for topic in map(parse_topic, listed)
    )
    return map(parse_topic, sorted(names))


def _partitions(api: AdminApi, topic: TopicName) -> int:
    return int(api.ask("GET", f"{_path(topic)}/partitions")["partitions"])


def _parts(api: AdminApi, topic: TopicName) -> Sequence[TopicName]:
    count = _partitions(api, topic)
    return [topic.of_partition(number) for number in range(count)] if count else [topic]


def _stats(api: AdminApi, topic: TopicName) -> Any:
    whole = _partitions(api, topic)
    return api.ask("GET", f"{_path(topic)}/" + ("partitioned-stats?perPartition=false" if whole else "stats"))


def _one(api: AdminApi, topic: TopicName, subscription: str) -> Any:
    stats = _stats(api, topic)["subscriptions"].get(subscription)
    if stats is None:
        raise BrokerError(f"{topic} has no subscription {subscription!r}.")
    return stats


def _print_backlog(api: AdminApi, topic: TopicName, subscription: str, as_json: bool) -> None:
    try:
        backlog = _one(api, topic, subscription)["msgBacklog"]
    except AdminError as error:
        if error.status != 403:  # it may be changed and not described
            raise
        backlog = None
    if as_json:
        print_object({"topic": str(topic), "subscription": subscription, "backlog": backlog})
    elif backlog is None:
        click.echo(f"{subscription}: done")
    else:
        click.echo(f"{subscription}: {backlog} messages are not acknowledged")


def _print(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        for row in rows:
            click.echo(json_line(row), nl=False)
    else:
        print_table(
            [column.replace("_", " ") for column in columns], [[row[column] for column in columns] for row in rows]
        )
