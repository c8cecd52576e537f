"""`broker health --deep`: looks for problems of a broker that answers: offline partitions, a full disk, listeners.

It uses Kafka's protocol, so that it works with any Kafka broker as far as that has the information. Each problem is a
sentence.

Tests: tests/cli/test_health.py, tests/process/test_repair.py.
"""

from typing import TYPE_CHECKING

import attrs

from broker.addresses import parse_address
from broker.client.kafka.admin import cluster as admin
from broker.client.kafka.admin import configs
from broker.client.kafka.config import ClientConfig
from broker.client.kafka.routing import Routing
from broker.errors import BrokerError, ConfigError
from broker.runtime.clock import SystemClock
from broker.runtime.dial import dial

if TYPE_CHECKING:
    from broker.client.security_settings import SecuritySettings

# How many offline partitions are named, and asked for the reason.
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
    findings = Findings()
    try:
        with routing.limit.within(timeout_s * 1000):
            findings.apis = len(routing.connection(address).ranges)
        _look_at_partitions(routing, findings)
        _look_at_brokers(routing, findings, address, timeout_s, least_free_percent)
    finally:
        routing.close()
    return findings


def _look_at_partitions(routing: Routing, findings: Findings) -> None:
    described = configs.describe_topics(routing, None)
    leaders = described.leaders()
    findings.topics, findings.partitions = len(described.topics), len(leaders)
    sizes = configs.sizes(routing, leaders) if leaders else {}
    if leaders and not sizes:
        # Either all are offline, or this user has no right to ask for sizes.
        findings.notes.append("the broker does not say which partitions it has on its disk")
    without_leader = [key for key, leader in leaders.items() if leader is None]
    offline = sorted({*without_leader, *(key for key in leaders if sizes and key not in sizes)})
    asked = offline if sizes else sorted(leaders)
    reasons = {
        key: leader and configs.why_offline(routing, key, leader) for key in asked[:_NAMED] for leader in [leaders[key]]
    }
    if not sizes:
        offline = sorted({*without_leader, *(key for key, reason in reasons.items() if reason)})
    for topic, partition in offline[:_NAMED]:
        reason = reasons.get((topic, partition))
        findings.problems.append(f"{topic}-{partition} is offline" + (f": {_shortened(reason)}" if reason else ""))
    if len(offline) > _NAMED:
        findings.problems.append(f"and {len(offline) - _NAMED} more partitions are offline")


def _shortened(reason: str) -> str:
    return reason.rstrip(".") if len(reason) <= 500 else f"{reason[:500]}..."


def _look_at_brokers(
    routing: Routing, findings: Findings, address: tuple[str, int], timeout_s: float, least_free_percent: float
) -> None:
    for broker in admin.describe_cluster(routing).brokers:
        if broker.is_fenced:
            findings.problems.append(f"broker {broker.id} is fenced: it serves no partition")
        space = admin.space(routing, broker)
        if space is None or not space.total:
            findings.notes.append(f"broker {broker.id} does not tell how much room its disk has")
        else:
            findings.free_bytes = (
                space.usable if findings.free_bytes is None else min(findings.free_bytes, space.usable)
            )
            findings.total_bytes = (
                space.total if findings.total_bytes is None else min(findings.total_bytes, space.total)
            )
            percent = 100 * space.usable / space.total
            if percent < least_free_percent:
                findings.problems.append(
                    f"broker {broker.id} has {percent:.1f} % of its disk free ({space.usable} of {space.total} bytes), less than "
                    f"{least_free_percent:g} %"
                )
        for listener in admin.listeners(routing, broker):
            _look_at_listener(findings, listener, address, timeout_s)


def _look_at_listener(findings: Findings, listener: str, address: tuple[str, int], timeout_s: float) -> None:
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
        problem = f"the listener {name} does not accept connections at {host}:{port} ({error})"
        # Other addresses may belong to other networks.
        (findings.problems if host == address[0] else findings.notes).append(problem)


def check(findings: Findings, address: str) -> str:
    """A line about a healthy broker. Raises BrokerError with all problems."""
    if findings.problems:
        raise BrokerError(f"{address} answers, but " + "; ".join(findings.problems))
    free = "" if findings.free_bytes is None else f"; {findings.free_bytes} of {findings.total_bytes} bytes are free"
    whole = f"all of {findings.partitions} partitions of {findings.topics} topics"
    return f"{address} answers, serves {findings.apis} Kafka APIs and {whole}{free}"
