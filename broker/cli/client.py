"""Shared by the commands that are Kafka clients: the broker's address, its errors, and times on the command line.

kafka-python is imported only by the functions that use it, because its import takes 0.2 s.

Tests: tests/cli/test_topics.py, tests/cli/test_produce_consume.py.
"""

import contextlib
import datetime
import re
from collections.abc import Callable, Iterator
from typing import Any

import click

from broker.config.listener import parse_address
from broker.errors import BrokerError, ConfigError
from broker.runtime.clock import SystemClock

_RELATIVE = re.compile(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Long enough for a broker that is starting, short enough after a mistyped port.
_BOOTSTRAP_TIMEOUT_MS = 5000


def bootstrap_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--bootstrap-server",
        "-b",
        "bootstrap",
        metavar="HOST:PORT",
        default="localhost:9092",
        show_default=True,
        envvar="BROKER_BOOTSTRAP_SERVERS",
        callback=_check_addresses,
        help="Address of the broker (or BROKER_BOOTSTRAP_SERVERS).",
    )(function)


def _check_addresses(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """``host:port``, or several separated by commas. The port is optional."""
    addresses = []
    for address in value.split(","):
        try:
            host, port = parse_address(address if re.search(r":\d+$", address) else f"{address}:9092", "-b")
        except ConfigError as error:
            raise click.BadParameter(f"write {address!r} as host:port.") from error
        addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return ",".join(addresses)


def client_settings(bootstrap: str, command: str) -> dict[str, Any]:
    """Arguments of every Kafka client that the commands create."""
    return {
        "bootstrap_servers": bootstrap.split(","),
        "client_id": f"broker-{command}",
        "bootstrap_timeout_ms": _BOOTSTRAP_TIMEOUT_MS,
    }


@contextlib.contextmanager
def plain_errors(bootstrap: str) -> Iterator[None]:
    """Turn errors of the broker and of its client into one sentence."""
    import logging

    from kafka import errors

    # The client would log a warning for each attempt to connect; the final error is enough.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        yield
    except (errors.KafkaConnectionError, errors.NodeNotReadyError) as error:
        raise unreachable(bootstrap) from error
    except errors.KafkaTimeoutError as error:
        if "bootstrap" in str(error):
            raise unreachable(bootstrap) from error
        raise BrokerError(f"The broker at {bootstrap} did not answer in time: {describe(error)}.") from error
    except errors.KafkaError as error:
        raise BrokerError(f"The broker at {bootstrap} answered: {describe(error)}.") from error


def unreachable(bootstrap: str) -> BrokerError:
    return BrokerError(
        f"No broker answers at {bootstrap}: start one with `broker serve`, or name another with -b HOST:PORT."
    )


def describe(error: Exception) -> str:
    """Kafka's name of an error, and the message of the broker."""
    name = re.sub(r"Error$", "", type(error).__name__)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    said = getattr(error, "args", ())
    text = str(said[0]) if said and isinstance(said[0], str) else getattr(error, "description", None) or ""
    return f"{words}: {text}".rstrip(". \n") if text else words


class Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on only
    """A point in time, in ms since the epoch: ISO 8601, the number itself, or -10m for ten minutes ago."""

    name = "time"

    def convert(self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if relative := _RELATIVE.fullmatch(value):
            return SystemClock.time_ms() - int(float(relative[1]) * _UNIT_MS[relative[2]])
        if value.isdigit():
            return int(value)
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: write 2026-11-20T14:00, ms since 1970, or -10m for ten minutes ago.")
        # Without a zone it is local time.
        return int(moment.astimezone().timestamp() * 1000)


def unescape(text: str) -> bytes:
    r"""A separator as typed. ``\t``, ``\n`` and other escapes mean the same as in Python."""
    return text.encode().decode("unicode_escape").encode("latin-1") if text.isascii() else text.encode()


def format_time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "-"
    moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
