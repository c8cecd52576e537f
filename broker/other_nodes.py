"""Calls over HTTP about what another node has: the client is sent there (307), to the listener of the same name. Pure.

A client that was sent here already is not sent on, because then one of the two nodes has not heard of a change yet: it is told to
try again. Clients may leave out their credentials when they follow; the other node asks for them as this one does.

Tests: tests/test_other_nodes.py, tests/process/test_nodes_http.py,
tests/process/test_nodes_pulsar.py.
"""

from collections.abc import Sequence

from broker.cluster.nodes import Node
from broker.config import Listener
from broker.part import as_reached
from broker.web.routes import UNAVAILABLE, Answer, Call, HttpError

_SENT_ON = 307
# Pulsar's name of the parameter that a client has when it was sent on.
_WAS_SENT = "authoritative"
# Of a path and of a query (RFC 3986); all other bytes are percent-encoded.
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def is_ssl(listeners: Sequence[Listener], call: Call) -> bool:
    """Whether the client has reached this node through TLS."""
    return any(listener.ssl for listener in listeners if listener.name == call.peer.listener)


def url_of(node: Node, listeners: Sequence[Listener], call: Call) -> str | None:
    """The URL of the node's listener by which the client has reached this one; None: it has none."""
    endpoint = node.endpoints.get(call.peer.listener)
    if endpoint is None:
        return None
    host, port = as_reached(endpoint, call.peer)
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if is_ssl(listeners, call) else 'http'}://{host}:{port}"


def sent_to(node: Node | None, listeners: Sequence[Listener], pattern: str, call: Call) -> Answer:
    """The answer that has the client repeat its call at the node. ``pattern``: of the call's route. Raises HttpError: not now."""
    url = None if node is None or call.flag(_WAS_SENT) else url_of(node, listeners, call)
    if url is None:
        raise HttpError(UNAVAILABLE, "The node that has this is not there now; try again.")
    path = pattern.format_map({name: encoded(value) for name, value in call.names.items()})
    query = "&".join(f"{encoded(name)}={encoded(value)}" for name, value in {**call.query, _WAS_SENT: "true"}.items())
    return Answer(_SENT_ON, headers=(("location", f"{url}{path}?{query}"),))


def encoded(text: str) -> str:
    """As a part of a path or a query."""
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode())
