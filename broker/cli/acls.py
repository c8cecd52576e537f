"""`broker acls`: lists, adds and removes ACLs with Kafka's protocol, so that it works with any Kafka broker.

`Selection` turns the options, which are those of Kafka's kafka-acls.sh, into ACLs and filters; it is pure.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import attrs
import click

from broker.cli.broker_options import Target, broker_options
from broker.cli.client import ask, check, refusal
from broker.cli.output import json_line, output_option, print_table
from broker.errors import BrokerError, ConfigError
from broker.security.acl import CLUSTER_NAME, SUPPORTED, Acl, Operation, PatternType, Permission, ResourceType
from broker.security.principal import parse_principal
from protocol.kafka.api_keys import ApiKey


@attrs.frozen
class Selection:
    """The options of a command line."""

    resources: tuple[tuple[ResourceType, str], ...] = ()
    pattern: PatternType = PatternType.LITERAL
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False

    def rules(self) -> list[Acl]:
        """The ACLs to add. Raises ConfigError."""
        if not self.allowed and not self.denied:
            raise ConfigError("Say for whom: --allow-principal User:alice or --deny-principal User:alice.")
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise ConfigError("Choose --resource-pattern-type literal or prefixed: the others only find ACLs.")
        rules = []
        for kind, name, operation in self._permitted():
            pattern = PatternType.LITERAL if kind is ResourceType.CLUSTER else self.pattern
            for principal, host, permission in self._entries():
                rules.append(Acl(kind, name, pattern, principal, host, operation, permission))
        return list(dict.fromkeys(rules))

    def filters(
        self,
    ) -> list[tuple[ResourceType, str | None, PatternType, str | None, str | None, Operation, Permission]]:
        """The filters of `remove`: for these principals, or for every principal if none is given."""
        if not self.resources:
            raise ConfigError("Say of what: --topic NAME, --group NAME, --cluster, --transactional-id ID.")
        entries: list[tuple[str | None, str | None, Permission]] = [*self._entries()] or [(None, None, Permission.ANY)]
        filters = []
        chosen = bool(self.operations or self.producer or self.consumer)
        wanted: Iterable[tuple[ResourceType, str, Operation]] = (
            self._permitted() if chosen else [(kind, name, Operation.ANY) for kind, name in self.resources]
        )
        for kind, name, operation in wanted:
            pattern = self.pattern if kind is not ResourceType.CLUSTER else PatternType.ANY
            for principal, host, permission in entries:
                filters.append((kind, name, pattern, principal, host, operation, permission))
        return list(dict.fromkeys(filters))

    def _permitted(self) -> list[tuple[ResourceType, str, Operation]]:
        """Pairs of a resource and an operation."""
        if self.producer or self.consumer:
            if self.operations:
                raise ConfigError("Leave out --operation: --producer and --consumer say which operations they need.")
            return self._needed()
        if not self.resources:
            raise ConfigError("Say of what: --topic NAME, --group NAME, --cluster, --transactional-id ID.")
        permitted = []
        for kind, name in self.resources:
            for operation in self.operations or (Operation.ALL,):
                if operation is not Operation.ALL and operation not in SUPPORTED[kind]:
                    names = ", ".join(sorted(supported.name for supported in SUPPORTED[kind]))
                    raise ConfigError(
                        f"Choose an --operation that a {kind.name} has, not {operation.name}: {names}, ALL."
                    )
                permitted.append((kind, name, operation))
        return permitted

    def _needed(self) -> list[tuple[ResourceType, str, Operation]]:
        """The rights that producers and consumers need, as in kafka-acls.sh."""
        kinds = {kind for kind, _ in self.resources}
        if ResourceType.TOPIC not in kinds:
            raise ConfigError("Name a --topic with --producer or --consumer.")
        if self.consumer and ResourceType.GROUP not in kinds:
            raise ConfigError("Name a --group with --consumer.")
        needed: list[tuple[ResourceType, str, Operation]] = []
        for kind, name in self.resources:
            operations: list[Operation] = []
            if kind is ResourceType.TOPIC:
                operations += [Operation.WRITE, Operation.DESCRIBE, Operation.CREATE] * self.producer + [
                    Operation.READ,
                    Operation.DESCRIBE,
                ] * self.consumer
            elif kind is ResourceType.TRANSACTIONAL_ID and self.producer:
                operations += [Operation.WRITE, Operation.DESCRIBE]
            elif kind is ResourceType.GROUP and self.consumer:
                operations += [Operation.READ]
            else:
                raise ConfigError(f"Leave out the {kind.name}: --producer and --consumer do not use it.")
            needed += [(kind, name, operation) for operation in operations]
        if self.idempotent:
            needed.append((ResourceType.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE))
        return needed

    def _entries(self) -> list[tuple[str, str, Permission]]:
        """Triples of a principal, a host and a permission."""
        entries = []
        for principals, hosts, permission in (
            (self.allowed, self.allowed_hosts, Permission.ALLOW),
            (self.denied, self.denied_hosts, Permission.DENY),
        ):
            if hosts and not principals:
                name = permission.name.lower()
                raise ConfigError(f"Give --{name}-principal with --{name}-host.")
            for principal in principals:
                parse_principal(principal)
                entries += [(principal, host, permission) for host in hosts or ("*",)]
        return entries


def parse_operation(text: str) -> Operation:
    """``Read``, ``DescribeConfigs`` or ``DESCRIBE_CONFIGS``. Raises ConfigError."""
    wanted = text.replace("_", "").replace("-", "").lower()
    for operation in Operation:
        if operation > Operation.ANY and operation.name.replace("_", "").lower() == wanted:
            return operation
    names = ", ".join(known.name for known in Operation if known > Operation.ANY)
    raise ConfigError(f"There is no operation {text!r}: the operations are {names}.")


E = TypeVar("E", bound=IntEnum)

_VERSIONS = (1, 3)
_COLUMNS = ["resource", "name", "pattern", "principal", "host", "operation", "permission"]
_PATTERNS = ("literal", "prefixed", "match", "any")


def _resource_options(
    default: str, patterns: Sequence[str] = _PATTERNS
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--topic, --group and so on; the command gets ``resources`` and ``pattern``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*arguments: Any, cluster: bool, pattern: str, **others: Any) -> Any:
            resources = [
                (kind, name)
                for option, kind in (
                    ("topics", ResourceType.TOPIC),
                    ("groups", ResourceType.GROUP),
                    ("transactional_ids", ResourceType.TRANSACTIONAL_ID),
                    ("delegation_tokens", ResourceType.DELEGATION_TOKEN),
                    ("user_principals", ResourceType.USER),
                )
                for name in others.pop(option)
            ]
            if cluster:
                resources.append((ResourceType.CLUSTER, CLUSTER_NAME))
            unique = tuple(dict.fromkeys(resources))
            return function(*arguments, resources=unique, pattern=PatternType[pattern.upper()], **others)

        for decorator in (
            click.option(
                "--resource-pattern-type",
                "pattern",
                type=click.Choice(patterns, case_sensitive=False),
                default=default,
                show_default=True,
                help="literal: the names are whole names; prefixed: they are prefixes of names.",
            ),
            click.option(
                "--user-principal",
                "user_principals",
                metavar="NAME",
                multiple=True,
                help="User whose delegation tokens are concerned.",
            ),
            click.option(
                "--delegation-token", "delegation_tokens", metavar="ID", multiple=True, help="Delegation token."
            ),
            click.option(
                "--transactional-id", "transactional_ids", metavar="ID", multiple=True, help="Transactional id."
            ),
            click.option("--cluster", is_flag=True, help="The cluster."),
            click.option("--group", "-g", "groups", metavar="NAME", multiple=True, help="Consumer group."),
            click.option("--topic", "-t", "topics", metavar="NAME", multiple=True, help="Topic; '*' is every topic."),
        ):
            command = decorator(command)
        return command

    return decorate


# In the reverse order of the help.
_RULE_OPTIONS = (
    click.option("--idempotent", is_flag=True, help="With --producer: IdempotentWrite on the cluster as well."),
    click.option("--consumer", is_flag=True, help="The operations that consumers need on the topics and groups."),
    click.option(
        "--producer", is_flag=True, help="The operations that producers need on the topics and transactional ids."
    ),
    click.option("--operation", "-o", "operations", multiple=True, help="Operation, e.g. Read.  [default: All]"),
    click.option(
        "--deny-host",
        "denied_hosts",
        metavar="ADDRESS",
        multiple=True,
        help="Only from this address.  [default: *]",
    ),
    click.option("--deny-principal", "denied", metavar="TYPE:NAME", multiple=True, help="Principal that may not."),
    click.option(
        "--allow-host",
        "allowed_hosts",
        metavar="ADDRESS",
        multiple=True,
        help="Only from this address.  [default: *]",
    ),
    click.option(
        "--allow-principal",
        "allowed",
        metavar="TYPE:NAME",
        multiple=True,
        help="Principal that may, e.g. User:alice.",
    ),
)


def _rule_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The other options that select ACLs; the command gets ``selection``."""

    @functools.wraps(function)
    def command(
        *arguments: Any,
        resources: tuple[tuple[ResourceType, str], ...],
        pattern: PatternType,
        allowed: tuple[str, ...],
        denied: tuple[str, ...],
        allowed_hosts: tuple[str, ...],
        denied_hosts: tuple[str, ...],
        operations: tuple[str, ...],
        producer: bool,
        consumer: bool,
        idempotent: bool,
        **others: Any,
    ) -> Any:
        selection = Selection(
            resources,
            pattern,
            allowed,
            denied,
            allowed_hosts,
            denied_hosts,
            tuple(map(parse_operation, operations)),
            producer,
            consumer,
            idempotent,
        )
        return function(*arguments, selection=selection, **others)

    for option in _RULE_OPTIONS:
        command = option(command)
    return command


