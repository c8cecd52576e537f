"""Settings of the broker itself, of its listeners, connections and threads, and of the HTTP and shuffle services.

Kafka has no settings of the latter two. If Flink has a setting of the shuffle service, the reason names it.

Tests: tests/config/test_setting.py,
tests/config/test_settings.py,
tests/config/test_load.py.
"""

import re
import sys
from collections.abc import Iterable, Mapping

import attrs

from broker.config.listener import Listener, parse_listener
from broker.config.setting import INT_MAX, listener_setting, own_setting, setting, words
from broker.errors import ConfigError

_TOPIC = re.compile(r"[^:]+(:[1-9][0-9]{0,8})?")


def default_processors() -> int:
    """One where the interpreter has a lock (decision 0016), else as many as Kafka has."""
    is_locked = getattr(sys, "_is_gil_enabled", None)  # since Python 3.13
    return 1 if is_locked is None or is_locked() else 3


def _listeners(value: "Iterable[Listener | str]") -> tuple[Listener, ...]:
    return tuple(parse_listener(item) if isinstance(item, str) else item for item in value)


def _control_listener(value: "Listener | str | None") -> Listener | None:
    return parse_listener(value, default_name="control") if isinstance(value, str) else value


def _topics(value: "Iterable[str] | str") -> tuple[str, ...]:
    topics = tuple(words(value))
    for topic in topics:
        if _TOPIC.fullmatch(topic) is None:
            raise ConfigError(
                f"Write a topic of create_topics as NAME or NAME:PARTITIONS, such as orders:3; {topic[:300]!r} is neither."
            )
    names = [topic.partition(":")[0] for topic in topics]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"Name the topic {name[:300]!r} only once in create_topics.")
    return topics


