from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from protocol.kafka.api_keys import FIRST_FLEXIBLE_VERSION, ApiKey, request_header_version, response_header_version
from tests.loops import loop_over

ALL = [(ApiKey(key), version) for key, name in api_key_map.items() for version in schema_name_map[name]]


def header_version(header_schema: type) -> int:
    return int(header_schema.__module__.split(".v")[1].split(".")[0])


def test_names_and_numbers_are_kafkas_except_two() -> None:
    assert {int(key): key.name.lower() for key in ApiKey} == dict(api_key_map) | {20000: "end_txns", 20001: "backup"}


@loop_over(("key", "version"), ALL)
def test_header_versions_agree_with_the_schemas(key: ApiKey, version: int) -> None:
    assert header_version(load_request_schema(key, version).__header_schema__) == request_header_version(key, version)
    assert header_version(load_response_schema(key, version).__header_schema__) == response_header_version(key, version)


def test_versions_nobody_has_still_have_headers() -> None:
    assert request_header_version(ApiKey.API_VERSIONS, 99) == 2
    assert response_header_version(ApiKey.API_VERSIONS, 99) == 0
    assert request_header_version(999, 99) == 1
    assert response_header_version(999, 99) == 0


def test_the_table_of_FIRST_FLEXIBLE_VERSIONs() -> None:
    assert FIRST_FLEXIBLE_VERSION[ApiKey.PRODUCE] == 9
    assert FIRST_FLEXIBLE_VERSION[ApiKey.FETCH] == 12
    assert ApiKey.SASL_HANDSHAKE not in FIRST_FLEXIBLE_VERSION
