"""Where the leaders of partitions are (KIP-951): what a broker adds to an error, so that a client need not ask for metadata.

``Hints`` are of one response, of Produce (from version 10 on), Fetch (from 16 on), ShareFetch or ShareAcknowledge. The first two
have them in tagged fields. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protocol.wire import Writer


class Leader(NamedTuple):
    node_id: int
    epoch: int


class Endpoint(NamedTuple):
    """Of a node, on the listener through which the client has asked."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Hints(NamedTuple):
    """``leaders``: by topic (name or id, as in the request) and partition. ``endpoints``: of these leaders."""

    leaders: Mapping[tuple[str | bytes, int], Leader]
    endpoints: Sequence[Endpoint]


NO_LEADER = Leader(-1, -1)
NONE = Hints({}, ())


def write_leader(out: Writer, leader: Leader) -> None:
    """The structure CurrentLeader."""
    out.i32(leader.node_id)
    out.i32(leader.epoch)
    out.no_tags()


def write_endpoints(out: Writer, endpoints: Sequence[Endpoint]) -> None:
    """The array NodeEndpoints."""
    out.compact_array(len(endpoints))
    for endpoint in endpoints:
        out.i32(endpoint.node_id)
        out.compact_string(endpoint.host)
        out.i32(endpoint.port)
        out.compact_nullable_string(endpoint.rack)
        out.no_tags()


def leader_tag(tag: int, leader: Leader) -> bytes:
    """The tagged fields of a partition: this leader alone."""
    body = Writer()
    write_leader(body, leader)
    return _tags(tag, body)


def endpoints_tag(tag: int, endpoints: Sequence[Endpoint]) -> bytes:
    """The tagged fields of a response: these endpoints alone."""
    body = Writer()
    write_endpoints(body, endpoints)
    return _tags(tag, body)


def _tags(tag: int, body: Writer) -> bytes:
    out = Writer()
    out.uvarint(1)
    out.uvarint(tag)
    out.uvarint(len(body.data))
    out.data += body.data
    return bytes(out.data)
