"""Listener URLs: ``scheme://host:port[-port][?name=...&advertised=host:port]``.

The parser knows the syntax and no protocol; ``broker.server`` knows which schemes can be served.

    kafka://127.0.0.1:9092                                    one port
    kafka://localhost:0                                       any free port
    kafka://[::1]:9310-9319                                   the first free port of a range
    kafka://:9092                                             all interfaces (the same as 0.0.0.0); see `open_listeners.py`
    shuffle://127.0.0.1:9192?generation=1.20                  Flink's shuffle protocol, in the version of Flink 1.20
    http://127.0.0.1:8080                                     health checks and the admin calls of services
    kafka://0.0.0.0:19092?name=docker&advertised=broker:19092 a second listener, and the address that clients connect to
    kafka+sasl+ssl://:9093                                    TLS, and clients log in; also kafka+ssl:// and kafka+sasl://
"""

import difflib
import re
from collections.abc import Mapping

import attrs

from broker.addresses import parse_address
from broker.errors import ConfigError

ALL_INTERFACES = "0.0.0.0"
# The default ports of the protocols' own clients.
DEFAULT_PORTS = {"kafka": 9092, "pulsar": 6650, "http": 8080}
# The name of the listener by which nodes of a cluster ask each other. Clients are never told of it.
NODES_LISTENER = "nodes"
# `generation` is for shuffle listeners: the version of Flink's protocol.
OPTIONS = ("name", "advertised", "generation")

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/?#@\s]*))"
    r"(?::(?P<port>\d{1,5})(?:-(?P<port_max>\d{1,5}))?)?"
    r"/?(?:\?(?P<options>[^#\s]*))?"
)
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
# The security suffixes of a scheme, always in this order.
_SECURITY = re.compile(r"(.*?)(\+sasl)?(\+ssl)?")
# The scheme here for each of Kafka's security protocols.
_OF_KAFKA = {"PLAINTEXT": "kafka", "SSL": "kafka+ssl", "SASL_PLAINTEXT": "kafka+sasl", "SASL_SSL": "kafka+sasl+ssl"}


@attrs.frozen
class Listener:
    """An address that the broker listens on. ``port`` 0 is any free port. Ports from ``port`` to ``port_max`` are tried
    in order."""

    name: str
    scheme: str  # the service's, without the security: "kafka" for kafka+ssl://
    host: str
    port: int
    port_max: int
    options: Mapping[str, str] = attrs.field(factory=dict)
    sasl: bool = False  # clients log in
    ssl: bool = False  # TLS

    @property
    def url_scheme(self) -> str:
        """The scheme in the URL: "kafka+sasl+ssl"."""
        return self.scheme + "+sasl" * self.sasl + "+ssl" * self.ssl

    @property
    def security_protocol(self) -> str:
        """Kafka's name of the security protocol."""
        protocol = "SSL" if self.ssl else "PLAINTEXT"
        return f"SASL_{protocol}" if self.sasl else protocol

    @property
    def ports(self) -> range:
        return range(self.port, self.port_max + 1)

    @property
    def advertised(self) -> tuple[str, int] | None:
        """The address in the listener's own URL that clients are told to connect to."""
        text = self.options.get("advertised")
        return parse_address(text, f"listener {self.name}") if text else None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        ports = f"{self.port}" if self.port == self.port_max else f"{self.port}-{self.port_max}"
        options = dict(self.options) if self.name == self.url_scheme else {"name": self.name, **self.options}
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"{self.url_scheme}://{host}:{ports}" + (f"?{query}" if query else "")


def parse_listener(url: str, default_name: str | None = None) -> Listener:
    """Raises ConfigError with one sentence that says how to correct the URL."""
    match = _URL.fullmatch(url.strip())
    if match is None:
        example = _OF_KAFKA.get(url.strip().partition("://")[0], "kafka")
        raise ConfigError(
            f"Write the listener {url!r} as scheme://host:port, for example {example}://127.0.0.1:9092 "
            "(an IPv6 address in brackets, a range of ports as 9310-9319)."
        )
    url_scheme = match["scheme"]
    scheme, sasl, ssl = _SECURITY.fullmatch(url_scheme).groups()  # type: ignore[union-attr]
    port_text = match["port"]
    if port_text is None and scheme not in DEFAULT_PORTS:
        raise ConfigError(
            f"Say in the listener {url!r} which port to listen on, for example {url_scheme}://127.0.0.1:9310."
        )
    port = _port(port_text, url) if port_text else DEFAULT_PORTS[scheme]
    port_max = _port(match["port_max"], url) if match["port_max"] else port
    if match["port_max"] and (port == 0 or port_max < port):
        raise ConfigError(f"Write the range of ports in the listener {url!r} from low to high and from 1 on.")
    options = _options(match["options"] or "", url)
    name = options.pop("name", default_name or url_scheme)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"Give the listener {url!r} a name of letters, digits, '.', '_', '+' and '-' only: it is {name!r}."
        )
    if "advertised" in options:
        parse_address(options["advertised"], f"listener {url!r}")
    return Listener(
        name, scheme, match["v6"] or match["host"] or ALL_INTERFACES, port, port_max, options, bool(sasl), bool(ssl)
    )


def _port(text: str, url: str) -> int:
    port = int(text)
    if port > 65535:
        raise ConfigError(f"Use a port of at most 65535 in the listener {url!r}.")
    return port


def _options(query: str, url: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if key not in OPTIONS:
            nearest = difflib.get_close_matches(key, OPTIONS, 1)
            hint = f"did you mean {nearest[0]!r}" if nearest else f"the options are {', '.join(OPTIONS)}"
            raise ConfigError(f"Take the unknown option {key!r} out of the listener {url!r}; {hint}.")
        if not equals or not value:
            raise ConfigError(f"Give the option {key!r} of the listener {url!r} a value, as in {key}=value.")
        if key in options:
            raise ConfigError(f"Give the option {key!r} of the listener {url!r} only once.")
        options[key] = value
    return options
