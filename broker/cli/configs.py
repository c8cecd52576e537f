"""`broker configs`: the settings of topics, brokers and groups and the quotas of clients, with Kafka's protocol, so that it works
with any Kafka broker.

A setting has several names in Kafka: ``log.retention.hours`` of a broker, its ``log.retention.ms``, and
``retention.ms`` of a topic. `understand` accepts any of them, and this project's own names, if the broker has the
setting under another name, and converts a value to that setting's unit.
"""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from broker.cli import completing, quotas
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import kafka
from broker.cli.output import output_option, print_object, print_rows, say
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.client.kafka import Cluster
    from broker.client.kafka.admin.configs import Entry, Resource

import difflib
from collections.abc import Collection

import attrs

from broker.config import BrokerConfig, setting_infos
from broker.config.kafka_names import COARSER
from broker.config.topic_settings import SETTINGS

_OF_BROKER = {setting.name: setting.kafka for setting in SETTINGS if setting.kafka}
_KAFKAS = {info.name: info.kafka for info in setting_infos(BrokerConfig) if info.kafka}
_OF_TOPIC = {synonym: name for name, synonym in _OF_BROKER.items()}


@attrs.frozen
class Name:
    """``factor``: from the unit of the setting that was written to the unit of this setting."""

    name: str
    factor: int = 1

    def convert(self, value: str) -> str:
        """Values such as Kafka's -1 are the same in all units."""
        if self.factor == 1 or not value.isdecimal():
            return value
        return str(int(value) * self.factor)


def understand(written: str, known: Collection[str]) -> Name | None:
    """The setting among ``known`` that ``written`` means; None without one."""
    dotted = written.replace("_", ".")
    for candidate in (written, dotted, _KAFKAS.get(written)):
        if candidate is not None and candidate in known:
            return Name(candidate)
    finer, factor = dotted, 1
    if dotted in COARSER:
        ours, factor, _ = COARSER[dotted]
        finer = _KAFKAS.get(ours, ours)
    for other in (finer, _OF_TOPIC.get(finer), _OF_BROKER.get(finer)):
        if other is not None and other in known:
            return Name(other, factor)
    return None


def hint(written: str, known: Collection[str]) -> str:
    """A suggestion, as the end of a sentence."""
    nearest = difflib.get_close_matches(written.replace("_", "."), known, 1, 0.6)
    return f"did you mean {nearest[0]}?" if nearest else "`broker configs get --all` lists all settings."


_COLUMNS = ("name", "value", "default", "source")


@click.group()
def command() -> None:
    """Get, set and delete settings of topics, brokers and groups, and quotas of clients.

    Without an option that says otherwise they are those of the broker, if the cluster has only one. A setting may have any of
    the names that Kafka has for it: log.retention.hours is understood where the broker has log.retention.ms.
    """


