"""`broker faults`: have requests of clients fail on demand, for tests, by the HTTP API of a broker with `faults_enabled`.

The options of `add` are the fields of a fault.
"""

from collections.abc import Callable
from typing import Any, get_args

import attrs
import click

from broker.cli.admin_api import AdminApi, admin_options
from broker.cli.output import output_option, print_object, print_rows, say
from broker.errors import BrokerError
from broker.faults.fault import Fault
from broker.runtime.clock import SystemClock

_PATH = "/api/v1/faults"
_COLUMNS = ("fault", "kind", "fields", "hits", "left")
_OF_PASSING = ("time_ms", "api", "client_id", "principal")
# One request waits no longer than this, so that it is answered before the command gives up.
_WAIT_MS = 20_000
_FIELDS = {field.name: field for field in attrs.fields(Fault) if field.name not in ("kind", "when")}
_HELP = {
    "api": "Only requests of this API, such as PRODUCE or OffsetCommit.",
    "client_id": "Only of clients with this id.",
    "principal": "Only of this principal, such as User:alice.",
    "topic": "Only requests about this topic.",
    "partition": "Only about the partition with this number.",
    "group": "Only about this group.",
    "transactional_id": "Only of this transactional id.",
    "subscription": "Only about this subscription of Pulsar's.",
    "partition_id": "Only about this result partition of shuffle's.",
    "protocol": "Only of this protocol, such as kafka or pulsar.",
    "count": "The fault ends after this many requests.  [default: 1; for the machine's: no end]",
    "skip": "The first of the requests that match pass.  [default: 0]",
    "probability": "The share of the others that are taken, from 0 to 1.  [default: 1]",
    "seed": "The choice that --probability makes is the same for the same seed.  [default: 0]",
    "after_ms": "The fault begins so long after it was added.  [default: 0]",
    "for_ms": "The fault ends so long after it has begun.  [default: no end]",
    "delay_ms": "How long the kinds delay, throttle and slow_fsync delay.",
    "member_id": "The member to which the kind session_expired happens; without it every member.",
    "offset": "The offset of the kinds records_deleted and offsets_rewound.",
    "partitions": "How many partitions the kind partitions_added adds.",
    "jump_ms": "How far the kind clock_jump sets the clock forward, or back if it is negative.",
    "error": "The error code of the kinds error and error_after, such as NOT_LEADER_OR_FOLLOWER.",
}


