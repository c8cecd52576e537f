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


_section = "Requests"

REQUESTS = _counter("kafka_network_requestmetrics_requests", "Requests that were answered, by API.", "request")
REQUEST_ERRORS = _counter(
    "kafka_network_requestmetrics_errors",
    "Errors in answers, by API and Kafka's name of the error; each partition of an answer counts.",
    "request",
    "error",
)
REQUEST_SECONDS = _histogram(
    "broker_request_seconds",
    "How long requests took, in the parts queue, local, wait, throttle and send.",
    (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    "request",
    "part",
)

_section = "Network threads"

NETWORK_REQUESTS = _counter("broker_network_requests", "Requests that were received.", "processor")
NETWORK_INLINE_REQUESTS = _counter(
    "broker_network_inline_requests", "Requests that the processor handled itself.", "processor"
)
NETWORK_RECEIVED_BYTES = _counter("broker_network_received_bytes", "Bytes that were received.", "processor")
NETWORK_SENT_BYTES = _counter("broker_network_sent_bytes", "Bytes that were sent.", "processor")
NETWORK_IDLE_SECONDS = _counter(
    "broker_network_idle_seconds", "Time (s) that a processor has waited for something to do.", "processor"
)
NETWORK_IDLE_RATIO = _gauge(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "Share of the last minute in which the processors of the data plane had nothing to do: 0 to 1, as in Kafka.",
)
RESPONSE_QUEUE_SIZE = _gauge(
    "kafka_network_processor_responsequeuesize", "Answers and other work of other threads for a processor.", "processor"
)
NETWORK_UNSENT_BYTES = _gauge(
    "broker_network_unsent_bytes", "Bytes of answers in memory that peers have not read, up to a second ago."
)
MUTED_CONNECTIONS = _gauge(
    "broker_network_muted_connections",
    "Connections from which no request is taken, by reason; one may have several (docs/ARCHITECTURE.md).",
    "reason",
)
MUTES = _counter(
    "broker_network_mutes",
    "How often a connection was muted for a reason other than the request that it has sent.",
    "processor",
    "reason",
)
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

_section = "Request queue, handlers and memory"

REQUEST_QUEUE_SIZE = _gauge(
    "kafka_network_requestchannel_requestqueuesize", "Requests that wait for a handler.", "plane"
)
LANE_REQUESTS = _gauge("broker_lane_requests", "Requests of a lane that are with handlers or wait behind them.", "lane")
HANDLERS = _gauge("broker_handler_threads", "Handlers that are busy, and that are idle.", "state")
HANDLER_REQUESTS = _counter("broker_handler_requests", "Requests that handlers have handled.")
HANDLER_IDLE_RATIO = _gauge(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "Share of the last minute in which the handlers of the data plane had nothing to do: 0 to 1, as in Kafka.",
)
REQUEST_MEMORY_BYTES = _gauge("broker_request_memory_bytes", "Memory of requests that have not arrived or are handled.")
REQUEST_MEMORY_CAPACITY_BYTES = _gauge(
    "broker_request_memory_capacity_bytes", "How much memory requests may use (queued_max_request_bytes)."
)
REQUEST_MEMORY_IDLE_BYTES = _gauge(
    "broker_request_memory_idle_bytes", "Released buffers that are kept for the next requests."
)

_section = "Listeners and clients"

LISTENER_PROCESSOR_CONNECTIONS = _gauge(
    "kafka_server_socket_server_metrics_connection_count",
    "Open connections by listener and processor.",
    "listener",
    "processor",
)
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
