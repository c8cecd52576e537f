"""The throttle time in encoded responses, for every served version of every API."""

import datetime
from typing import Any

import pytest
from kio.index import load_response_schema

from broker.kafka import handlers
from broker.kafka.api import Api
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import api_versions, backup, fetch, metadata, own_apis, produce
from protocol.kafka.schema import control
from protocol.kafka.schema.schema_reader import field_specs
from protocol.kafka.throttle_time import with_throttle_time
from tests.loops import loop_over

APIS = handlers.load().values()
SERVED = [(api, version) for api in APIS for version in range(api.min_version, api.max_version + 1)]


def encoded(api: Api, version: int, throttle_ms: int) -> list[Any] | None:
    """A response as the handlers encode it; None for APIs that only the schema encodes."""
    ranges = dict.fromkeys(range(200), (0, 3))
    if api.key == ApiKey.PRODUCE:
        topics: list[str | bytes] = [b"a" * 16, b"b" * 16] if version >= 13 else ["t", "u" * 200]
        results = [produce.PartitionResult(topic, 3) for topic in topics]
        return [produce.response(7, version, results, throttle_ms)]
    if api.key == ApiKey.FETCH:
        data = fetch.PartitionData(3, 0, 1, 1, 0, None, 5, [b"12345"])
        return fetch.response_parts(7, version, throttle_ms, 0, 0, [(b"a" * 16 if version >= 13 else "t", [data])])
    if api.key == ApiKey.METADATA:
        return [metadata.response(7, version, [], None, 1, [], throttle_ms=throttle_ms)]
    if api.key == ApiKey.API_VERSIONS:
        features = api_versions.Features({"x": (1, 2)}, {"x": 2}, 5)
        return [api_versions.response(7, version, 0, ranges, throttle_ms, features)]
    if api.key == ApiKey.END_TXNS:
        return [own_apis.response(7, 3, 2, throttle_ms)]
    if api.key == ApiKey.BACKUP:
        return [backup.response(7, backup.BackupResponse(throttle_ms, 3, "why", "id", "/data"))]
    return None


@loop_over(("api", "version"), SERVED)
def test_result_equals_response_encoded_with_throttle_time(api: Api, version: int) -> None:
    before = encoded(api, version, 0)
    if before is not None:
        after = encoded(api, version, 1234)
    else:
        names = [spec.name for spec in field_specs(load_response_schema(api.key, version))]
        changed = {"throttle_time": datetime.timedelta(milliseconds=1234)} if "throttle_time" in names else {}
        before = [control.encode_response(api.key, version, 7, {})]
        after = [control.encode_response(api.key, version, 7, changed)]
    assert after is not None
    untouched = [bytes(part) for part in before]
    assert b"".join(with_throttle_time(before, api.key, version, 1234)) == b"".join(after)
    assert [bytes(part) for part in before] == untouched


@pytest.mark.parametrize("version", range(3, 14))
def test_last_of_several_produce_responses_gets_it(version: int) -> None:
    topic: str | bytes = b"a" * 16 if version >= 13 else "t"

    def answers(*throttles_ms: int) -> bytes:
        results = [produce.PartitionResult(topic, 3)]
        return b"".join(produce.response(7, version, results, throttle_ms) for throttle_ms in throttles_ms)

    assert b"".join(with_throttle_time([answers(0, 0, 0)], ApiKey.PRODUCE, version, 1234)) == answers(0, 0, 1234)


def test_other_parts_are_the_same_objects() -> None:
    parts = [fetch.response_parts(7, 11, 0, 0, 0, ())[0], bytearray(b"records")]
    assert with_throttle_time(parts, ApiKey.FETCH, 11, 5)[-1] is parts[1]


@pytest.mark.parametrize("version", [3, 9])
def test_long_response_with_separate_head_is_not_copied(version: int) -> None:
    whole = bytearray(metadata.response(7, version, [], "cluster", 1, []))
    parts = with_throttle_time([bytes(whole[:8]), memoryview(whole)[8:]], ApiKey.METADATA, version, 1234)
    assert b"".join(parts) == metadata.response(7, version, [], "cluster", 1, [], throttle_ms=1234)
    assert parts[-1].obj is whole