def _resource_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command gets ``kind`` and ``name`` of a resource (name None: the only broker), or ``entity`` for quotas."""

    @functools.wraps(function)
    def command(
        *arguments: Any,
        topic: str | None,
        broker: int | None,
        all_brokers: bool,
        group: str | None,
        client_metrics: str | None,
        entity: quotas.Entity,
        **others: Any,
    ) -> Any:
        from broker.client.kafka.admin.configs import BROKER, CLIENT_METRICS, GROUP, TOPIC

        named = [one is not None for one in (topic, broker, group, client_metrics)]
        chosen = [*named, all_brokers, bool(entity)]
        if sum(chosen) > 1:
            raise click.UsageError(
                "Name one thing: --topic, --broker, --all-brokers, --group, --client-metrics, or --user, --client-id and --ip."
            )
        if topic is not None:
            resource = (TOPIC, topic)
        elif group is not None:
            resource = (GROUP, group)
        elif client_metrics is not None:
            resource = (CLIENT_METRICS, client_metrics)
        else:
            resource = (BROKER, "" if all_brokers else None if broker is None else str(broker))  # type: ignore[assignment]
        return function(*arguments, resource=resource, entity=entity, **others)

    for option in reversed(
        [
            click.option("--topic", metavar="NAME", shell_complete=completing.topics, help="This topic."),
            click.option("--broker", type=click.IntRange(min=0), metavar="ID", help="This broker."),
            click.option(
                "--all-brokers", is_flag=True, help="All brokers: settings that were changed while they were running."
            ),
            click.option(
                "--group",
                metavar="NAME",
                shell_complete=completing.groups,
                help="This group (brokers from Kafka 4.0 on).",
            ),
            click.option("--client-metrics", metavar="NAME", help="This subscription to metrics of clients (KIP-714)."),
        ]
    ):
        command = option(command)
    return quotas.entity_options(command)


@command.command("list")
@output_option
@broker_options
def list_configs(as_json: bool, target: Target) -> None:
    """List every setting that was changed: of all brokers, topics, and quotas."""
    from broker.client.kafka.admin.configs import BROKER, TOPIC, describe_configs, describe_topics

    with kafka(target, "configs") as cluster:
        described = describe_topics(cluster.routing)
        resources = [(BROKER, str(node)) for node in sorted(described.brokers)]
        resources += [(TOPIC, topic.name) for topic in described.topics]
        answers = describe_configs(cluster.routing, resources)
    rows: list[tuple[object, ...]] = []
    for kind, name in resources:
        owner = f"{'broker' if kind == BROKER else 'topic'} {name}"
        entries = answers[kind, name].entries.values()
        rows += [
            (owner, entry.name, _shown(entry), entry.default, entry.source)
            for entry in sorted(entries, key=lambda entry: entry.name)
            if entry.is_own
        ]
    for entity, values in sorted(quotas.describe_quotas(target, (), strict=False).items(), key=str):
        rows += [(quotas.entity_text(entity), key, f"{value:.15g}", None, "quota") for key, value in values.items()]
    print_rows(["of", *_COLUMNS], rows, as_json)


@command.command()
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@_resource_options
@click.option("--all", "show_all", is_flag=True, help="Also settings that have their default.")
@click.option("--documentation", is_flag=True, help="Also what each setting does, if the broker tells it.")
@output_option
@broker_options
def get(
    keys: tuple[str, ...],
    resource: "Resource",
    entity: quotas.Entity,
    show_all: bool,
    documentation: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Show settings: those named by KEY, or those that do not have their default.

    Columns: name, value, default, and where the value was set. Secrets are not shown.
    """
    if entity:
        values = quotas.describe_quotas(target, entity, strict=True).get(entity, {})
        rows: list[tuple[object, ...]] = [
            (key, f"{value:.15g}", None, "quota") for key, value in values.items() if not keys or key in keys
        ]
        print_rows(_COLUMNS, rows, as_json)
        return
    with kafka(target, "configs") as cluster:
        entries = _entries(cluster, _named(cluster, resource), documentation)
    if keys:
        wanted = [_find(key, entries) for key in keys]
    else:
        wanted = [entry for _, entry in sorted(entries.items()) if show_all or not entry.is_default]
    columns = (*_COLUMNS, "documentation") if documentation else _COLUMNS
    cells = [(entry.name, _shown(entry), entry.default, entry.source, entry.documentation) for entry in wanted]
    print_rows(columns, [row[: len(columns)] for row in cells], as_json)


@command.command("set")
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True)
@_resource_options
@click.option("--dry-run", is_flag=True, help="Only let the broker check the values.")
@output_option
@broker_options
def set_configs(
    pairs: tuple[str, ...], resource: "Resource", entity: quotas.Entity, dry_run: bool, as_json: bool, target: Target
) -> None:
    """Change settings, for example `broker configs set --topic orders retention.ms=3600000`."""
    if entity:
        if dry_run:
            raise click.UsageError("Quotas are set without a check: leave out --dry-run.")
        values = dict(map(quotas.key_and_value, pairs))
        operations = [{"key": key, "value": value, "remove": False} for key, value in values.items()]
        quotas.alter_quotas(target, entity, operations)
        _print_done("set", list(values), quotas.entity_text(entity), as_json)
        return
    settings: dict[str, str | None] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            # Not shown: it may be a secret.
            raise click.UsageError("Write settings as KEY=VALUE, for example retention.ms=3600000.")
        settings[key.strip()] = value.strip()
    _alter(target, resource, settings, dry_run, as_json)


