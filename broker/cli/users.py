"""`broker users`: the users of SCRAM and their passwords, with Kafka's protocol, or in the data directory of a stopped broker.

A password is salted and hashed here and does not leave this process. A broker gets only what Kafka's tools would send
it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from broker.cli.broker_options import Target, broker_options, read_password
from broker.cli.client import ask, check, refusal
from broker.cli.output import json_line, output_option, print_done, print_object, print_table, say
from broker.errors import BrokerError, ConfigError
from broker.runtime.entropy import SystemEntropy
from broker.security.credentials import DEFAULT_ITERATIONS, ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, make_row
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.sasl.scram import salted_password

if TYPE_CHECKING:
    from broker.metadata.sqlite import SqliteCatalogue

_PASSWORD = "BROKER_USER_PASSWORD"
_CODES = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES = {code: name for name, code in _CODES.items()}
_SALT_BYTES = 32

_mechanisms = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(MECHANISMS, case_sensitive=False),
    help="Only for this mechanism; can be repeated.  [default: all]",
)
_data_dir = click.option(
    "--data-dir",
    metavar="DIR",
    help="Work on the data directory of a broker that is not running, for example to make the first user.",
)


@click.group()
def command() -> None:
    """Add, list and delete users that log in with SCRAM."""


@command.command()
@click.argument("name")
@_mechanisms
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=DEFAULT_ITERATIONS,
    show_default=True,
    help="Rounds of hashing. More rounds make it slower to guess passwords from a stolen catalogue, and to log in.",
)
@click.option("--password-file", metavar="FILE", help=f"File with the password (or {_PASSWORD}; else asked for).")
@output_option
@_data_dir
@broker_options
def add(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_file: str | None,
    as_json: bool,
    data_dir: str | None,
    target: Target,
) -> None:
    """Add the user NAME, or give it another password."""
    mechanisms = mechanisms or MECHANISMS
    password = read_password(f"the new user {name}", password_file, _PASSWORD, again=True)
    # Also checks the name and the password.
    rows = [make_row(name, mechanism, password, SystemEntropy, iterations) for mechanism in mechanisms]
    if data_dir is not None:
        with _catalogue(data_dir, make=True) as catalogue:
            catalogue.alter_credentials(rows, [])
    else:
        for mechanism in mechanisms:
            salt = SystemEntropy.bytes(_SALT_BYTES)
            salted = salted_password(mechanism, password, salt, iterations)
            row = {"name": name, "mechanism": _CODES[mechanism], "iterations": iterations, "salt": salt}
            _alter(target, [], [row | {"salted_password": salted}])
    if as_json:
        print_object({"user": name, "mechanisms": list(mechanisms), "done": "set"})
    else:
        say(f"set the password of {name} for {', '.join(mechanisms)}")


@command.command("list")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@output_option
@_data_dir
@broker_options
def list_users(names: tuple[str, ...], as_json: bool, data_dir: str | None, target: Target) -> None:
    """List the users and their mechanisms (by default, all users)."""
    users = _users(names, data_dir, target)
    missing = [name for name in names if name not in users]
    rows = [
        (user, mechanism, rounds) for user, own in sorted(users.items()) for mechanism, rounds in sorted(own.items())
    ]
    if as_json:
        for user, mechanism, rounds in rows:
            click.echo(json_line({"user": user, "mechanism": mechanism, "iterations": rounds}), nl=False)
    else:
        print_table(["user", "mechanism", "iterations"], rows)
    if missing:
        raise BrokerError(f"There is no user {missing[0]}.")


@command.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_mechanisms
@click.option("--if-exists", is_flag=True, help="Do not fail if the user does not exist.")
@output_option
@_data_dir
@broker_options
def delete(
    names: tuple[str, ...],
    mechanisms: tuple[str, ...],
    if_exists: bool,
    as_json: bool,
    data_dir: str | None,
    target: Target,
) -> None:
    """Delete users, who can then no longer log in."""
    users = _users(names, data_dir, target)
    pairs = [
        (name, mechanism)
        for name in names
        for mechanism in users.get(name, {})
        if mechanism in (mechanisms or MECHANISMS)
    ]
    missing = [name for name in names if not any(name == user for user, _ in pairs)]
    if missing and not if_exists:
        raise BrokerError(f"There is no user {missing[0]}{' with this mechanism' * bool(mechanisms)}.")
    if not pairs:
        return
    if data_dir is not None:
        with _catalogue(data_dir) as catalogue:
            catalogue.alter_credentials([], pairs)
    else:
        for name, mechanism in pairs:
            _alter(target, [{"name": name, "mechanism": _CODES[mechanism]}], [])
    for name in dict(pairs):
        print_done("deleted", "user", name, as_json)


def _users(names: tuple[str, ...], data_dir: str | None, target: Target) -> dict[str, dict[str, int]]:
    """User -> mechanism -> iterations."""
    users: dict[str, dict[str, int]] = {}
    if data_dir is not None:
        with _catalogue(data_dir) as catalogue:
            for row in catalogue.load_credentials():
                if not names or row.user in names:
                    users.setdefault(row.user, {})[row.mechanism] = row.iterations
        return users
    asked = [{"name": name} for name in dict.fromkeys(names)] or None
    answer = ask(target, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), {"users": asked})
    check(answer.error_code, answer.error_message, "The broker does not list its users")
    for result in answer.results:
        if result.error_code == ErrorCode.resource_not_found:
            continue
        check(result.error_code, result.error_message, f"The broker does not describe {result.user}")
        users[result.user] = {
            _NAMES.get(credential.mechanism, str(credential.mechanism)): credential.iterations
            for credential in result.credential_infos
        }
    return users


def _alter(target: Target, deletions: list[dict[str, Any]], upsertions: list[dict[str, Any]]) -> None:
    """Alter one credential at a time: Kafka refuses a request with two mechanisms of one user."""
    fields = {"deletions": deletions, "upsertions": upsertions}
    answer = ask(target, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), fields)
    failed = [
        f"{result.user}: {refusal(result.error_code, result.error_message)}"
        for result in answer.results
        if result.error_code
    ]
    if failed:
        raise BrokerError(f"{'; '.join(failed)}.")


@contextmanager
def _catalogue(data_dir: str, *, make: bool = False) -> "Iterator[SqliteCatalogue]":
    """The catalogue of a broker that is not running, locked as a broker locks it. ``make``: the directory may be new."""
    from broker.config import load
    from broker.metadata.sqlite import SqliteCatalogue
    from broker.runtime import system_runtime
    from broker.storage import data_directory
    from broker.storage.config import StorageConfig

    path = os.path.abspath(os.path.expanduser(data_dir))
    if not make and not os.path.exists(f"{path}/{data_directory.CATALOGUE}"):
        raise ConfigError(f"Name the data directory of a broker with --data-dir: {data_dir} is none.")
    try:
        taken = data_directory.take(system_runtime().disk, StorageConfig.from_broker(load(data_dir=path)))
    except ConfigError as error:
        if "Another broker" in str(error):
            raise ConfigError(f"{str(error).partition(':')[0]}: leave out --data-dir and ask it, or stop it.") from None
        raise
    try:
        catalogue = SqliteCatalogue(f"{path}/{data_directory.CATALOGUE}")
        try:
            yield catalogue
        finally:
            catalogue.close()
    finally:
        taken.close()
