"""The declarations of all metrics: their names, meanings and labels. Pure.

A counting module takes its metrics from here. docs/MONITORING.md lists them by section, and
tests/metrics/test_moving.py has a test for each.

A figure that Kafka's usual dashboards name (those of the JMX exporter or of kafka_exporter) has that name, and a figure
that Pulsar's dashboards name has theirs. All other names begin with ``broker_``. Units come last. Prometheus adds
``_total`` to the names of counters.

Labels with values that clients choose are bounded: values beyond the bound are summed under ``(other)``.
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
    "Connections from which no request is taken, by reason; one may have several (docs/STATES.md).",
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

_FSYNC_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_section = "Topics and logs"

MESSAGES_IN = _counter(
    "kafka_server_brokertopicmetrics_messagesin",
    "Records that were appended, markers of transactions included.",
    "topic",
)
BYTES_IN = _counter("kafka_server_brokertopicmetrics_bytesin", "Bytes of record batches that were appended.", "topic")
BYTES_OUT = _counter(
    "kafka_server_brokertopicmetrics_bytesout", "Bytes of record batches that were sent to Kafka's consumers.", "topic"
)
DATA_FREE_BYTES = _gauge("broker_data_directory_free_bytes", "What the file system of the data directory has left.")
DATA_TOTAL_BYTES = _gauge("broker_data_directory_total_bytes", "The size of the file system of the data directory.")
TOPIC_LOG_BYTES = _gauge("broker_topic_log_bytes", "Size of the logs of a topic.", "topic")
TOPIC_PARTITIONS = _gauge("kafka_topic_partitions", "Partitions of a topic.", "topic")
LOG_SIZE = _gauge("kafka_log_log_size", "Size of a log in bytes.", "topic", "partition")
LOG_SEGMENTS = _gauge("kafka_log_log_numlogsegments", "Segments of a log.", "topic", "partition")
PARTITION_OLDEST_OFFSET = _gauge("kafka_topic_partition_oldest_offset", "Log start offset.", "topic", "partition")
PARTITION_CURRENT_OFFSET = _gauge("kafka_topic_partition_current_offset", "Log end offset.", "topic", "partition")
PARTITIONS = _gauge("kafka_server_replicamanager_partitioncount", "Partitions that this broker has.")
CLUSTER_NODES = _gauge(
    "broker_cluster_nodes", "Nodes of the cluster: `alive`, or `away` and being started again.", "state"
)
CLUSTER_SETTLE_SECONDS = _histogram(
    "broker_cluster_settle_seconds",
    "How long a change has waited until all of several nodes had it in force (s).",
    _FSYNC_BOUNDS,
)
OFFLINE_PARTITIONS = _gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "Partitions that cannot be used because the machine failed.",
)
FSYNC_SECONDS = _histogram("broker_log_fsync_seconds", "How long it took to make a log durable (s).", _FSYNC_BOUNDS)
FLUSHER_QUEUE_SIZE = _gauge("broker_flusher_queue_size", "Appends that wait for an fsync that has not begun.")
UNDURABLE_RECORDS = _gauge("broker_log_undurable_records", "Records of all logs that are not made durable yet.")
OPEN_FILES = _gauge("broker_log_open_files", "Files of logs that are open.")
RECOVERY_SECONDS = _gauge("broker_recovery_seconds", "How long it took at the start to open all logs (s).")
RECOVERED_LOGS = _gauge("broker_recovery_scanned_logs", "Logs whose ends were scanned at the start.")
RECOVERY_SCANNED_BYTES = _gauge("broker_recovery_scanned_bytes", "Bytes that were scanned at the start.")
RECOVERY_TRUNCATED_BYTES = _gauge(
    "broker_recovery_truncated_bytes", "Bytes that were cut off the ends of logs at the start, because they were torn."
)

_section = "Journal and owner"

JOURNAL_FLUSHES = _counter("broker_journal_flushes", "Flushes that the journal has, which are a row each.")
JOURNAL_BYTES = _counter("broker_journal_bytes", "Bytes of these flushes, in rows and in objects.")
JOURNAL_OBJECTS = _counter("broker_journal_objects", "Flushes that were too large for a row, and put into an object.")
JOURNAL_FAILURES = _counter(
    "broker_journal_failures", "Attempts to ship that database or object store have failed; each is tried again."
)
JOURNAL_FLUSH_SECONDS = _histogram(
    "broker_journal_flush_seconds", "How long a flush took, from its begin to its commit (s).", _FSYNC_BOUNDS
)
JOURNAL_ROWS = _gauge("broker_journal_rows", "Rows of the journal: a take-over reads them all.")
JOURNAL_SIZE = _gauge("broker_journal_size_bytes", "Bytes of the journal's rows and of their objects.")
CATALOGUE_SECONDS = _histogram(
    "broker_catalogue_seconds",
    "How long it took to read or change a catalogue that another process has (s): PostgreSQL, or the one of several nodes.",
    _FSYNC_BOUNDS,
)
OWNER_EPOCH = _gauge("broker_owner_epoch", "How often the state has been taken over.")
OWNER_LEADING = _gauge(
    "broker_owner_leading", "Whether this broker has its lease (1). Without it, it serves nobody (0)."
)
OWNER_LEASE_SECONDS = _gauge("broker_owner_lease_left_seconds", "What is left of the lease (s), if it is not renewed.")

_section = "Tiered storage"

REMOTE_FETCH_BYTES = _counter(
    "kafka_server_brokertopicmetrics_remotefetchbytes", "Bytes that were read from the object store."
)
REMOTE_FETCH_REQUESTS = _counter(
    "kafka_server_brokertopicmetrics_remotefetchrequests", "Pieces of segments that were asked of the object store."
)
REMOTE_FETCH_ERRORS = _counter(
    "kafka_server_brokertopicmetrics_remotefetcherrors", "Pieces of segments that could not be had."
)
REMOTE_COPY_BYTES = _counter(
    "kafka_server_brokertopicmetrics_remotecopybytes", "Bytes that were uploaded to the object store, with indexes."
)
REMOTE_COPY_REQUESTS = _counter(
    "kafka_server_brokertopicmetrics_remotecopyrequests", "Segments that were uploaded to the object store."
)
REMOTE_COPY_ERRORS = _counter(
    "kafka_server_brokertopicmetrics_remotecopyerrors", "Uploads that the object store failed; each is tried again."
)
REMOTE_DELETE_REQUESTS = _counter(
    "kafka_server_brokertopicmetrics_remotedeleterequests", "Segments that were deleted from the object store."
)
REMOTE_DELETE_ERRORS = _counter(
    "kafka_server_brokertopicmetrics_remotedeleteerrors", "Deletions that the object store failed; each is tried again."
)
REMOTE_COPY_LAG_BYTES = _gauge(
    "kafka_server_brokertopicmetrics_remotecopylagbytes", "Bytes of closed segments that are to be uploaded."
)
REMOTE_COPY_LAG_SEGMENTS = _gauge(
    "kafka_server_brokertopicmetrics_remotecopylagsegments", "Closed segments that are to be uploaded."
)
REMOTE_LOG_BYTES = _gauge(
    "kafka_server_brokertopicmetrics_remotelogsizebytes", "Bytes of segments in the object store, with indexes."
)
REMOTE_CACHE_BYTES = _gauge(
    "broker_remote_cache_bytes",
    "Bytes of pieces of segments that were read from the object store and are kept on the disk.",
)
REMOTE_CACHE_HITS = _counter("broker_remote_cache_hits", "Pieces of segments that were found on the disk.")

_section = "Producers and transactions"

PRODUCER_IDS = _gauge("kafka_server_replicamanager_produceridcount", "Idempotent producers that logs remember.")
TRANSACTIONS = _gauge("broker_transactions", "Transactional ids, by the phase of their transaction.", "phase")
TRANSACTION_OPEN_SECONDS = _gauge(
    "broker_transaction_open_seconds",
    "For how long a transaction is open (s); of those that are open for the longest time.",
    "transactional_id",
)
STABLE_OFFSET_HELD_SECONDS = _gauge(
    "broker_last_stable_offset_held_seconds",
    "For how long a transaction has held the last stable offset of a partition (s).",
    "topic",
    "partition",
    "transactional_id",
)
UNSTABLE_RECORDS = _gauge(
    "broker_log_unstable_records",
    "Records after the last stable offset, which read_committed consumers do not get yet; of the partitions with most.",
    "topic",
    "partition",
)

_section = "Consumer groups"

GROUPS = _gauge("broker_consumergroups", "Groups, by their state.", "state")
GROUPS_BY_PROTOCOL = _gauge(
    "broker_groups",
    "Groups, by their protocol and state (Kafka: group-count, consumer-group-count).",
    "protocol",
    "state",
)
GROUP_MEMBERS = _gauge("kafka_consumergroup_members", "Members of a group.", "consumergroup")
GROUP_GENERATION = _gauge("broker_consumergroup_generation", "The generation of a group.", "consumergroup")
GROUP_REBALANCES = _counter("broker_consumergroup_rebalances", "Generations that have begun.", "consumergroup")
GROUP_LAG_SUM = _gauge(
    "kafka_consumergroup_lag_sum", "Records of a topic that a group has not committed.", "consumergroup", "topic"
)
GROUP_LAG = _gauge(
    "kafka_consumergroup_lag",
    "Records of a partition that a group has not committed.",
    "consumergroup",
    "topic",
    "partition",
)
GROUP_OFFSET = _gauge(
    "kafka_consumergroup_current_offset", "The committed offset.", "consumergroup", "topic", "partition"
)
GROUP_LAG_SECONDS = _gauge(
    "broker_consumergroup_lag_seconds",
    "Age of the oldest record that a group has not committed (s), by its timestamp; the oldest of a topic's partitions.",
    "consumergroup",
    "topic",
)
COORDINATOR_MEMORY_BYTES = _gauge(
    "broker_coordinator_memory_bytes", "Memory of groups, committed offsets and transactional ids."
)
CATALOGUE_QUEUE_SIZE = _gauge(
    "broker_catalogue_queue_size", "Commits and other changes that wait for the thread that writes the catalogue."
)
PARKED_FETCH_WATCHES = _gauge("broker_parked_fetch_watches", "Logs in which fetches wait for records.")

_section = "Share groups"

SHARE_ACKNOWLEDGEMENTS = _counter(
    "kafka_server_share_group_metrics_share_acknowledgement", "Requests with acknowledgements of shared records."
)
SHARE_RECORD_ACKNOWLEDGEMENTS = _counter(
    "kafka_server_share_group_metrics_record_acknowledgement",
    "Shared records that were acknowledged, by type.",
    "ack_type",
)
SHARE_SESSIONS = _gauge("kafka_server_sharesessioncache_numsharesessions", "Share sessions.")
SHARE_SESSION_PARTITIONS = _gauge(
    "kafka_server_sharesessioncache_numsharepartitions", "Partitions of all share sessions together."
)
SHARE_PARTITIONS = _gauge("broker_share_partitions", "Share partitions in memory.")
SHARE_IN_FLIGHT_RECORDS = _gauge(
    "broker_share_in_flight_records", "Records that members of a share group hold, by group.", "group"
)

_section = "Shuffle"

SHUFFLE_PARTITIONS = _gauge("broker_shuffle_partitions", "Result partitions, by their state.", "state")
SHUFFLE_BUFFERS = _gauge("broker_shuffle_buffers", "Buffers, by where they are: in memory or in a file.", "place")
SHUFFLE_PUSHED_BYTES = _counter("broker_shuffle_pushed_bytes", "Bytes of buffers that writers have pushed.")
SHUFFLE_SPILLED_BYTES = _counter("broker_shuffle_spilled_bytes", "Bytes of buffers that were moved to files.")
SHUFFLE_MEMORY_BYTES = _gauge(
    "broker_shuffle_memory_bytes",
    "Memory of payloads, of what says where they are, and what is promised to writers.",
    "use",
)
SHUFFLE_MEMORY_CAPACITY_BYTES = _gauge(
    "broker_shuffle_memory_capacity_bytes", "How much memory result partitions may use (shuffle_memory_bytes)."
)
SHUFFLE_DISK_BYTES = _gauge("broker_shuffle_disk_bytes", "Bytes of the files of result partitions.")
SHUFFLE_SPILLER_BROKEN = _gauge("broker_shuffle_spiller_broken", "Whether the disk takes nothing: 1 or 0.")
SHUFFLE_WRITERS = _gauge("broker_shuffle_writers", "Writers that have a partition open.")
SHUFFLE_WRITER_CREDIT = _gauge("broker_shuffle_writer_credit_buffers", "Buffers that writers may push now.")
SHUFFLE_BLOCKED_WRITERS = _gauge(
    "broker_shuffle_blocked_writers", "Writers without credit, by what they wait for: readers or memory.", "reason"
)
SHUFFLE_READERS = _gauge("broker_shuffle_readers", "Receivers that read a partition.")
SHUFFLE_READER_CREDIT = _gauge("broker_shuffle_reader_credit_buffers", "Buffers that receivers are ready to receive.")
SHUFFLE_BACKLOG_BUFFERS = _gauge("broker_shuffle_backlog_buffers", "Buffers that wait for their receivers.")
SHUFFLE_BACK_PRESSURED_READERS = _gauge(
    "broker_shuffle_back_pressured_readers", "Receivers with a backlog that have given no credit."
)

_section = "Pulsar"

PULSAR_TOPICS = _gauge("pulsar_topics_count", "Topics that are in use; each partition counts.")
PULSAR_PRODUCERS = _gauge("pulsar_producers_count", "Producers of a topic.", "topic")
PULSAR_CONSUMERS = _gauge("pulsar_consumers_count", "Consumers of a topic.", "topic")
PULSAR_SUBSCRIPTIONS = _gauge("pulsar_subscriptions_count", "Subscriptions of a topic.", "topic")
PULSAR_IN_MESSAGES = _counter("pulsar_in_messages", "Messages that were published, by any protocol.", "topic")
PULSAR_IN_BYTES = _counter("pulsar_in_bytes", "Bytes that were published, by any protocol.", "topic")
PULSAR_OUT_MESSAGES = _counter("pulsar_out_messages", "Messages that were sent to Pulsar's consumers.", "topic")
PULSAR_OUT_BYTES = _counter("pulsar_out_bytes", "Bytes that were sent to Pulsar's consumers.", "topic")
PULSAR_RATE_IN = _gauge("pulsar_rate_in", "Messages per second that were published, since the last scrape.", "topic")
PULSAR_RATE_OUT = _gauge(
    "pulsar_rate_out", "Messages per second that were sent to Pulsar's consumers, since the last scrape.", "topic"
)
PULSAR_THROUGHPUT_IN = _gauge(
    "pulsar_throughput_in", "Bytes per second that were published, since the last scrape.", "topic"
)
PULSAR_THROUGHPUT_OUT = _gauge(
    "pulsar_throughput_out", "Bytes per second that were sent to Pulsar's consumers, since the last scrape.", "topic"
)
PULSAR_STORAGE_SIZE = _gauge("pulsar_storage_size", "Size of the log of a topic in bytes.", "topic")
PULSAR_MSG_BACKLOG = _gauge("pulsar_msg_backlog", "Messages that subscriptions have not acknowledged.", "topic")
PULSAR_SUBSCRIPTION_BACK_LOG = _gauge(
    "pulsar_subscription_back_log", "Messages that a subscription has not acknowledged.", "topic", "subscription"
)
PULSAR_SUBSCRIPTION_UNACKED = _gauge(
    "pulsar_subscription_unacked_messages",
    "Messages that were sent to consumers and not acknowledged.",
    "topic",
    "subscription",
)
PULSAR_SUBSCRIPTION_RATE_OUT = _gauge(
    "pulsar_subscription_msg_rate_out",
    "Messages per second that were sent to the consumers, since the last scrape.",
    "topic",
    "subscription",
)
PULSAR_SUBSCRIPTION_THROUGHPUT_OUT = _gauge(
    "pulsar_subscription_msg_throughput_out",
    "Bytes per second that were sent to the consumers, since the last scrape.",
    "topic",
    "subscription",
)
PULSAR_SUBSCRIPTION_CONSUMERS = _gauge(
    "pulsar_subscription_consumers_count", "Consumers of a subscription.", "topic", "subscription"
)
PULSAR_SUBSCRIPTION_PERMITS = _gauge(
    "broker_pulsar_subscription_permits", "Messages that consumers are ready to take.", "topic", "subscription"
)
PULSAR_SUBSCRIPTION_BLOCKED = _gauge(
    "pulsar_subscription_blocked_on_unacked_messages",
    "Whether a consumer gets nothing because it has too many unacknowledged messages: 1 or 0.",
    "topic",
    "subscription",
)
PULSAR_CACHE_BYTES = _gauge("pulsar_ml_cache_used_size", "Bytes of recent entries in memory.")

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
CLIENT_INSTANCES = _gauge("broker_kafka_client_instances", "Clients that are subscribed to metrics, or have asked.")
CLIENT_METRICS = _gauge(
    "broker_kafka_client_metric",
    "The metrics that clients have pushed last (KIP-714), by Kafka's names of them.",
    "client_instance_id",
    "client_id",
    "metric",
    "attributes",
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
