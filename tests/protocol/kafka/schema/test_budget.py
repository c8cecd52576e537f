"""Every array of every request is charged to the reader's budget; responses stop where they become too long."""

from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import MessageTooLarge, TooManyEntries
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import fetch, metadata, own_apis, produce
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control
from protocol.kafka.schema.control import Counted
from protocol.kafka.schema.schema_reader import Message, field_specs
from tests.loops import loop_over
from tests.protocol.kafka.message_strategies import REQUEST, SERVED, schema_of

# Read by hand.
BY_HAND = {ApiKey.PRODUCE: produce, ApiKey.FETCH: fetch, ApiKey.METADATA: metadata}


def arrays(cls: Message, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every array of a message, arrays inside arrays included."""
    for spec in field_specs(cls):
        here = (*path, spec.name)
        if spec.is_array:
            yield here
        if spec.entity is not None:
            yield from arrays(spec.entity, here)


def smallest(cls: Message, path: tuple[str, ...], count: int) -> dict[str, Any]:
    """A message with ``count`` elements in the array at ``path``; the arrays around it have one each."""
    spec = next(spec for spec in field_specs(cls) if spec.name == path[0])
    if len(path) > 1:
        inner = smallest(spec.entity, path[1:], count)
        return {spec.name: [inner] if spec.is_array else inner}
    element: Any = {}
    if spec.entity is None:
        element = "" if spec.kafka_type == "string" else b"" if spec.kafka_type == "bytes" else 0
        if spec.kafka_type == "uuid":
            element = None
    return {spec.name: [element] * count}


CASES = [
    (key, version, path)
    for key, versions in SERVED.items()
    for version in versions
    for path in arrays(schema_of(REQUEST, key, version))
]


def parse(key: ApiKey, version: int, frame: bytes, max_entries: int) -> Any:
    start = parse_request_header(frame).body_offset
    if key in BY_HAND:
        return BY_HAND[key].parse_request(memoryview(frame), version, start, max_entries)  # type: ignore[attr-defined]
    return control.parse_request(key, version, frame[start:], max_entries)


@loop_over(("key", "version", "path"), CASES)
def test_excess_entries_are_refused_in_every_position(key: ApiKey, version: int, path: tuple[str, ...]) -> None:
    cls = schema_of(REQUEST, key, version)
    allowed = 40
    frame = control.encode_request(key, version, 7, "me", smallest(cls, path, allowed + 1))
    with pytest.raises(TooManyEntries):
        parse(key, version, frame, allowed)
    # There are at most so many other entries around it; with them it fits.
    parse(key, version, frame, allowed + 10)


def test_the_transactions_that_end_together_are_counted() -> None:
    frame = own_apis.request(7, "me", [own_apis.Member("id", 1, 1)] * 11, True)
    body = frame[parse_request_header(frame).body_offset :]
    assert 11 == len(own_apis.parse_request(body, 11).members)
    with pytest.raises(TooManyEntries):
        own_apis.parse_request(body, 10)


def test_too_long_response_is_not_written_completely() -> None:
    made = []

    def groups() -> Iterator[dict[str, Any]]:
        for number in range(100_000):
            made.append(number)
            yield {"group_id": f"{number:010}"}

    with pytest.raises(MessageTooLarge):
        control.encode_response(ApiKey.LIST_GROUPS, 4, 7, {"groups": Counted(100_000, groups())}, 10_000)
    assert len(made) < 1000


def test_lazily_written_array_reads_the_same() -> None:
    fields = [{"group_id": f"group {number}", "protocol_type": "consumer"} for number in range(300)]
    for version in SERVED[ApiKey.LIST_GROUPS]:
        at_once = control.encode_response(ApiKey.LIST_GROUPS, version, 7, {"groups": fields})
        one_by_one = control.encode_response(ApiKey.LIST_GROUPS, version, 7, {"groups": Counted(300, iter(fields))})
        assert at_once == one_by_one
