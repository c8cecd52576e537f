"""The rows of a share group: written rows are read, and nothing else."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.kafka.groups import kinds
from broker.kafka.groups.coordinated import GROUP_ROW, member_row
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.share import members as rows
from broker.kafka.groups.share.members import ShareMember, Subscription

partitions = st.sets(st.integers(0, 100), min_size=1).map(lambda some: tuple(sorted(some)))
assignments = st.dictionaries(st.uuids(), partitions, max_size=3)
texts = st.text(max_size=10)
members = st.builds(
    ShareMember,
    st.text(min_size=1, max_size=10),
    texts,
    texts,
    st.none() | texts,
    st.builds(Subscription, st.lists(texts, max_size=3).map(tuple)),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    assignments,
    assignments,
)


@given(
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.lists(members, max_size=4, unique_by=lambda member: member.member_id),
)
def test_written_rows_are_read(epoch: int, assignment_epoch: int, some: list[ShareMember]) -> None:
    stored = {GROUP_ROW: rows.encode_group(epoch, assignment_epoch)}
    stored |= {member_row(member.member_id): rows.encode_member(member) for member in some}
    group = rows.decode("g", stored)
    assert (group.epoch, group.assignment_epoch) == (epoch, assignment_epoch)
    assert kinds.type_of("g", stored) is GroupType.SHARE
    assert [
        (
            each.member_id,
            each.client_id,
            each.client_host,
            each.rack_id,
            each.subscription.names,
            each.epoch,
            each.previous_epoch,
            each.assigned,
            each.target,
        )
        for each in group.members
    ] == [
        (
            member.member_id,
            member.client_id,
            member.client_host,
            member.rack_id,
            member.subscription.names,
            member.epoch,
            member.previous_epoch,
            member.assigned,
            member.target,
        )
        for member in some
    ]


def test_many_partitions_in_a_row_take_little_room() -> None:
    target = {uuid.UUID(int=7): tuple(range(100_000))}
    member = ShareMember("m", "c", "/::1", None, Subscription(("orders",)), 1, 0, target, target)
    assert len(rows.encode_member(member)) < 300


MEMBER = b'{"version":1,"client_id":"c","client_host":"h","rack_id":null,"topics":[],"epoch":1,"previous_epoch":0,"target":%b}'


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"": b""},
        {"": b"[]"},
        {"": b'{"version":2,"type":"share","epoch":1,"assignment_epoch":1}'},
        {"": b'{"version":1,"type":"share","epoch":1}'},
        {"": rows.encode_group(1, 1), "m/a": b"{}"},
        {"": rows.encode_group(1, 1), "m/a": MEMBER % b"7"},
        {"": rows.encode_group(1, 1), "m/a": MEMBER % b'{"nobody":[0,1]}'},
        {"": rows.encode_group(1, 1), "m/a": MEMBER % b'{"00000000-0000-0000-0000-000000000001":[0]}'},
    ],
)
def test_other_rows_are_an_error_of_the_machine(stored: dict[str, bytes]) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        rows.decode("g", stored)


def test_rows_of_a_later_version_may_have_more() -> None:
    stored = {"": rows.encode_group(1, 1), "x/other": b"?", "m/a": (MEMBER % b"{}")[:-1] + b',"new":1}'}
    assert [member.member_id for member in rows.decode("g", stored).members] == ["a"]
