"""Settings of the broker itself, its listeners, connections and threads.

Tests: tests/config/test_setting.py, tests/config/test_settings.py, tests/config/test_load.py.
"""

from collections.abc import Iterable, Mapping

import attrs

from broker.config.kafka_setting import INT_MAX
from broker.config.listener import Listener, parse_listener
from broker.config.setting import KAFKA, setting


def _listeners(value: "Iterable[Listener | str]") -> tuple[Listener, ...]:
    return tuple(parse_listener(one) if isinstance(one, str) else one for one in value)


def _control_listener(value: "Listener | str | None") -> Listener | None:
    return parse_listener(value, default_name="control") if isinstance(value, str) else value


@attrs.frozen(kw_only=True, slots=False)
class ServerSettings:
    """The broker itself."""

    node_id: int = setting(
        1,
        least=0,
        most=INT_MAX,
        doc="The number by which clients know this broker.",
        reason="There is one node; 1 is what Kafka's own quick start uses.",
    )
    cluster_id: str | None = setting(
        None,
        kafka=None,
        doc="The cluster id that clients are told. Unset: drawn at the first start and kept in the data directory.",
        reason="A fresh random id tells two clusters apart, as `kafka-storage random-uuid` does for Kafka.",
    )
    data_dir: str = setting(
        "broker-data",
        kafka="log.dirs",
        doc="The directory with all topics and the catalogue. Made if it is missing; one broker at a time may use it.",
        reason="In the working directory and under a plain name, so that whoever tries the broker out sees where the "
        "data is and how to get rid of it; not `data`, which many projects have already.",
    )
    data_dir_accept_foreign_files: bool = setting(
        False,
        kafka=None,
        doc="Use a `data_dir` that no broker has used before and that is not empty. Files and directories that are not the "
        "broker's are left alone either way.",
        reason="Such a directory is more likely a slip of the pen than a wish. Hidden files and `lost+found` do not count.",
    )
    shutdown_timeout_ms: int = setting(
        8000,
        kafka=None,
        least=0,
        doc="How long a broker takes to stop, at most. Requests in flight have three quarters of it; the rest is for logs to "
        "become durable. Logs that are not durable by then are recovered at the next start, as after a crash. When it is over, "
        "`broker serve` ends as it is.",
        reason="Stays below the 10 s after which Docker kills.",
    )
    switch_interval_us: int = setting(
        100,
        kafka=None,
        least=5,
        most=1_000_000,
        doc="`sys.setswitchinterval` of a serving process: how long a busy thread may keep the others waiting.",
        reason="With one thread that computes CPython's own 5000 lets 200 requests a second through, 500 some 4,000, 50 "
        "10,000; between threads that serve, 20 to 5000 make no difference that could be measured.",
    )
    ignored_kafka_settings: Mapping[str, str] = setting(
        attrs.Factory(dict),
        kafka=None,
        doc="Settings of a Kafka broker that mean nothing here, by Kafka's names. A configuration may name them as Kafka's does, "
        "outside this table; DescribeConfigs shows them, an event at the start lists them.",
        reason="A server.properties of Kafka's has some of them.",
    )
    logging_level: str = setting(
        "info",
        kafka=None,
        choices=("debug", "info", "warning", "error"),
        doc="The least severe event that is written to standard error.",
        reason="Events are rare (start, stop, errors, topics made and deleted): requests are counted, not logged.",
    )
    logging_format: str = setting(
        "auto",
        kafka=None,
        choices=("auto", "text", "json"),
        doc="How events are written: a line of text, or JSON. `auto`: text on a terminal, JSON elsewhere.",
        reason="People read terminals, programs read everything else.",
    )


