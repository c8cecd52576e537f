"""The rows of a consumer group: encoded rows are decoded unchanged, and invalid rows are storage errors."""

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.kafka.groups.consumer.members import ClassicMetadata, ConsumerMember, MemberState, Subscription
from broker.kafka.groups.consumer.rows import (
    GroupRow,
    decode_group,
    decode_member,
    encode_assignment,
    encode_group,
    encode_metadata,
)

TEXT = st.text(max_size=8)
ASSIGNMENTS = st.dictionaries(st.uuids(), st.frozensets(st.integers(0, 40), min_size=1), max_size=3)
MEMBERS = st.builds(
    ConsumerMember,
    member_id=st.just("m"),
    instance_id=st.none() | TEXT,
    rack_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    subscription=st.builds(Subscription, st.frozensets(TEXT), TEXT),
    server_assignor=st.none() | TEXT,
    classic=st.none()
    | st.builds(
        ClassicMetadata, st.integers(0, 2**31 - 1), st.lists(st.tuples(TEXT, st.binary(max_size=9))).map(tuple)
    ),
    epoch=st.integers(-2, 2**31 - 1),
    previous_epoch=st.integers(-2, 2**31 - 1),
    state=st.sampled_from(MemberState),
    assigned=ASSIGNMENTS,
    revoking=ASSIGNMENTS,
)
FIELDS = (
    "member_id instance_id rack_id client_id client_host rebalance_timeout_ms subscription server_assignor classic epoch "
    "previous_epoch state assigned revoking"
).split()


@given(MEMBERS)
def test_member_is_decoded_unchanged(member: ConsumerMember) -> None:
    decoded = decode_member("g", "m", encode_metadata(member), encode_assignment(member))
    assert [getattr(decoded, field) for field in FIELDS] == [getattr(member, field) for field in FIELDS]


@given(st.builds(GroupRow, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), TEXT))
def test_group_is_decoded_unchanged(row: GroupRow) -> None:
    assert decode_group("g", encode_group(row)) == row


def test_group_row_names_its_version_and_type() -> None:
    assert json.loads(encode_group(GroupRow(3, 2)))["version"] == 1
    assert json.loads(encode_group(GroupRow(3, 2)))["type"] == "consumer"


def test_partitions_are_stored_as_runs() -> None:
    topic_id = UUID(int=1)
    member = ConsumerMember("m", assigned={topic_id: frozenset({0, 1, 2, 5})})
    assert json.loads(encode_assignment(member))["assigned"] == {topic_id.hex: [0, 2, 5, 5]}


def test_state_of_a_newer_version_is_unknown() -> None:
    member = ConsumerMember("m")
    newer = encode_assignment(member).replace(b'"stable"', b'"resting"')
    assert decode_member("g", "m", encode_metadata(member), newer).state is MemberState.UNKNOWN


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"1", b"\xff", b'{"version":2}', b'{"version":1}', b'{"version":1,"type":"share"}']
)
def test_invalid_row_is_a_storage_error(data: bytes) -> None:
    member = ConsumerMember("m")
    with pytest.raises(StorageError, match="row '' of group 'g'"):
        decode_group("g", data)
    with pytest.raises(StorageError, match="row 'm/m' of group 'g'"):
        decode_member("g", "m", data, encode_assignment(member))
    with pytest.raises(StorageError, match="row 'a/m' of group 'g'"):
        decode_member("g", "m", encode_metadata(member), data)
