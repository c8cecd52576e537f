"""Shared by the commands that are Kafka clients: connecting, admin requests, errors as sentences, times and places.

Most use our own client (``kafka``). kafka-python is imported only by the functions that use it, because its import takes 0.2 s.

Tests: tests/cli/test_topics.py,
tests/cli/test_produce_consume.py,
tests/cli/test_users.py,
tests/cli/test_acls.py,
tests/cli/test_quotas.py,
tests/cli/test_broker_options.py.
"""

import contextlib
import datetime
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import click

from broker.cli.broker_options import Target
from broker.errors import BrokerError
from broker.runtime.clock import SystemClock

if TYPE_CHECKING:
    from broker.client.kafka.cluster import Cluster
    from broker.client.security_settings import Sasl

from collections.abc import Mapping

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

_RELATIVE = re.compile(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Long enough for a broker that is starting, short enough after a mistyped port.
_BOOTSTRAP_TIMEOUT_MS = 5000


@contextlib.contextmanager
def kafka(target: Target, command: str) -> Iterator["Cluster"]:
    """Our own client, connected to a broker of the cluster. Its errors are complete sentences."""
    from broker.client.kafka.cluster import Cluster
    from broker.client.kafka.errors import TimedOutError, UnreachableError

    with Cluster(target.config(command)) as cluster:
        routing = cluster.routing

        def connect() -> None:
            try:
                # The first request that needs a login: before it, a listener with logins answers only ApiVersions.
                routing.refresh([])
            except UnreachableError:
                refuse_other_service(target)
                raise

        try:
            routing.retrying(connect, routing.retry(_BOOTSTRAP_TIMEOUT_MS))
        except (UnreachableError, TimedOutError) as error:
            if "security.protocol" in str(error):
                raise
            raise BrokerError(
                f"{error} Start a broker with `broker serve`, or name another with -b HOST:PORT."
            ) from error
        yield cluster


def refuse_other_service(target: Target) -> None:
    """Raises BrokerError if another service than Kafka's listens at the address, because waiting would not change
    that."""
    from broker.cli.listening import other_service

    if not target.is_secure:
        for host, port in target.config("probe").bootstrap:
            error = other_service(host, port, "kafka", "with -b HOST:PORT")
            if error is not None:
                raise error


def check_port(target: Target) -> None:
    """The same before a command connects, for clients that would retry for long."""
    from broker.cli.listening import may_be_kafka

    if not target.is_secure and not all(may_be_kafka(*address) for address in target.config("probe").bootstrap[:1]):
        refuse_other_service(target)


def client_settings(target: Target, command: str) -> dict[str, Any]:
    """Arguments of every kafka-python client that the commands create. Raises ConfigError."""
    config = target.config(command)
    settings: dict[str, Any] = {
        "bootstrap_servers": target.bootstrap.split(","),
        "client_id": config.client_id,
        "bootstrap_timeout_ms": _BOOTSTRAP_TIMEOUT_MS,
        "security_protocol": config.security.protocol,
    }
    if config.tls is not None:
        from broker.client.kafka.routing import client_context

        settings["ssl_context"] = client_context(config.tls)
    if config.sasl is not None:
        settings |= {
            "sasl_mechanism": config.sasl.mechanism,
            "sasl_plain_username": config.sasl.username,
            "sasl_plain_password": config.sasl.password,
        }
        if config.sasl.token is not None:
            settings["sasl_oauth_token_provider"] = _token_provider(config.sasl)
    return settings


def _token_provider(sasl: "Sasl") -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    from broker.client.kafka.config import current_token

    class Provider(AbstractTokenProvider):  # type: ignore[misc,unused-ignore]
        def token(self) -> str:
            return current_token(sasl)

    return Provider()


@contextlib.contextmanager
def plain_errors(target: Target) -> Iterator[None]:
    """Turn errors of the broker and of its client into one sentence."""
    import logging

    from kafka import errors

    # The client would log a warning for each attempt to connect; the final error is enough.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if target.is_secure:
        # kafka-python would retry a refused login or certificate until its time is over, and not say what was refused.
        _log_in_once(target)
    check_port(target)
    try:
        yield
    except (errors.KafkaConnectionError, errors.NodeNotReadyError) as error:
        raise _unreachable(target) from error
    except errors.KafkaTimeoutError as error:
        if "bootstrap" in str(error):
            raise _unreachable(target) from error
        raise BrokerError(f"The broker at {target.bootstrap} did not answer in time: {describe(error)}.") from error
    except errors.KafkaError as error:
        raise BrokerError(f"The broker at {target.bootstrap} answered: {describe(error)}.") from error


def _log_in_once(target: Target) -> None:
    """Raises the error of our own client, whose sentence says how to correct the settings."""
    from broker.client.kafka.cluster import Cluster

    with Cluster(target.config("login")) as cluster:
        cluster.routing.retrying(lambda: cluster.routing.refresh([]), cluster.routing.retry(_BOOTSTRAP_TIMEOUT_MS))


def _unreachable(target: Target) -> BrokerError:
    """Distinguishes an address without a listener from a listener with TLS or with logins, and from another service."""
    from broker.client.kafka.errors import KafkaClientError
    from broker.client.kafka.routing import Routing

    refuse_other_service(target)
    routing = Routing(target.config("login"), SystemClock())
    try:
        with routing.limit.within(_BOOTSTRAP_TIMEOUT_MS):
            routing.refresh([])
    except KafkaClientError as error:
        if "security.protocol" in str(error):
            return error
    finally:
        routing.close()
    return unreachable(target.bootstrap)


def unreachable(bootstrap: str) -> BrokerError:
    return BrokerError(
        f"No broker answers at {bootstrap}: start one with `broker serve`, or name another with -b HOST:PORT."
    )


def describe(error: Exception) -> str:
    """Kafka's name of an error, and the broker's message."""
    name = re.sub(r"Error$", "", type(error).__name__)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    arguments = getattr(error, "args", ())
    text = (
        str(arguments[0]) if arguments and isinstance(arguments[0], str) else getattr(error, "description", None) or ""
    )
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


@attrs.frozen
class Place:
    """Where `consume` begins in a partition: an offset, a number of records before the end, or a time. One field is set."""

    offset: int | None = None
    last: int | None = None
    timestamp_ms: int | None = None

    @classmethod
    def parse(cls, offset: str | None, timestamp_ms: int | None) -> "Place":
        """Raises click.UsageError."""
        if timestamp_ms is not None:
            return cls(timestamp_ms=timestamp_ms)
        if offset in (None, "beginning", "earliest"):
            return cls(offset=0)
        if offset in ("end", "latest"):
            return cls(last=0)
        try:
            number = int(offset)
        except ValueError:
            raise click.UsageError("Write --offset as beginning, end, a number, or -N for the last N.") from None
        return cls(last=-number) if offset.startswith("-") else cls(offset=number)

    def start(self, begin: int, end: int, at_time: int | None) -> int:
        """The offset in a partition from ``begin`` to ``end``. ``at_time``: the first record at or after the time, if
        any."""
        if self.timestamp_ms is not None:
            start = end if at_time is None else at_time
        elif self.last is not None:
            start = end - self.last
        else:
            start = self.offset or 0
        return min(max(start, begin), end)


def unescape(text: str) -> bytes:
    r"""A separator as typed. ``\t``, ``\n`` and other escapes mean the same as in Python."""
    return text.encode().decode("unicode_escape").encode("latin-1") if text.isascii() else text.encode()


def format_time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "-"
    moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Additions of the commands to the broker's own message.
_ADVICE = {
    ErrorCode.security_disabled: "the broker has no authorizer, so everybody may do everything",
    ErrorCode.cluster_authorization_failed: "the user of this command may not do that",
    ErrorCode.resource_not_found: "there is none",
}


def ask(target: Target, key: ApiKey, versions: tuple[int, int], fields: Mapping[str, Any]) -> Any:
    """The answer of any broker of the cluster, which forwards requests for the controller."""
    with kafka(target, "admin") as cluster:
        routing = cluster.routing

        def attempt() -> Any:
            connection = routing.any_connection()
            return connection.ask(key, connection.version(key, *versions), fields)

        return routing.retrying(attempt)


def check(code: int, message: str | None, what: str) -> None:
    """Raises BrokerError for a refusal."""
    if code:
        raise BrokerError(f"{what}: {refusal(code, message)}.")


def refusal(code: int, message: str | None) -> str:
    """The text of a refusal."""
    try:
        name = ErrorCode(code)
    except ValueError:
        return message or f"Kafka's error {code}"
    words = (message or "").strip().rstrip(".")
    advice = _ADVICE.get(name)
    if advice and words:
        return f"{advice} ({words})"
    return advice or words or name.name.replace("_", " ")


# The topics in which Kafka keeps groups, committed offsets, transactions and the state of share groups.
_KAFKAS_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def no_topic(topic: str) -> BrokerError:
    if topic in _KAFKAS_INTERNAL:
        return BrokerError(
            f"There is no topic {topic!r}. A reactor broker keeps groups, offsets and transactions in its catalogue: "
            "`broker groups` and `broker transactions` show them."
        )
    return BrokerError(f"There is no topic {topic!r}: `broker topics list` shows the existing topics.")


@contextlib.contextmanager
def client_errors(target: Target) -> Iterator[None]:
    """Adds advice if no broker answers. All other errors of the client contain it already."""
    from broker.client.kafka.errors import UnreachableError

    check_port(target)
    try:
        yield
    except UnreachableError as error:
        # The client's own sentence is better if something else listens, or a broker with TLS.
        if "security.protocol" in str(error):
            raise
        raise BrokerError(
            f"No broker answers at {target.bootstrap}: start one with `broker serve`, or name another with -b HOST:PORT."
        ) from error
