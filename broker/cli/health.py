"""`broker health`: one ApiVersions request. Docker's health check runs it often, so it imports little.

Tests: tests/cli/test_serve.py.
"""

import struct

import click

from broker.config.listener import parse_address
from broker.errors import BrokerError, ConfigError
from broker.runtime.dial import ask

_CORRELATION_ID = 0x0B0C
_CLIENT_ID = b"broker-health"
_API_VERSIONS = 18


@click.command()
@click.argument("address", default="localhost:9092", metavar="[HOST:PORT]")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="Seconds to wait.")
def command(address: str, timeout: float) -> None:
    """Check whether the broker at HOST:PORT (localhost:9092) answers.

    Exits with 0 if it does and with 1 if it does not.
    """
    try:
        host, port = parse_address(address, "the command line")
    except ConfigError as error:
        raise click.UsageError(f"Write the broker's address as host:port, not as {address!r}.") from error
    try:
        answer = ask(host, port, _request(), timeout)
    except OSError as error:
        raise BrokerError(f"{address} does not answer: {error}.") from error
    click.echo(f"{address} answers and serves {_served(answer, address)} Kafka APIs")


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
