"""The subscriptions and assignments that the members of a consumer group send each other through the broker.

The broker passes these bytes on unread, with one exception: ``groups/subscription.py`` reads the topics of a subscription,
because OffsetDelete must know which topics a group reads. The rest serves the consumers of the simulator and of the tests. Both
messages begin with a version. As Kafka requires, a version newer than ``NEWEST_VERSION`` is read like that version. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.wire import UNLIMITED, BytesLike, Reader, Writer

NEWEST_VERSION = 3


class Subscription(NamedTuple):
    """``owned`` is topic -> partitions (v1), ``generation`` of that ownership (v2), ``rack`` (v3)."""

    version: int
    topics: list[str]
    user_data: bytes | None
    owned: dict[str, list[int]]
    generation: int
    rack: str | None


class Assignment(NamedTuple):
    version: int
    partitions: dict[str, list[int]]
    user_data: bytes | None


def encode_subscription(
    topics: Iterable[str],
    *,
    version: int = 1,
    user_data: bytes | None = None,
    owned: Mapping[str, Sequence[int]] | None = None,
    generation: int = -1,
    rack: str | None = None,
) -> bytes:
    """The metadata with which a member joins its group."""
    assert 0 <= version <= NEWEST_VERSION
    names = list(topics)
    out = Writer()
    out.i16(version)
    out.array(len(names))
    for name in names:
        out.string(name)
    out.nullable_bytes(user_data)
    if version >= 1:
        _write_partitions(out, owned or {})
    if version >= 2:
        out.i32(generation)
    if version >= 3:
        out.nullable_string(rack)
    return out.getvalue()


def parse_subscribed_topics(data: BytesLike, max_topics: int = UNLIMITED) -> list[str]:
    """The topics of a subscription, at their place in version 0. The rest is ignored, as in Kafka's broker.

    Raises ProtocolError, or TooManyEntries for more than ``max_topics`` before any topic is read.
    """
    _, topics = _read_topics(Reader(data, 0, max_topics))
    return topics


def parse_subscription(data: BytesLike) -> Subscription:
    """Raises ProtocolError."""
    reader = Reader(data)
    version, topics = _read_topics(reader)
    user_data = _read_user_data(reader)
    owned = _read_partitions(reader) if version >= 1 else {}
    generation = reader.i32() if version >= 2 else -1
    rack = reader.nullable_string() if version >= 3 else None
    return Subscription(version, topics, user_data, owned, generation, rack)


def encode_assignment(
    partitions: Mapping[str, Sequence[int]], *, version: int = 1, user_data: bytes | None = None
) -> bytes:
    """The leader's assignment for one member."""
    assert 0 <= version <= NEWEST_VERSION
    out = Writer()
    out.i16(version)
    _write_partitions(out, partitions)
    out.nullable_bytes(user_data)
    return out.getvalue()


def parse_assignment(data: BytesLike) -> Assignment:
    """The assignment in ``data``, which may be empty for a member without partitions. Raises ProtocolError."""
    if not len(data):
        return Assignment(0, {}, None)
    reader = Reader(data)
    version = _read_version(reader)
    partitions = _read_partitions(reader)
    return Assignment(version, partitions, _read_user_data(reader))


def _read_topics(reader: Reader) -> tuple[int, list[str]]:
    version = _read_version(reader)
    return version, [reader.string() for _ in range(reader.array(2))]


def _read_version(reader: Reader) -> int:
    version = reader.i16()
    if version < 0:
        raise ProtocolError(f"consumer protocol version {version}")
    return version


def _read_user_data(reader: Reader) -> bytes | None:
    data = reader.nullable_bytes()
    return None if data is None else bytes(data)


def _write_partitions(out: Writer, partitions: Mapping[str, Sequence[int]]) -> None:
    out.array(len(partitions))
    for topic, numbers in partitions.items():
        out.string(topic)
        out.array(len(numbers))
        for number in numbers:
            out.i32(number)


def _read_partitions(reader: Reader) -> dict[str, list[int]]:
    partitions: dict[str, list[int]] = {}
    for _ in range(reader.array(6)):
        topic = reader.string()
        partitions.setdefault(topic, []).extend([reader.i32() for _ in range(reader.array(4))])
    return partitions