def _field_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each field of a fault: ``field_topic``, None where it is not given. With the prefix, because commands have an
    ``api`` of another meaning."""
    for name, field in reversed(_FIELDS.items()):
        kind = next(each for each in (field.type, *get_args(field.type)) if each in (str, int, float))
        option = f"--{name.replace('_', '-')}"
        function = click.option(option, f"field_{name}", type=kind, help=_HELP.get(name))(function)
    return function


_number = click.argument("number", metavar="NUMBER", type=click.IntRange(min=1))


@click.group()
def command() -> None:
    """Have requests of clients fail on demand, for tests.

    The broker needs an http:// listener and the setting faults_enabled. docs/TESTING.md describes the kinds of faults.
    """


@command.command()
@click.argument("kind", metavar="KIND")
@_field_options
@click.option("--unlimited", is_flag=True, help="The fault does not end until it is removed; in place of --count.")
@admin_options
@output_option
def add(kind: str, unlimited: bool, api: AdminApi, as_json: bool, **fields: Any) -> None:
    """Add a fault, and print its number.

    KIND says what happens to the requests that match, for example error, delay or lost: docs/TESTING.md has all. Without
    options to choose them, all requests match.
    """
    given = _given(fields)
    if unlimited and "count" in given:
        raise click.UsageError("Give one of --count and --unlimited.")
    if unlimited:
        given["count"] = None
    added = api.ask("POST", _PATH, {"kind": kind, **given})
    _print_one(added, as_json, "added ")


@command.command()
@click.argument("kind", metavar="KIND")
@_field_options
@admin_options
@output_option
def trigger(kind: str, api: AdminApi, as_json: bool, **fields: Any) -> None:
    """Have a fault happen now, without a request, and wait until it is done.

    KIND is one that changes the broker's state, for example topic_deleted: docs/TESTING.md has all.
    """
    fault = {"kind": kind, **_given(fields)}
    api.ask("POST", f"{_PATH}/trigger", fault)
    if as_json:
        print_object({"fault": fault, "done": "triggered"})
    else:
        say(f"triggered {kind} {_fields_text(fault)}".rstrip())


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("field_"): value for name, value in fields.items() if value is not None}


@command.command("list")
@admin_options
@output_option
def list_faults(api: AdminApi, as_json: bool) -> None:
    """List the faults that were not removed, one per line."""
    faults: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = api.ask("GET", f"{_PATH}?after={after}")
        faults += page["faults"]
        after = page["next"]
    if as_json:
        for fault in faults:
            print_object(fault)
        return
    rows = [
        (
            each["number"],
            each["fault"]["kind"],
            _fields_text(each["fault"]) or None,
            each["hits"],
            each["left"],
        )
        for each in faults
    ]
    print_rows(_COLUMNS, rows, as_json=False)


@command.command()
@_number
@click.option("--wait", "hits", type=click.IntRange(min=1), help="Wait until this many requests have met it.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to wait; after that the command fails.",
)
@admin_options
@output_option
def show(number: int, hits: int | None, timeout_s: float, api: AdminApi, as_json: bool) -> None:
    """Show a fault, and the last requests that have met it."""
    fault = api.ask("GET", f"{_PATH}/{number}") if hits is None else _waited_for(api, number, hits, timeout_s)
    _print_one(fault, as_json)
    if not as_json and fault["passed"]:
        rows = [[*(each[name] for name in _OF_PASSING), _about(each["entities"])] for each in fault["passed"]]
        print_rows((*(name.replace("_", " ") for name in _OF_PASSING), "about"), rows, as_json=False)


def _about(entities: list[dict[str, Any]]) -> str | None:
    return "; ".join(_fields_text(entity) for entity in entities) or None


def _fields_text(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items() if name != "kind")


def _waited_for(api: AdminApi, number: int, hits: int, timeout_s: float) -> Any:
    deadline = SystemClock.monotonic() + timeout_s
    while True:
        left_ms = max(0, int((deadline - SystemClock.monotonic()) * 1000))
        fault = api.ask("GET", f"{_PATH}/{number}?wait={hits}&timeout_ms={min(left_ms, _WAIT_MS)}")
        if fault["hits"] >= hits:
            return fault
        if fault["left"] == 0:
            raise BrokerError(f"Fault {number} has ended after {fault['hits']} of {hits} hits.")
        if left_ms <= _WAIT_MS:
            raise BrokerError(f"Fault {number} has {fault['hits']} of {hits} hits after {timeout_s:g} s.")


@command.command()
@click.argument("numbers", metavar="[NUMBER]...", nargs=-1, type=click.IntRange(min=1))
@click.option("--all", "everything", is_flag=True, help="All faults.")
@admin_options
@output_option
def remove(numbers: tuple[int, ...], everything: bool, api: AdminApi, as_json: bool) -> None:
    """End faults and forget them."""
    if bool(numbers) == everything:
        raise click.UsageError("Give the numbers of the faults, or --all.")
    for path in [""] if everything else [f"/{number}" for number in numbers]:
        api.ask("DELETE", _PATH + path)
        if as_json:
            print_object({"fault": int(path[1:]) if path else None, "done": "removed"})
        else:
            say(f"removed {f'fault {path[1:]}' if path else 'all faults'}")


def _print_one(fault: dict[str, Any], as_json: bool, done: str = "") -> None:
    if as_json:
        print_object(fault)
        return
    left = "no limit" if fault["left"] is None else f"{fault['left']} left"
    text = f"{done}fault {fault['number']}: {fault['fault']['kind']} {_fields_text(fault['fault'])}".rstrip()
    say(f"{text} ({fault['hits']} hits, {left})")
