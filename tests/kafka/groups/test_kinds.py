"""The rows of groups, and a generation, as the catalogue stores them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.kafka.groups import kinds
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.kinds import StoredGroup, decode, encode
from broker.kafka.groups.values import GroupSnapshot, MemberSnapshot
from broker.metadata.sqlite import SqliteCatalogue

TEXTS = st.text(alphabet=st.sampled_from("a%025\0ü/"), max_size=8)


@given(st.dictionaries(TEXTS, st.dictionaries(TEXTS, st.binary(max_size=3), min_size=1, max_size=3), max_size=5))
def test_every_group_gets_back_its_own_rows(groups: dict[str, dict[str, bytes]]) -> None:
    documents = [
        (kinds.prefix_of(group_id) + row, body) for group_id, rows in groups.items() for row, body in rows.items()
    ]
    assert len(dict(documents)) == len(documents)
    assert dict(kinds.by_group(documents)) == groups


@given(TEXTS, TEXTS, TEXTS)
def test_group_prefix_begins_no_key_of_another_group(one: str, other: str, row: str) -> None:
    begins = (kinds.prefix_of(other) + row).startswith(kinds.prefix_of(one))
    assert begins == (one == other)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"type": "other"}', b"\xff", b"1"])
def test_rows_that_name_no_kind_cannot_be_read(body: bytes) -> None:
    with pytest.raises(StorageError, match="do not name a kind"):
        kinds.type_of("g", {"": body})


def test_rows_without_group_row_cannot_be_read() -> None:
    with pytest.raises(StorageError, match="do not name a kind"):
        kinds.type_of("g", {"m/x": b"{}"})


def test_save_deletes_replaced_state_and_puts_its_rows(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(str(tmp_path / "catalogue"))
    catalogue.save_group("g", b"classic")
    kinds.Save("g", {"": b"{}", "m/x": b"1"}, GroupType.CLASSIC)(catalogue)
    assert list(catalogue.load_groups()) == []
    kinds.Save("g", {"m/x": None, "m/y": b"2"})(catalogue)
    assert dict(kinds.by_group(catalogue.load_documents(kinds.KIND))) == {"g": {"": b"{}", "m/y": b"2"}}
    kinds.Delete("g", GroupType.CONSUMER)(catalogue)
    assert list(catalogue.load_documents(kinds.KIND)) == []
    catalogue.close()


# Generations -----------------------------------------------------------------------------------------------------


names = st.text(max_size=20)
members = st.builds(
    MemberSnapshot,
    names,
    st.none() | names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**31 - 1),
    st.lists(st.tuples(names, st.binary(max_size=50)), max_size=3).map(tuple),
    st.binary(max_size=50),
)
snapshots = st.builds(
    GroupSnapshot,
    names,
    st.integers(0, 2**31 - 1),
    st.none() | names,
    st.none() | names,
    st.lists(members, max_size=3).map(tuple),
)


@given(snapshot=snapshots, since_ms=st.integers(0, 2**53))
def test_encoded_generation_is_decoded_unchanged(snapshot: GroupSnapshot, since_ms: int) -> None:
    assert decode("g", encode(snapshot, since_ms)) == StoredGroup(snapshot, since_ms)


GOOD = encode(GroupSnapshot("consumer", 1, "range", "a", (MemberSnapshot("a", None, "c", "/h", 1, 1, (), b""),)), 5)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        GOOD[:-1],
        GOOD.replace(b'"version":1', b'"version":2'),
        GOOD.replace(b'"a"', b"null,", 1),
    ],
)
def test_decoding_error_names_its_group(damaged: bytes) -> None:
    with pytest.raises(StorageError, match="'g'"):
        decode("g", damaged)
