"""The names of all metrics, what they mean, and their labels: the one place where they are declared.

Whoever counts takes the metric from here. docs/OPERATIONS.md lists them by generation, and tests/metrics/test_moving.py has a
test for each of them.

Where Kafka's usual dashboards have a name for a figure (the JMX exporter's, or kafka_exporter's), it has that name; where
Pulsar's have one, that. All others begin with ``broker_``. Units come last. Prometheus adds ``_total`` to the names of counters.

Labels whose values clients choose are bounded: what is beyond the bound is summed under the value ``(other)``.

Pure.
"""

from typing import Final

from broker.metrics.metric import Kind, Metric

ALL: Final[list[Metric]] = []
OTHER: Final = "(other)"


def _declare(kind: Kind, name: str, doc: str, *labels: str, bounds: tuple[float, ...] = ()) -> Metric:
    metric = Metric(name, kind, doc, labels, bounds, _section)
    ALL.append(metric)
    return metric


def _counter(name: str, doc: str, *labels: str) -> Metric:
    return _declare(Kind.COUNTER, name, doc, *labels)


def _gauge(name: str, doc: str, *labels: str) -> Metric:
    return _declare(Kind.GAUGE, name, doc, *labels)


def _histogram(name: str, doc: str, bounds: tuple[float, ...], *labels: str) -> Metric:
    return _declare(Kind.HISTOGRAM, name, doc, *labels, bounds=bounds)


_section = "Network threads"

NETWORK_REQUESTS = _counter("broker_network_requests", "Requests that were received.", "processor")
NETWORK_INLINE_REQUESTS = _counter(
    "broker_network_inline_requests", "Requests that the processor handled itself.", "processor"
)
NETWORK_RECEIVED_BYTES = _counter("broker_network_received_bytes", "Bytes that were received.", "processor")
NETWORK_SENT_BYTES = _counter("broker_network_sent_bytes", "Bytes that were sent.", "processor")
NETWORK_PROTOCOL_ERRORS = _counter(
    "broker_network_protocol_errors", "Connections that were closed because of a frame.", "processor"
)
NETWORK_CONNECTIONS = _gauge("broker_network_connections", "Open connections.", "processor")
NETWORK_IDLE_CLOSED_CONNECTIONS = _counter(
    "broker_network_idle_closed_connections", "Connections that were closed because they were idle.", "processor"
)
TLS_HANDSHAKES = _counter("broker_network_tls_handshakes", "TLS handshakes that were completed.", "processor")
TLS_FAILED_HANDSHAKES = _counter(
    "broker_network_tls_failed_handshakes", "TLS handshakes that have failed.", "processor"
)
TLS_LATE_HANDSHAKES = _counter("broker_network_tls_late_handshakes", "TLS handshakes that took too long.", "processor")

_section = "Listeners and clients"

LISTENER_CONNECTIONS = _gauge("broker_listener_connections", "Open connections of a listener.", "listener")
LISTENER_ACCEPTED = _counter("broker_listener_accepted_connections", "Connections that were accepted.", "listener")
LISTENER_REFUSED = _counter(
    "broker_listener_refused_connections",
    "Connections that were closed because their address had as many as it may.",
    "listener",
)
LISTENER_THROTTLED = _counter(
    "broker_listener_throttled_connections",
    "Connections that were closed because their address connects too fast.",
    "listener",
)
LISTENER_EVICTED = _counter(
    "broker_listener_evicted_connections", "Connections that were closed because there were too many.", "listener"
)
CLIENT_SOFTWARE = _gauge(
    "broker_kafka_client_software",
    "Open connections by the software that their clients say they are.",
    "name",
    "version",
)

_section = "Security and quotas"

SASL_LOGINS = _counter("broker_sasl_logins", "Logins with SASL, by how they ended.", "listener", "mechanism", "result")
ACLS = _gauge("broker_acls", "ACLs in force.")
AUTHORIZATIONS_DENIED = _counter(
    "broker_authorizations_denied", "Requests, or parts of them, that ACLs have denied.", "operation", "resource_type"
)
QUOTA_THROTTLES = _counter("broker_quota_throttles", "Requests that were throttled, by quota.", "quota")
QUOTA_THROTTLE_SECONDS = _counter("broker_quota_throttle_seconds", "Throttle times of these requests (s).", "quota")
QUOTA_THROTTLED_CONNECTIONS = _gauge("broker_quota_throttled_connections", "Connections that are throttled now.")
QUOTA_SENSORS = _gauge("broker_quota_sensors", "Clients, users and groups of clients whose use is measured.")
TLS_CERTIFICATE_EXPIRY = _gauge(
    "broker_tls_certificate_expiry_seconds",
    "When the certificate of a listener expires, in seconds since 1970.",
    "listener",
)
TLS_RELOADS = _counter("broker_tls_reloads", "Certificates that took the place of others while running.", "listener")
TLS_FAILED_RELOADS = _counter(
    "broker_tls_failed_reloads", "Changed certificates or settings that could not be used.", "listener"
)
