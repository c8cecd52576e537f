import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import api_versions
from protocol.kafka.messages.api_versions import ApiVersionsRequest, Features
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control

VERSIONS = range(api_versions.MIN_VERSION, api_versions.MAX_VERSION + 1)
INT16 = st.integers(0, 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    st.dictionaries(INT16, st.tuples(INT16, INT16), max_size=200),
    st.none()
    | st.builds(
        Features,
        st.dictionaries(st.text(max_size=20), st.tuples(INT16, INT16), max_size=20),
        st.dictionaries(st.text(max_size=20), INT16, max_size=20),
        st.integers(-1, 2**63 - 1),
    ),
    INT32,
    INT16,
    INT32,
)
def test_a_response_is_written_as_the_schema_says(
    version: int,
    ranges: dict[int, tuple[int, int]],
    features: Features | None,
    number: int,
    error: int,
    throttle_ms: int,
) -> None:
    fields = {
        "error_code": error,
        "throttle_time": throttle_ms,
        "api_keys": [
            {"api_key": key, "min_version": lowest, "max_version": highest} for key, (lowest, highest) in ranges.items()
        ],
    }
    # test_control.py compares control's writer with kio's.
    expected = control.encode_response(ApiKey.API_VERSIONS, version, number, fields)
    written = api_versions.response(number, version, error, ranges, throttle_ms, features)
    if features is None or version < 3:
        assert expected == written
        return
    _, answer = control.parse_response(ApiKey.API_VERSIONS, version, written)
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
    assert supported == {name: levels for name, levels in features.supported.items() if levels[0] or version >= 4}
    finalized = {
        feature.name: (feature.min_version_level, feature.max_version_level) for feature in answer.finalized_features
    }
    assert finalized == {name: (level, level) for name, level in features.finalized.items() if level}
    assert answer.finalized_features_epoch == features.epoch
    # The bytes before the tagged fields.
    assert written[4 : len(expected) - 1] == expected[4:-1]


def test_answer_to_future_version_is_readable_by_all() -> None:
    frame = api_versions.response(7, 0, 35, {18: (0, 4)})
    assert frame == bytes.fromhex("00000010 00000007 0023 00000001 0012 0000 0004")


@pytest.mark.parametrize("version", VERSIONS)
@given(name=st.text(max_size=20), software_version=st.text(max_size=20))
def test_a_request_says_who_the_client_is(version: int, name: str, software_version: str) -> None:
    fields = {"client_software_name": name, "client_software_version": software_version}
    frame = control.encode_request(ApiKey.API_VERSIONS, version, 1, "me", fields)
    request = api_versions.parse_request(memoryview(frame), version, parse_request_header(frame).body_offset)
    assert request == (ApiVersionsRequest(name, software_version) if version >= 3 else ApiVersionsRequest("", ""))


@given(st.binary(max_size=30), st.integers(0, 100))
def test_nonsensical_request_is_still_answered(body: bytes, version: int) -> None:
    assert isinstance(api_versions.parse_request(memoryview(body), version), ApiVersionsRequest)