@command.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_resource_options
@click.option("--dry-run", is_flag=True, help="Only let the broker check the names.")
@output_option
@broker_options
def delete(
    keys: tuple[str, ...], resource: "Resource", entity: quotas.Entity, dry_run: bool, as_json: bool, target: Target
) -> None:
    """Remove settings, so that the default or the broker's setting applies again."""
    if entity:
        for key in keys:
            quotas.check_key(key)
        quotas.alter_quotas(target, entity, [{"key": key, "value": 0.0, "remove": True} for key in keys])
        _print_done("deleted", list(keys), quotas.entity_text(entity), as_json)
        return
    _alter(target, resource, dict.fromkeys(keys), dry_run, as_json)


def _alter(
    target: Target, resource: "Resource", settings: Mapping[str, str | None], dry_run: bool, as_json: bool
) -> None:
    from broker.client.kafka.admin.configs import alter_configs

    with kafka(target, "configs") as cluster:
        resource = _named(cluster, resource)
        # The answer for all brokers contains only changed settings; a single broker has the same names.
        known = _entries(cluster, resource if resource[1] else _named(cluster, (resource[0], None)), False)
        changes: dict[str, str | None] = {}
        for written, value in settings.items():
            name = understand(written, known)
            changes[written if name is None else name.name] = (
                value if name is None or value is None else name.convert(value)
            )
            if name is not None and name.name != written:
                converted = "" if value is None else f"={name.convert(value)}"
                say(f"{written} is {name.name}{converted} here", err=True)
        answer = alter_configs(cluster.routing, {resource: changes}, dry_run)[resource]
    if answer.code:
        unknown = [name for name in changes if name not in known]
        more = f"; {hint(unknown[0], known)}" if unknown else "."
        raise BrokerError(f"{_text(resource)}: {answer.said}{more}")
    done = "checked" if dry_run else "deleted" if None in changes.values() else "set"
    _print_done(done, list(changes), _text(resource), as_json)


def _print_done(done: str, names: list[str], of: str, as_json: bool) -> None:
    if as_json:
        print_object({"of": of, "names": names, "done": done})
    else:
        say(f"{done} {', '.join(names)} of {of}")


def _named(cluster: "Cluster", resource: "tuple[int, str | None]") -> "Resource":
    """The resource; without a name, the only broker."""
    kind, name = resource
    if name is not None:
        return kind, name
    from broker.client.kafka.admin.configs import describe_topics

    brokers = sorted(describe_topics(cluster.routing, []).brokers)
    if len(brokers) != 1:
        raise click.UsageError(
            f"Say of what: --topic NAME, --group NAME, --broker ID (of {', '.join(map(str, brokers))}), or --all-brokers."
        )
    return kind, str(brokers[0])


def _entries(cluster: "Cluster", resource: "Resource", documentation: bool) -> "Mapping[str, Entry]":
    from broker.client.kafka.admin.configs import describe_configs

    answer = describe_configs(cluster.routing, [resource], documentation=documentation)[resource]
    if answer.code:
        raise BrokerError(f"{_text(resource)}: {answer.said}.")
    return answer.entries


def _find(key: str, entries: "Mapping[str, Entry]") -> "Entry":
    name = understand(key, entries)
    if name is None:
        raise BrokerError(f"There is no setting {key}; {hint(key, entries)}")
    if name.name != key:
        say(f"{key} is {name.name} here", err=True)
    return entries[name.name]


def _shown(entry: "Entry") -> str | None:
    return "(hidden)" if entry.is_secret and entry.value is None and not entry.is_default else entry.value


def _text(resource: "Resource") -> str:
    from broker.client.kafka.admin.configs import CLIENT_METRICS, GROUP, TOPIC

    kind, name = resource
    noun = {TOPIC: "topic", GROUP: "group", CLIENT_METRICS: "client metrics"}.get(kind, "broker")
    return f"{noun} {name}" if name else "all brokers"
