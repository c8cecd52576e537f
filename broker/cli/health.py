"""`broker health`: sends one ApiVersions request. Docker's health check runs it often, so it imports little.

Tests: tests/cli/test_serve.py, tests/cli/test_health.py, tests/cli/test_broker_options.py.
"""

import struct
from typing import TYPE_CHECKING

import click
from attrs import asdict

from broker.addresses import parse_address
from broker.cli.broker_options import AddressCommand, security_options
from broker.cli.output import output_option, print_object, say
from broker.errors import BrokerError, ConfigError
from broker.runtime.dial import NotAnswered, ask

if TYPE_CHECKING:
    from broker.client.security_settings import SecuritySettings

_CORRELATION_ID = 0x0B0C
_CLIENT_ID = b"broker-health"
_API_VERSIONS = 18


@click.command(cls=AddressCommand)
@click.argument("address", default="localhost:9092", metavar="[HOST:PORT]")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="Seconds to wait.")
@click.option("--deep", is_flag=True, help="Also look for offline partitions, room on the disk, and listeners.")
@click.option(
    "--least-free",
    "least_free_percent",
    type=click.FloatRange(0, 100),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="With --deep: fail if less of the disk is free.",
)
@output_option
@security_options
def command(
    address: str, timeout: float, deep: bool, least_free_percent: float, as_json: bool, security: "SecuritySettings"
) -> None:
    """Check whether the broker at HOST:PORT (localhost:9092) answers.

    Exits with 0 if it does and with 1 if it does not. With --deep it also exits with 1 if a partition is offline, if the disk is
    nearly full, or if a listener at HOST accepts no connections, and says which. With settings of security it connects and logs
    in as they say.
    """
    try:
        host, port = parse_address(address, "the command line")
    except ConfigError as error:
        raise click.UsageError(f"Write the broker's address as host:port, not as {address!r}.") from error
    if deep:
        from broker.cli import deep_health

        findings = deep_health.look((host, port), timeout, security, least_free_percent)
        if as_json:
            print_object({"address": address, "healthy": not findings.problems, **asdict(findings)})
        for note in findings.notes:
            say(f"note: {note}", err=True)
        line = deep_health.check(findings, address)
        if not as_json:
            say(line)
        return
    if security.tls is not None or security.sasl is not None:
        apis = _served_securely((host, port), timeout, security)
    else:
        apis = _served_plainly((host, port), timeout, address)
    if as_json:
        print_object({"address": address, "healthy": True, "apis": apis})
    else:
        say(f"{address} answers and serves {apis} Kafka APIs")


def _served_plainly(place: tuple[str, int], timeout: float, address: str) -> int:
    try:
        return _served(ask(*place, _request(), timeout), address)
    except NotAnswered as error:
        # Imported here, because most checks do not need it.
        from broker.cli.listening import other_service

        other = other_service(*place, "kafka", "as HOST:PORT")
        hint = "Does its listener have TLS? Then set security.protocol."
        raise other or BrokerError(f"{address} does not answer: {error}. {hint}") from error
    except OSError as error:
        raise BrokerError(f"{address} does not answer: {error.strerror or error}.") from error


def _served_securely(address: tuple[str, int], timeout: float, security: "SecuritySettings") -> int:
    # Imported here, because most checks do not need them.
    import attrs

    from broker.client.kafka.config import ClientConfig
    from broker.client.kafka.routing import Routing
    from broker.runtime.clock import SystemClock

    plain = ClientConfig((address,), _CLIENT_ID.decode(), connect_timeout_ms=int(timeout * 1000))
    routing = Routing(attrs.evolve(plain, tls=security.tls, sasl=security.sasl), SystemClock())
    try:
        with routing.limit.within(timeout * 1000):
            return len(routing.connection(address).ranges)
    finally:
        routing.close()


def _request() -> bytes:
    # Version 0, which every broker answers.
    body = struct.pack(f">hhih{len(_CLIENT_ID)}s", _API_VERSIONS, 0, _CORRELATION_ID, len(_CLIENT_ID), _CLIENT_ID)
    return struct.pack(">i", len(body)) + body


def _served(answer: bytes, address: str) -> int:
    """The number of APIs in an ApiVersions response v0."""
    try:
        correlation_id, code, count = struct.unpack_from(">ihi", answer)
    except struct.error:
        correlation_id = code = count = -1
    if correlation_id != _CORRELATION_ID or len(answer) != 10 + 6 * count:
        raise BrokerError(f"{address} answers, but not as a Kafka broker does.")
    if code != 0:
        raise BrokerError(f"{address} answers with Kafka's error {code}.")
    return int(count)