def _users(value: "Iterable[str] | str") -> tuple[str, ...]:
    users = tuple(words(value))
    for number, user in enumerate(users, 1):
        name, _, password = user.partition(":")
        if not name or not password:
            # Whatever it is, it may be a password.
            raise ConfigError(
                f"Write users as NAME:PASSWORD, with commas between them: number {number} is something else."
            )
    return users


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class ServerSettings:
    """The broker itself."""

    node_id: int = setting(
        1,
        least=0,
        most=INT_MAX,
        doc="The number by which clients know this broker.",
        reason="There is one node; Kafka's own quick start uses 1.",
    )
    broker_rack: str | None = setting(
        None,
        doc="The rack or availability zone in which this broker stands, as clients are told it.",
        reason="With one node, a client has no other replica to prefer; the name matters to tools that show it.",
    )
    cluster_id: str | None = own_setting(
        None,
        doc="The cluster id that clients are told. Unset: a random id, drawn at the first start and kept in the data "
        "directory.",
        reason="A random id tells two clusters apart, as `kafka-storage random-uuid` does for Kafka.",
    )
    data_dir: str = setting(
        "broker-data",
        kafka="log.dirs",
        doc="The directory with all topics and the catalogue. It is created if it is missing; one broker at a time may use "
        "it.",
        reason="In the working directory and under a plain name, so that somebody who tries the broker out sees where the data "
        "is and how to remove it; not `data`, because many projects have a directory of that name.",
    )
    data_dir_accept_foreign_files: bool = own_setting(
        False,
        doc="Use a `data_dir` that is not empty and that no broker has used before. The broker leaves other files and "
        "directories alone in either case.",
        reason="Such a directory is more likely a mistake than intended. Hidden files and `lost+found` do not count.",
    )
    create_topics: tuple[str, ...] = own_setting(
        (),
        converter=_topics,
        doc="Topics that the broker makes when it starts, unless they are there already: `orders:3` has 3 partitions, `orders` "
        "as many as `num_partitions`. Topics that are there stay as they are.",
        reason="For containers and tests; elsewhere, those who use a topic make it.",
    )
    users: tuple[str, ...] = own_setting(
        (),
        converter=_users,
        secret=True,
        doc="Users that the broker adds when it starts, as `NAME:PASSWORD`, unless there is a user of this name already, who "
        "keeps the password. They log in with SCRAM at `+sasl` listeners, of which there must be one. A password with a comma is "
        "possible in a list only.",
        reason="For containers and tests; elsewhere `broker users add` keeps passwords out of files and environments.",
    )
    shutdown_timeout_ms: int = own_setting(
        8000,
        least=0,
        doc="The longest time that the broker takes to stop. Requests in flight have three quarters of it; the rest is for "
        "logs to become durable. Logs that are not durable by then are recovered at the next start, as after a crash. "
        "When the time is over, `broker serve` exits at once.",
        reason="Stays below the 10 s after which Docker kills a container.",
    )
    switch_interval_us: int = own_setting(
        100,
        least=1,
        most=1_000_000,
        doc="`sys.setswitchinterval` of a serving process: how long a busy thread may keep the others waiting.",
        reason="With one thread that computes, CPython's own 5000 lets 200 requests a second through, 500 about 4,000, 50 about "
        "10,000; between threads that serve, no difference could be measured from 20 to 5000.",
    )
    ignored_kafka_settings: Mapping[str, str] = own_setting(
        attrs.Factory(dict),
        doc="Settings of a Kafka broker that have no effect here, by Kafka's names. A configuration may also name them at "
        "the top level, as Kafka's does; DescribeConfigs shows them, and an event at the start lists them.",
        reason="A server.properties of Kafka's has some of them.",
    )
    logging_level: str = own_setting(
        "info",
        choices=("debug", "info", "warning", "error"),
        doc="The least severe event that is written to standard error.",
        reason="Events are rare (start, stop, errors, topics created and deleted): requests are counted, not logged.",
    )
    logging_format: str = own_setting(
        "auto",
        choices=("auto", "text", "json"),
        doc="How events are written: a line of text, or JSON. `auto`: text on a terminal, JSON elsewhere.",
        reason="People read terminals, programs read everything else.",
    )
    logging_file: str | None = own_setting(
        None,
        doc="Append events to this file, in place of standard error. SIGHUP opens it anew, after a rotation.",
        reason="systemd, Docker and Kubernetes take standard error and rotate it themselves.",
    )
    tracing_sample_ratio: float = own_setting(
        0.0,
        least=0.0,
        most=1.0,
        doc="The share of the measured requests of which OpenTelemetry traces are exported. 0 switches tracing off; needs the "
        "extra `otel`.",
        reason="A span costs some 100 us of CPU on a thread of its own. Off, tracing costs nothing.",
    )
    tracing_endpoint: str = own_setting(
        "http://localhost:4318/v1/traces",
        secret=True,  # it may have a user and a password, or a key
        doc="Where traces are sent, by OTLP over HTTP. OpenTelemetry's variables, such as `OTEL_EXPORTER_OTLP_HEADERS`, "
        "count too.",
        reason="The default port of OpenTelemetry's collector.",
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class NetworkSettings:
    """Listeners, connections and threads."""

    listeners: tuple[Listener, ...] = setting(
        (parse_listener("kafka://127.0.0.1:9092"),),
        converter=_listeners,
        doc="Where to listen, as URLs: `scheme://host:port?name=...&advertised=host:port`. Port 0 is any free port, "
        "`9310-9319` the first free one of these, an empty host all interfaces. A second listener of a scheme needs a "
        "name.",
        reason="Kafka's port, so that every example works; loopback only, because clients need not log in.",
    )
    advertised_listeners: Mapping[str, str] = setting(
        attrs.Factory(dict),
        doc="The address that clients of a listener are told to connect to: listener name = `host:port`. It takes precedence "
        "over `advertised` in the listener's URL.",
        reason="Without it clients are told the address that the broker listens on.",
    )
    listener_settings: Mapping[str, str] = own_setting(
        attrs.Factory(dict),
        secret=True,  # some of them are
        doc="Settings of one listener, which take precedence over the same settings of the broker: listener name, a dot, and "
        'the setting = value, as in `internal.ssl_client_auth = "required"`. Kafka\'s `listener.name.internal.ssl.client.auth` '
        "at the top level means the same.",
        reason="As in Kafka, so that two listeners may differ in their certificates, mechanisms and limits.",
    )
    control_listener: Listener | None = setting(
        None,
        kafka="control.plane.listener.name",
        converter=_control_listener,
        doc="URL of a listener with an acceptor, a processor and a handler of its own, for health and admin calls while "
        "the others are full. They serve `http://` listeners, too.",
        reason="Off as in Kafka: it takes a second port.",
    )
    allow_anonymous_listeners: bool = own_setting(
        False,
        doc="Allow listeners on other addresses than `localhost`, 127.0.0.0/8 and ::1 whose clients need not say who they are: "
        "without SASL, and without `ssl_client_auth = required`. The event `listener_unauthenticated` names them at the start.",
        reason="Everybody who can reach such a listener can read, write and delete everything that anonymous clients may.",
    )
    network_threads: int = setting(
        default_processors(),
        documented="1; 3 on a free-threaded Python",
        kafka="num.network.threads",
        unit="threads",
        least=1,
        most=1024,
        doc="Processors: threads that each own a selector and a share of the connections.",
        reason="The interpreter's lock lets one thread run at a time, so that more of them wait for each other. 3 is Kafka's.",
    )
    io_threads: int = setting(
        8,
        kafka="num.io.threads",
        unit="threads",
        least=1,
        most=1024,
        doc="Handlers: threads for requests that may have to wait for the disk, a lock or the catalogue.",
    )
    queued_max_requests: int = setting(
        500,
        unit="requests",
        least=1,
        doc="Requests that may wait for a handler. While there are as many, further ones stay in their connections.",
    )
    queued_max_request_bytes: int = setting(
        256 * 1024 * 1024,
        least=-1,
        doc="Memory for requests that are being received or handled. A connection that gets none is muted until some is "
        "returned. -1: no limit.",
        reason="Kafka has no limit. 256 MiB is enough for two of the largest requests and leaves memory on a small machine.",
    )
    socket_request_max_bytes: int = setting(
        100 * 1024 * 1024,
        least=1024,
        most=INT_MAX,
        doc="The largest request. A connection that announces a larger one is closed.",
        reason="Kafka's default, which its clients rely on.",
    )
    socket_send_buffer_bytes: int = setting(
        -1,
        least=-1,
        doc="SO_SNDBUF of a connection. -1: the system's default.",
        reason="Linux tunes it better than a fixed number.",
    )
    socket_receive_buffer_bytes: int = setting(
        -1,
        least=-1,
        doc="SO_RCVBUF of a connection. -1: the system's default.",
        reason="Linux tunes it better than a fixed number.",
    )
    socket_listen_backlog_size: int = setting(
        1024,
        unit="connections",
        least=1,
        doc="Connections that the system may hold until the broker accepts them.",
        reason="Kafka's 50 drops connections when a large consumer group starts at once; the system has a limit of its own.",
    )
    connections_max_idle_ms: int = setting(
        600_000, least=-1, doc="Close a connection that has been idle for this long. -1: never."
    )
    max_connections: int = listener_setting(
        INT_MAX,
        unit="connections",
        least=0,
        doc="Connections at a time on all listeners, or what the limit of descriptors leaves for them if that is less. "
        "Beyond it, the broker accepts no connection until one closes.",
    )
    max_connections_per_ip: int = setting(
        INT_MAX, unit="connections", least=0, doc="Connections at a time from one address."
    )
    max_connections_per_ip_overrides: Mapping[str, int] = setting(
        attrs.Factory(dict), unit="connections", doc="The same for individual addresses: address = number."
    )
    max_connection_creation_rate: int = listener_setting(
        INT_MAX,
        unit="connections/s",
        least=1,
        doc="New connections per second on all listeners; beyond it, the broker waits before it accepts the next.",
    )
    outgoing_high_water_bytes: int = own_setting(
        1024 * 1024,
        least=1,
        doc="A service that streams is told to stop when this much is waiting to be sent on a connection.",
        reason="Some ms of a fast network, and 1 GB for 1,000 readers that do not read.",
    )
    outgoing_low_water_bytes: int = own_setting(
        256 * 1024,
        least=0,
        doc="A service that was told to stop is told to go on when this much is left.",
        reason="A quarter of the high mark, so that stops and starts stay rare.",
    )


def _hosts(value: "Iterable[str] | str") -> tuple[str, ...]:
    return tuple(word.lower() for word in words(value))


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class HttpSettings:
    """HTTP: http:// listeners."""

    http_max_body_bytes: int = own_setting(
        1024 * 1024,
        least=1024,
        most=64 * 1024 * 1024,
        doc="The longest body of a request. A longer one is answered with 413, and the connection is closed.",
        reason="The largest body of an admin call is a schema, and few of those are longer than 100 KiB.",
    )
    http_allow_unencrypted_logins: bool = own_setting(
        False,
        doc="Accept passwords and tokens of other machines on http:// listeners without TLS. Without it, only those are accepted "
        "there that a `+sasl` listener without TLS accepts from other machines. Clients on the broker's own machine may always "
        "log in.",
        reason="Everybody who can listen to the network would see them. Behind a proxy that ends TLS on another machine it is "
        "needed.",
    )
    http_request_timeout_ms: int = own_setting(
        30_000,
        least=100,
        doc="How long a client may take to send one request, from its first byte to its last. Then the connection is closed.",
        reason="1 MiB arrives within it at 35 kB/s.",
    )
    http_allowed_hosts: tuple[str, ...] = own_setting(
        (),
        converter=_hosts,
        doc="Names, without a port, by which clients may address http:// listeners besides `localhost`, loopback addresses, "
        "the address that the connection was made to, and the listener's own and advertised host. Requests with another name in "
        "the header Host are answered with 403.",
        reason="A name that an attacker has pointed at this machine (DNS rebinding) would let a web page read the answers.",
    )
    faults_enabled: bool = own_setting(
        False,
        doc="Serve `/api/v1/faults` on http:// listeners: whoever may alter the cluster can have requests fail on demand "
        "(see TESTING.md). `Broker().faults` of a program does not need it.",
        reason="For tests: in production nobody should be able to have requests fail.",
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class ShuffleSettings:
    """Shuffle: result partitions on shuffle:// listeners."""

    shuffle_memory_bytes: int = own_setting(
        256 * 1024 * 1024,
        least=1024 * 1024,
        doc="Memory for the buffers of all result partitions and for the metadata: 16 bytes for a spilled buffer, 3 KiB for "
        "a partition, 544 bytes for each of its subpartitions that is used, 1.5 KiB for a reader. Beyond half of it, "
        "buffers are spilled to files; those of a blocking partition beyond 16 MiB. When it is used up, writers wait. "
        "New partitions are refused when metadata takes 3/4 of it, and readers when readers take half; a partition fails "
        "when the metadata of its spilled buffers takes a quarter.",
        reason="8,192 buffers of Flink's 32 KiB, which leaves memory on a small machine.",
    )
    shuffle_disk_bytes: int = own_setting(
        -2,
        least=-2,
        doc="Bytes of result partitions on disk. When they are used up, writers of blocking partitions wait until something "
        "is released; writers of pipelined partitions wait when the memory is used up as well. -1: no limit. -2: half of "
        "what is free on the file system when the broker starts, in addition to what partitions already take there; several "
        "nodes of one machine divide that half.",
        reason="A shuffle that grows without limit leaves half of the disk for the topics.",
    )
    shuffle_released_bytes: int = own_setting(
        1024 * 1024 * 1024,
        least=0,
        doc="Bytes of files of released partitions that are kept, for a minute at most, until other files have grown: new "
        "files are cheaper to write while memory is at hand. They count towards shuffle_disk_bytes and are removed first "
        "when the disk is full.",
        reason="The stages of a job, or successive jobs, write about as much as was released before.",
    )
    shuffle_quota_bytes: int = own_setting(
        -1,
        least=-1,
        doc="Bytes, in memory and on disk, of the partitions of one owner (the user or job that a writer names), metadata "
        "included. A writer that exceeds it is refused and its partition fails. -1: no limit.",
        reason="There is one user unless a writer names another.",
    )
    shuffle_pipelined_bytes: int = own_setting(
        16 * 1024 * 1024,
        least=1,
        doc="How far the readers of a pipelined partition may be behind its writer before the writer has to wait.",
        reason="Half a second at 32 MB/s; Flink's own buffers between two tasks are a few MB.",
    )
    shuffle_write_credit_buffers: int = own_setting(
        64,
        unit="buffers",
        least=4,
        most=1_000_000,
        doc="Buffers that a writer may have on their way to the broker; up to eight times as many when they are smaller than "
        "8 KiB, and fewer, down to 4, when they are larger than 32 KiB or memory is short.",
        reason="2 MiB of 32 KiB buffers: enough to fill a local network, and little memory.",
    )
    shuffle_partition_request_timeout_ms: int = own_setting(
        10_000,
        least=0,
        doc="How long a reader waits for a partition that does not exist yet or, if it is blocking, is not finished yet.",
        reason="Flink's taskmanager.network.partition-request-timeout.",
    )
    shuffle_blocking_ttl_ms: int = own_setting(
        3_600_000,
        least=0,
        doc="How long a finished blocking partition is kept if its writer did not say.",
        reason="An hour is longer than most jobs, and nothing stays for ever after a driver that died.",
    )
    shuffle_pipelined_retention_ms: int = own_setting(
        0,
        least=0,
        doc="How long a pipelined partition is kept for another reader when its reader's connection is lost. The next reader "
        "begins with the first buffer, so all buffers are kept (and spilled) until they have been read. 0: buffers are "
        "released when they have been sent, and the partition of a lost reader counts as read.",
        reason="As Flink: a pipelined partition is bounded, and the job is restarted.",
    )
    shuffle_writer_retention_ms: int = own_setting(
        60_000,
        least=0,
        doc="How long a writer whose connection was lost may take to come back before its partition fails.",
        reason="Longer than a restart of a process or of a network, and shorter than a user would wait.",
    )
