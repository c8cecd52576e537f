"""`broker transactions`: list, describe and abort transactions, with Kafka's protocol, so that it works with any Kafka broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from broker.cli.client import bootstrap_option, client_settings, format_time, plain_errors, unreachable
from broker.cli.output import print_table
from broker.config.listener import parse_address
from broker.errors import BrokerError
from broker.runtime import clock, threads
from broker.runtime.dial import ask
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control

_TRANSACTION = 1  # a key type of FindCoordinator
_TIMEOUT_S = 10.0
_AGAIN_S = 0.05
_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group()
def command() -> None:
    """List, describe and abort transactions."""


@command.command("list")
@bootstrap_option
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only transactions in this state.")
def list_transactions(bootstrap: str, states: tuple[str, ...]) -> None:
    """List the transactional ids that the broker knows, one per line."""
    with _admin(bootstrap) as admin:
        found = admin.list_transactions(state_filters=list(states) or None)
    rows = sorted(
        (one.transactional_id, one.producer_id, _text(one.state)) for of_broker in found.values() for one in of_broker
    )
    print_table(["transactional id", "producer id", "state"], rows)


@command.command()
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@bootstrap_option
def describe(names: tuple[str, ...], bootstrap: str) -> None:
    """Show the state, producer and partitions of transactional ids."""
    with _admin(bootstrap) as admin:
        found = admin.describe_transactions(list(names))
    for name in names:
        one = found[name]
        click.echo(
            f"{name}: {_text(one.state)}, producer {one.producer_id} epoch {one.producer_epoch}, "
            f"started {format_time(one.transaction_start_time_ms)}, timeout {one.transaction_timeout_ms} ms"
        )
        for topic, partition in sorted(tuple(key) for key in one.topic_partitions):
            click.echo(f"  {topic}-{partition}")


@command.command()
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@bootstrap_option
def abort(names: tuple[str, ...], bootstrap: str) -> None:
    """Abort the open transactions of these ids and fence their producers, whose next request will fail."""
    with _admin(bootstrap) as admin:
        admin.describe_transactions(list(names))  # fails for an unknown id, which the next step would create
    for name in names:
        _fence(bootstrap, name)
        click.echo(f"aborted {name}")


def _fence(bootstrap: str, transactional_id: str) -> None:
    """Take over the transactional id from its producer. The coordinator then aborts its open transaction."""
    host, port = parse_address(bootstrap.split(",")[0], "-b")
    found = _ask(host, port, bootstrap, ApiKey.FIND_COORDINATOR, 1, key=transactional_id, key_type=_TRANSACTION)
    if found.error_code:
        raise BrokerError(f"{bootstrap} names no coordinator: {ErrorCode(found.error_code).name}.")
    deadline = clock.SystemClock.monotonic() + _TIMEOUT_S
    while True:
        fields = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
        answer = _ask(found.host, found.port, bootstrap, ApiKey.INIT_PRODUCER_ID, 1, **fields)
        if answer.error_code != ErrorCode.concurrent_transactions or clock.SystemClock.monotonic() > deadline:
            break
        threads.SystemThreads().pause(_AGAIN_S)  # the coordinator is aborting it
    if answer.error_code:
        raise BrokerError(f"{transactional_id} could not be aborted: {ErrorCode(answer.error_code).name}.")


def _ask(host: str, port: int, bootstrap: str, api: ApiKey, version: int, /, **fields: Any) -> Any:
    frame = control.encode_request(api, version, 0, "broker-transactions", fields)
    try:
        answer = ask(host, port, frame, _TIMEOUT_S)
        return control.parse_response(api, version, len(answer).to_bytes(4, "big") + answer)[1]
    except OSError as error:
        raise unreachable(bootstrap) from error
    except ProtocolError as error:
        raise BrokerError(f"{host}:{port} does not answer as a Kafka broker does: {error}.") from error


def _text(state: Any) -> str:
    return str(getattr(state, "value", state))


@contextmanager
def _admin(bootstrap: str) -> Iterator[Any]:
    with plain_errors(bootstrap):
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(**client_settings(bootstrap, "transactions"))
        try:
            yield admin
        finally:
            admin.close()