@click.group()
def command() -> None:
    """List, add and remove ACLs: who may do what."""


@command.command("list")
@_resource_options("any")
@click.option("--principal", "principals", metavar="TYPE:NAME", multiple=True, help="Only of these principals.")
@output_option
@broker_options
def list_acls(
    resources: tuple[tuple[ResourceType, str], ...],
    pattern: PatternType,
    principals: tuple[str, ...],
    as_json: bool,
    target: Target,
) -> None:
    """List ACLs (by default, all of them). `--resource-pattern-type match` shows all that apply to a name."""
    acls: set[Acl] = set()
    for kind, name in resources or [(ResourceType.ANY, None)]:
        for principal in principals or [None]:
            acls |= _describe(target, kind, name, pattern, principal)
    _print(sorted(acls), as_json)


@command.command()
@_resource_options("literal", _PATTERNS[:2])
@_rule_options
@output_option
@broker_options
def add(selection: Selection, as_json: bool, target: Target) -> None:
    """Add ACLs, for example `broker acls add --allow-principal User:alice --operation Read --topic orders`."""
    rules = selection.rules()
    fields = {
        "creations": [
            {
                "resource_type": int(rule.resource_type),
                "resource_name": rule.name,
                "resource_pattern_type": int(rule.pattern),
                "principal": rule.principal,
                "host": rule.host,
                "operation": int(rule.operation),
                "permission_type": int(rule.permission),
            }
            for rule in rules
        ]
    }
    answer = ask(target, ApiKey.CREATE_ACLS, _VERSIONS, fields)
    added = [rule for rule, result in zip(rules, answer.results, strict=False) if not result.error_code]
    _print(added, as_json)
    failed = {refusal(result.error_code, result.error_message) for result in answer.results if result.error_code}
    if failed or len(answer.results) != len(rules):
        raise BrokerError(
            f"{len(rules) - len(added)} of {len(rules)} ACLs were not added: {'; '.join(sorted(failed))}."
        )


