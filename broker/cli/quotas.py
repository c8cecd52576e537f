"""`broker quotas`: the quotas of users, client ids and addresses, with Kafka's protocol, so that it works with any
Kafka broker."""

import re
from collections.abc import Callable
from typing import Any

import click

from broker.cli.broker_options import Target, broker_options
from broker.cli.client import ask, check, refusal
from broker.cli.output import json_line, output_option, print_object, print_table, say
from broker.errors import BrokerError
from protocol.kafka.api_keys import ApiKey

_KEYS = {
    "producer_byte_rate": "bytes a second that a client may send",
    "consumer_byte_rate": "bytes a second that a client may fetch",
    "request_percentage": "time on the broker's threads, in percent of one thread",
    "controller_mutation_rate": "partitions a second that a client may create or delete",
    "connection_creation_rate": "connections a second from an address, with --ip only",
}
_TYPES = ("user", "client-id", "ip")
_EXACT, _DEFAULT = 0, 1
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmg]?)", re.I)
_FACTOR = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

# Pairs of a type and a name; the name None is the default of the type.
Entity = tuple[tuple[str, str | None], ...]


def entity_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--user, --client-id, --ip and their defaults; the command gets ``entity``."""

    def command(*arguments: Any, **options: Any) -> Any:
        entity = []
        for kind in _TYPES:
            name, default = options.pop(kind.replace("-", "_")), options.pop(f"{kind.replace('-', '_')}_default")
            if name is not None and default:
                raise click.UsageError(f"Give either --{kind} or --{kind}-default.")
            if name is not None or default:
                entity.append((kind, name))
        if len(entity) > 1 and entity[-1][0] == "ip":
            raise click.UsageError("--ip stands alone: quotas of addresses are independent of users and client ids.")
        return function(*arguments, entity=tuple(entity), **options)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Callable[..., Any] = command
    for kind, noun in reversed([("user", "user"), ("client-id", "client id"), ("ip", "address")]):
        decorated = click.option(f"--{kind}-default", is_flag=True, help=f"Every {noun} without a quota of its own.")(
            decorated
        )
        decorated = click.option(f"--{kind}", metavar="NAME", help=f"This {noun}.")(decorated)
    return decorated


@click.group()
def command() -> None:
    """List, set and remove the quotas of clients."""


@command.command("list")
@entity_options
@output_option
@broker_options
def list_quotas(entity: Entity, as_json: bool, target: Target) -> None:
    """List quotas (by default, all of them)."""
    entries = sorted(describe_quotas(target, entity, strict=False).items(), key=lambda entry: entity_text(entry[0]))
    if as_json:
        for owner, values in entries:
            click.echo(json_line({"entity": dict(owner), "quotas": values}), nl=False)
    else:
        rows = [
            (entity_text(owner), key, f"{value:.15g}") for owner, values in entries for key, value in values.items()
        ]
        print_table(["entity", "quota", "value"], rows)


@command.command("set")
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True)
@entity_options
@output_option
@broker_options
def set_quotas(pairs: tuple[str, ...], entity: Entity, as_json: bool, target: Target) -> None:
    """Set quotas, for example `broker quotas set --user alice producer_byte_rate=10m`.

    The KEYs are producer_byte_rate and consumer_byte_rate (bytes a second; k, m and g are factors of 1024),
    request_percentage, controller_mutation_rate, and for --ip connection_creation_rate.
    """
    values = dict(map(key_and_value, pairs))
    alter_quotas(
        target, _named(entity), [{"key": key, "value": value, "remove": False} for key, value in values.items()]
    )
    _print_done("set", list(values), entity, as_json)


@command.command()
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@entity_options
@output_option
@broker_options
def remove(keys: tuple[str, ...], entity: Entity, as_json: bool, target: Target) -> None:
    """Remove quotas (by default, all of the user, client id or address)."""
    for key in keys:
        check_key(key)
    removed = keys or tuple(describe_quotas(target, _named(entity), strict=True).get(entity, {}))
    if not removed:
        raise BrokerError(f"There is no quota of {entity_text(entity)}.")
    alter_quotas(target, _named(entity), [{"key": key, "value": 0.0, "remove": True} for key in removed])
    _print_done("removed", list(removed), entity, as_json)


def _print_done(done: str, keys: list[str], entity: Entity, as_json: bool) -> None:
    if as_json:
        print_object({"entity": dict(entity), "keys": keys, "done": done})
    else:
        say(f"{done} {', '.join(keys)} of {entity_text(entity)}")


def _named(entity: Entity) -> Entity:
    if not entity:
        raise click.UsageError(
            "Say whose quotas: --user NAME, --client-id NAME, --ip ADDRESS, or --user-default and so on."
        )
    return entity


def describe_quotas(target: Target, entity: Entity, *, strict: bool) -> dict[Entity, dict[str, float]]:
    components = [
        {"entity_type": kind, "match_type": _DEFAULT if name is None else _EXACT, "match": name}
        for kind, name in entity
    ]
    answer = ask(target, ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), {"components": components, "strict": strict})
    check(answer.error_code, answer.error_message, "The broker does not list its quotas")
    quotas = {}
    for entry in answer.entries or ():
        parts = {part.entity_type: part.entity_name for part in entry.entity}
        key = tuple((kind, parts[kind]) for kind in sorted(parts, key=_rank))
        quotas[key] = {value.key: value.value for value in entry.values}
    return quotas


def _rank(kind: str) -> int:
    return _TYPES.index(kind) if kind in _TYPES else len(_TYPES)


def alter_quotas(target: Target, entity: Entity, operations: list[dict[str, Any]]) -> None:
    named = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    fields = {"entries": [{"entity": named, "ops": operations}], "validate_only": False}
    answer = ask(target, ApiKey.ALTER_CLIENT_QUOTAS, (0, 1), fields)
    for entry in answer.entries:
        if entry.error_code:
            raise BrokerError(f"{entity_text(entity)}: {refusal(entry.error_code, entry.error_message)}.")


def entity_text(entity: Entity) -> str:
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)


def key_and_value(pair: str) -> tuple[str, float]:
    key, equals, text = pair.partition("=")
    if not equals:
        raise click.UsageError(f"Write {pair} as KEY=VALUE, for example producer_byte_rate=10m.")
    check_key(key)
    number = _NUMBER.fullmatch(text.strip())
    if number is None or (number[2] and not key.endswith("byte_rate")):
        raise click.UsageError(
            f"{key} must be a number above 0, such as 1048576{' or 1m' if key.endswith('byte_rate') else ''}."
        )
    return key, float(number[1]) * _FACTOR[number[2].lower()]


def check_key(key: str) -> None:
    if key not in _KEYS:
        raise click.UsageError(
            f"There is no quota {key!r}; the quotas are {', '.join(f'{name} ({meaning})' for name, meaning in _KEYS.items())}."
        )