@attrs.frozen(kw_only=True, slots=False)
class NetworkSettings:
    """Listeners, connections and threads."""

    listeners: tuple[Listener, ...] = setting(
        (parse_listener("kafka://127.0.0.1:9092"),),
        converter=_listeners,
        doc="Where to listen, as URLs: `scheme://host:port?name=...&advertised=host:port`. Port 0 is any free port, "
        "`9310-9319` the first free one, an empty host all interfaces. A second listener of a scheme needs a name.",
        reason="Kafka's port, so that every example works; loopback only, because nothing asks for a password yet.",
    )
    advertised_listeners: Mapping[str, str] = setting(
        attrs.Factory(dict),
        doc="What clients of a listener are told to connect to: listener name = `host:port`. Wins over the `advertised` of "
        "the listener's URL.",
        reason="Without it clients are told the address that the broker listens on.",
    )
    control_listener: Listener | None = setting(
        None,
        kafka="control.plane.listener.name",
        converter=_control_listener,
        doc="URL of a listener with an acceptor, a processor and a handler of its own, for health and admin calls while "
        "the others are full.",
        reason="Off as in Kafka: it takes a second port.",
    )
    network_threads: int = setting(
        3,
        kafka="num.network.threads",
        unit="threads",
        least=1,
        most=1024,
        doc="Processors: threads that each own a selector and a share of the connections.",
        reason=KAFKA,
    )
    io_threads: int = setting(
        8,
        kafka="num.io.threads",
        unit="threads",
        least=1,
        most=1024,
        doc="Handlers: threads for requests that may have to wait for the disk, a lock or the catalogue.",
        reason=KAFKA,
    )
    queued_max_requests: int = setting(
        500,
        unit="requests",
        least=1,
        doc="Requests that may wait for a handler. When as many do, further ones stay in their connections.",
        reason=KAFKA,
    )
    queued_max_request_bytes: int = setting(
        256 * 1024 * 1024,
        least=-1,
        doc="Memory for requests that are being received or handled; a connection that gets none is muted until some "
        "is returned. -1: no bound.",
        reason="Kafka has no bound. 256 MiB takes two of the largest requests and keeps a small machine alive.",
    )
    socket_request_max_bytes: int = setting(
        100 * 1024 * 1024,
        least=1024,
        most=INT_MAX,
        doc="The largest request. A connection that announces a larger one is closed.",
        reason="Kafka's default, which its clients count on.",
    )
    socket_send_buffer_bytes: int = setting(
        -1,
        least=-1,
        doc="SO_SNDBUF of a connection. -1: the system's own.",
        reason="Linux tunes it better than a fixed number.",
    )
    socket_receive_buffer_bytes: int = setting(
        -1,
        least=-1,
        doc="SO_RCVBUF of a connection. -1: the system's own.",
        reason="Linux tunes it better than a fixed number.",
    )
    socket_listen_backlog_size: int = setting(
        1024,
        unit="connections",
        least=1,
        doc="Connections that the system may hold ready to be accepted.",
        reason="Kafka's 50 drops connections when a large consumer group starts at once; the system has a cap of its own.",
    )
    connections_max_idle_ms: int = setting(
        600_000, least=-1, doc="Close a connection that was silent for so long. -1: never.", reason=KAFKA
    )
    max_connections: int = setting(
        INT_MAX,
        unit="connections",
        least=0,
        doc="Connections at a time on all listeners, or what the limit of descriptors leaves for them if that is less. Past "
        "it, accepting waits until one closes.",
        reason=KAFKA,
    )
    max_connections_per_ip: int = setting(
        INT_MAX, unit="connections", least=0, doc="Connections at a time from one address.", reason=KAFKA
    )
    max_connections_per_ip_overrides: Mapping[str, int] = setting(
        attrs.Factory(dict),
        unit="connections",
        doc="The same for single addresses: address = number.",
        reason=KAFKA,
    )
    max_connection_creation_rate: int = setting(
        INT_MAX,
        unit="connections/s",
        least=1,
        doc="New connections a second on all listeners; past it, accepting waits.",
        reason=KAFKA,
    )
    outgoing_high_water_bytes: int = setting(
        1024 * 1024,
        kafka=None,
        least=1,
        doc="A service that streams is told to stop when a connection has so much waiting to leave.",
        reason="Some ms of a fast network, and 1 GB for 1,000 readers that do not read.",
    )
    outgoing_low_water_bytes: int = setting(
        256 * 1024,
        kafka=None,
        least=0,
        doc="... and told to go on when it is down to this.",
        reason="A quarter of the high mark: stops and starts stay rare.",
    )
