"""Invalid frames: random, truncated, altered, with false sizes, for APIs that do not exist."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from tests.faults.raw import API_VERSIONS, Faults, fetch, produce
from tests.kafka_connection import LENGTH
from tests.waiting import wait_for


@pytest.fixture
def faults(faults_of_all: Faults) -> Faults:
    return faults_of_all


# The fixture's broker serves all examples of a test.
shared = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def is_answered_or_closed(faults: Faults, data: bytes) -> None:
    """The broker may answer or close; it may not hang or fail."""
    with faults.connect() as client:
        client.try_send(data)
        client.finish()
        client.rest()


@given(data=st.binary(min_size=1, max_size=300))
@shared
def test_random_bytes(faults: Faults, data: bytes) -> None:
    is_answered_or_closed(faults, data)


@given(data=st.binary(min_size=8, max_size=300))
@shared
def test_frames_of_random_bytes(faults: Faults, data: bytes) -> None:
    is_answered_or_closed(faults, LENGTH.pack(len(data)) + data)


@given(
    key=st.sampled_from([0, 1, 2, 3, 8, 9, 10, 11, 14, 15, 18, 19, 22, 32, 44]),
    version=st.integers(0, 12),
    body=st.binary(max_size=200),
)
@shared
def test_requests_with_a_good_header_and_random_bodies(faults: Faults, key: int, version: int, body: bytes) -> None:
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x07\0\x03raw"
    is_answered_or_closed(faults, LENGTH.pack(len(head + body)) + head + body)


def test_requests_truncated_anywhere_with_matching_length(faults: Faults) -> None:
    rng = random.Random(1)
    for _, _, request in faults.all_requests():
        for _ in range(3):
            cut = rng.randrange(4, len(request))
            is_answered_or_closed(faults, LENGTH.pack(cut - 4) + request[4:cut])


def test_every_request_with_bytes_too_many(faults: Faults) -> None:
    for _, _, request in faults.all_requests():
        is_answered_or_closed(faults, LENGTH.pack(len(request) + 3) + request[4:] + b"\xff\0\x7f\x80\x01\xff\xff")


def test_every_request_with_bytes_that_were_altered(faults: Faults) -> None:
    rng = random.Random(2)
    for key, _, request in faults.all_requests():
        if key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS):
            continue  # an altered count may be a valid one, of a million partitions
        for _ in range(3):
            altered = bytearray(request)
            for _ in range(rng.randrange(1, 4)):
                altered[rng.randrange(8, len(altered))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            is_answered_or_closed(faults, bytes(altered))


@pytest.mark.parametrize("seed", range(4))
def test_produce_and_fetch_with_bytes_that_were_altered(faults: Faults, seed: int) -> None:
    rng = random.Random(seed)
    good = [produce(faults.topic, b"value" * 20), produce(faults.topic, b"v", acks=-1), fetch(faults.topic)]
    for _ in range(80):
        altered = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 4)):
            altered[rng.randrange(8, len(altered))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        is_answered_or_closed(faults, bytes(altered))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 7, 2**31 - 1, 104_857_601])
def test_impossible_length_closes_the_connection_at_once(faults: Faults, length: int) -> None:
    with faults.connect() as client:
        client.send(API_VERSIONS + LENGTH.pack(length))
        assert client.frame()
        assert client.rest() == b""


def test_large_length_takes_no_memory_before_its_bytes(faults: Faults) -> None:
    clients = [faults.connect() for _ in range(300)]
    for client in clients:
        client.send(LENGTH.pack(99 * 1024 * 1024) + b"\0\0\0\x07" + b"\0\0\0\0")
    memory = faults.broker.server.sockets.memory
    wait_for(lambda: memory.in_use == 300 * 4096)
    assert faults.serves()
    for client in clients:
        client.close()


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xfe"])
def test_large_inner_count_closes_the_connection(faults: Faults, count: bytes) -> None:
    head = b"\0\x03\0\x01\0\0\0\x07\0\x03raw"  # Metadata v1: an array of topic names
    with faults.connect() as client:
        client.send(LENGTH.pack(len(head) + 4) + head + count)
        client.rest()


@pytest.mark.parametrize("key", [-1, 4, 7, 17, 77, 1000, 32_767])
def test_unknown_api_closes_connection_after_earlier_answers(faults: Faults, key: int) -> None:
    unknown = key.to_bytes(2, "big", signed=True) + b"\0\0\0\0\0\x07\0\x03raw"
    with faults.connect() as client:
        client.send(API_VERSIONS + LENGTH.pack(len(unknown)) + unknown + API_VERSIONS)
        assert client.frame()
        assert client.rest() == b""


def test_unsupported_version_closes_connection_except_for_api_versions(faults: Faults) -> None:
    for api in faults.broker.server.part("kafka").apis.values():
        for version in (api.min_version - 1, api.max_version + 1, 32_767):
            if version < 0:
                continue
            head = int(api.key).to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x07\0\x03raw\0"
            with faults.connect() as client:
                client.send(LENGTH.pack(len(head)) + head)
                if api.key is not ApiKey.API_VERSIONS:
                    assert client.rest() == b"", (api.key, version)
                    continue
                correlation_id, answer = control.parse_response(ApiKey.API_VERSIONS, 0, client.frame())
                assert correlation_id == 7
                assert answer.error_code == 35
                ranges: dict[int, Any] = {int(each.api_key): each for each in answer.api_keys}
                assert ranges[18].max_version == api.max_version
