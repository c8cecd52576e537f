"""ApiVersions: the same in every version, and an answer that every client understands to a version that is not known."""

import socket
import struct

import pytest

from broker.kafka.handlers import load
from broker.kafka.handlers.api_versions import API
from broker.metrics.registry import render
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from tests.kafka.handlers.kafka_client import Kafka, versions

CLIENT = {"client_software_name": "test", "client_software_version": "1"}


@pytest.mark.parametrize("version", versions(API))
def test_every_kafka_api_is_listed_with_its_versions(kafka: Kafka, version: int) -> None:
    answer = kafka.ask(ApiKey.API_VERSIONS, version, **CLIENT)
    assert answer.error_code == ErrorCode.none
    told = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    always = [api for api in load().values() if api.feature is None and api.condition is None]
    assert told == {api.key: api.advertised for api in always}
    assert told[ApiKey.PRODUCE][0] == 0  # older clients of librdkafka do not compress otherwise


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "number"),
    [("", "1"), ("test", ""), ("-test", "1"), ("te st", "1"), ("test", "1_0"), ("tést", "1"), ("a\n", "1")],
)
def test_invalid_software_name_is_refused_without_closing(kafka: Kafka, version: int, name: str, number: str) -> None:
    answer = kafka.ask(ApiKey.API_VERSIONS, version, client_software_name=name, client_software_version=number)
    assert (ErrorCode.invalid_request, ()) == (answer.error_code, answer.api_keys)
    assert ErrorCode.none == kafka.ask(ApiKey.API_VERSIONS, version, **CLIENT).error_code


def test_connections_are_counted_by_their_software() -> None:
    said = {"client_software_name": "librdkafka", "client_software_version": "2.3.0"}
    with Kafka() as kafka:
        software = kafka.broker.server.security.client_software
        for version in (0, 3, 4):
            kafka.ask(ApiKey.API_VERSIONS, version, **said)
        assert {("librdkafka", "2.3.0"): 1} == software.read()
        assert b'broker_kafka_client_software{name="librdkafka",version="2.3.0"} 1.0' in render(
            kafka.broker.server.metrics
        )
        with Kafka() as other:  # a connection that says something else
            other.ask(ApiKey.API_VERSIONS, 3, **CLIENT)
    assert {} == software.read()


def test_newer_client_learns_a_usable_api_versions_version(kafka: Kafka) -> None:
    version = API.max_version
    request = bytearray(control.encode_request(ApiKey.API_VERSIONS, version, 7, "test", CLIENT))
    request[6:8] = (version + 1).to_bytes(2, "big")
    correlation_id, answer = control.parse_response(ApiKey.API_VERSIONS, 0, kafka.exchange(bytes(request)))
    assert (correlation_id, answer.error_code) == (7, ErrorCode.unsupported_version)
    (entry,) = answer.api_keys
    assert (entry.api_key, entry.min_version, entry.max_version) == (ApiKey.API_VERSIONS, 0, version)


@pytest.mark.parametrize("key", [ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE])
def test_streams_groups_are_refused_as_unknown(kafka: Kafka, key: ApiKey) -> None:
    """KIP-1071. Kafka Streams looks at the list of APIs, and says so when it starts."""
    answer = kafka.ask(ApiKey.API_VERSIONS, 4, **CLIENT)
    assert key not in {entry.api_key for entry in answer.api_keys}
    named = {feature.name for feature in (*answer.supported_features, *answer.finalized_features)}
    assert "streams.version" not in named and "group.version" in named
    with socket.create_connection(kafka.address) as client:
        client.settimeout(10)
        request = struct.pack(">hhi", key, 0, 7) + b"\0\4test\0"
        client.sendall(struct.pack(">i", len(request)) + request)
        assert client.recv(1) == b"", "the connection is closed"
