"""`broker health`: one ApiVersions request. Docker's health check runs it often, so it imports little; --deep looks further.

`broker health --deep`: what a broker that answers may nevertheless lack: partitions, room on its disk, listeners.

By Kafka's protocol, so that it works with any Kafka broker as far as that tells. What it finds is text, one sentence each.

Tests: tests/cli/test_serve.py,
tests/cli/test_broker_options.py,
tests/process/test_repair.py.
"""

import struct
from typing import TYPE_CHECKING

import click
from attrs import asdict

from broker.cli.broker_options import AddressCommand, security_options
from broker.cli.output import output_option, print_object, say
from broker.config.listener import parse_address
from broker.errors import BrokerError, ConfigError
from broker.runtime.dial import NotAnswered, ask

if TYPE_CHECKING:
    from broker.client.security_settings import SecuritySettings

from typing import TYPE_CHECKING

import attrs

from broker.client.kafka.admin import cluster as admin
from broker.client.kafka.admin import configs
from broker.client.kafka.config import ClientConfig
from broker.client.kafka.routing import Routing
from broker.runtime.clock import SystemClock
from broker.runtime.dial import dial

if TYPE_CHECKING:
    from broker.client.security_settings import SecuritySettings


# How many partitions are named, and asked why.
_NAMED = 20


@attrs.define
class Findings:
    """``problems`` make the check fail; ``notes`` do not."""

    apis: int = 0
    topics: int = 0
    partitions: int = 0
    free_bytes: int | None = None
    total_bytes: int | None = None
    problems: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)


def look(
    address: tuple[str, int], timeout_s: float, security: "SecuritySettings", least_free_percent: float
) -> Findings:
    """Raises BrokerError if the broker does not answer."""
    plain = ClientConfig((address,), "broker-health", connect_timeout_ms=int(timeout_s * 1000))
    config = attrs.evolve(plain, tls=security.tls, sasl=security.sasl, api_timeout_ms=int(timeout_s * 1000))
    routing = Routing(config, SystemClock())
    found = Findings()
    try:
        with routing.limit.within(timeout_s * 1000):
            found.apis = len(routing.connection(address).ranges)
        _look_at_partitions(routing, found)
        _look_at_brokers(routing, found, address, timeout_s, least_free_percent)
    finally:
        routing.close()
    return found


def _look_at_partitions(routing: Routing, found: Findings) -> None:
    described = configs.describe_topics(routing, None)
    leaders = described.leaders()
    found.topics, found.partitions = len(described.topics), len(leaders)
    there = configs.sizes(routing, leaders) if leaders else {}
    if leaders and not there:
        # Either all are offline, or this user may not ask for sizes.
        found.notes.append("the broker does not say which partitions it has on its disk")
    without_leader = [key for key, leader in leaders.items() if leader is None]
    offline = sorted({*without_leader, *(key for key in leaders if there and key not in there)})
    asked = offline if there else sorted(leaders)
    reasons = {
        key: leader and configs.why_offline(routing, key, leader) for key in asked[:_NAMED] for leader in [leaders[key]]
    }
    if not there:
        offline = sorted({*without_leader, *(key for key, reason in reasons.items() if reason)})
    for topic, partition in offline[:_NAMED]:
        reason = reasons.get((topic, partition))
        found.problems.append(f"{topic}-{partition} is offline" + (f": {_shortened(reason)}" if reason else ""))
    if len(offline) > _NAMED:
        found.problems.append(f"and {len(offline) - _NAMED} more partitions are offline")


def _shortened(reason: str) -> str:
    return reason.rstrip(".") if len(reason) <= 500 else f"{reason[:500]}..."


def _look_at_brokers(
    routing: Routing, found: Findings, address: tuple[str, int], timeout_s: float, least_free_percent: float
) -> None:
    for broker in admin.describe_cluster(routing).brokers:
        if broker.is_fenced:
            found.problems.append(f"broker {broker.id} is fenced: it serves no partition")
        space = admin.space(routing, broker)
        if space is None or not space.total:
            found.notes.append(f"broker {broker.id} does not tell how much room its disk has")
        else:
            found.free_bytes = space.usable if found.free_bytes is None else min(found.free_bytes, space.usable)
            found.total_bytes = space.total if found.total_bytes is None else min(found.total_bytes, space.total)
            percent = 100 * space.usable / space.total
            if percent < least_free_percent:
                found.problems.append(
                    f"broker {broker.id} has {percent:.1f} % of its disk free ({space.usable} of {space.total} bytes), less than "
                    f"{least_free_percent:g} %"
                )
        for listener in admin.listeners(routing, broker):
            _look_at_listener(found, listener, address, timeout_s)


def _look_at_listener(found: Findings, listener: str, address: tuple[str, int], timeout_s: float) -> None:
    name, _, rest = listener.partition("://")
    try:
        host, port = parse_address(rest, "a listener")
    except ConfigError:
        return
    if not port:
        return
    try:
        dial(host, port, timeout_s).close()
    except OSError as error:
        said = f"the listener {name} does not accept connections at {host}:{port} ({error})"
        # Other addresses may be for other networks.
        (found.problems if host == address[0] else found.notes).append(said)


def check(found: Findings, address: str) -> str:
    """One line about a healthy broker. Raises BrokerError with all problems."""
    if found.problems:
        raise BrokerError(f"{address} answers, but " + "; ".join(found.problems))
    free = "" if found.free_bytes is None else f"; {found.free_bytes} of {found.total_bytes} bytes are free"
    whole = f"all of {found.partitions} partitions of {found.topics} topics"
    return f"{address} answers, serves {found.apis} Kafka APIs and {whole}{free}"


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
        found = look((host, port), timeout, security, least_free_percent)
        if as_json:
            print_object({"address": address, "healthy": not found.problems, **asdict(found)})
        for note in found.notes:
            say(f"note: {note}", err=True)
        line = check(found, address)
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
    # Imported here, because most checks need none of it.
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