@command.command()
@_resource_options("literal")
@_rule_options
@click.option("--force", "-f", is_flag=True, help="Do not ask.")
@output_option
@broker_options
def remove(selection: Selection, force: bool, as_json: bool, target: Target) -> None:
    """Remove ACLs: those that the options describe, or without principals all of the named resources."""
    filters = selection.filters()
    if not (selection.allowed or selection.denied) and not force:
        resources = ", ".join(f"{kind.name.lower()} {name}" for kind, name in selection.resources)
        click.confirm(f"Remove the ACLs of everybody for {resources}?", abort=True, err=True)
    keys = [f"{field}_filter" for field in ("resource_type", "resource_name", "pattern_type", "principal", "host")]
    keys += ["operation", "permission_type"]
    fields = {"filters": [dict(zip(keys, map(_code, filter_), strict=True)) for filter_ in filters]}
    answer = ask(target, ApiKey.DELETE_ACLS, _VERSIONS, fields)
    removed: set[Acl] = set()
    failed: set[str] = set()
    for result in answer.filter_results:
        if result.error_code:
            failed.add(refusal(result.error_code, result.error_message))
        for match in result.matching_acls:
            if match.error_code:
                failed.add(refusal(match.error_code, match.error_message))
            else:
                removed.add(_acl(match.resource_type, match.resource_name, match.pattern_type, match))
    _print(sorted(removed), as_json)
    if failed:
        raise BrokerError(f"Not all ACLs were removed: {'; '.join(sorted(failed))}.")
    if not removed:
        raise BrokerError("There is no such ACL: `broker acls list` shows the existing ones.")


def _code(value: Any) -> Any:
    return int(value) if isinstance(value, int) else value


def _describe(
    target: Target, kind: ResourceType, name: str | None, pattern: PatternType, principal: str | None
) -> set[Acl]:
    fields = {
        "resource_type_filter": int(kind),
        "resource_name_filter": name,
        "pattern_type_filter": int(pattern),
        "principal_filter": principal,
        "host_filter": None,
        "operation": int(Operation.ANY),
        "permission_type": int(Permission.ANY),
    }
    answer = ask(target, ApiKey.DESCRIBE_ACLS, _VERSIONS, fields)
    check(answer.error_code, answer.error_message, "The broker does not list its ACLs")
    return {
        _acl(resource.resource_type, resource.resource_name, resource.pattern_type, acl)
        for resource in answer.resources
        for acl in resource.acls
    }


def _acl(kind: int, name: str, pattern: int, entry: Any) -> Acl:
    return Acl(
        _known(ResourceType, kind),
        name,
        _known(PatternType, pattern),
        entry.principal,
        entry.host,
        _known(Operation, entry.operation),
        _known(Permission, entry.permission_type),
    )


def _known(kind: type[E], code: int) -> E:
    """UNKNOWN for a code of a newer broker."""
    try:
        return kind(code)
    except ValueError:
        return kind(0)


def _print(rules: Iterable[Acl], as_json: bool) -> None:
    rows = [
        (
            rule.resource_type.name.lower(),
            rule.name,
            rule.pattern.name.lower(),
            rule.principal,
            rule.host,
            rule.operation.name.lower(),
            rule.permission.name.lower(),
        )
        for rule in rules
    ]
    if as_json:
        for row in rows:
            click.echo(json_line(dict(zip(_COLUMNS, row, strict=True))), nl=False)
    else:
        print_table(_COLUMNS, rows)
