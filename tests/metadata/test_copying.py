"""Catalogues with anything in them, copied from each implementation into each."""

import uuid
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.metadata.catalogue import (
    AclRow,
    Catalogue,
    CredentialRow,
    CursorRow,
    PendingOffset,
    QuotaRow,
    RemoteFile,
    StoredOffset,
    TopicRow,
    TransactionRow,
)
from broker.metadata.copying import copy_catalogue
from tests.contract.implementations import CATALOGUES

# Few, so that rows meet; odd ones among them.
TEXTS = st.sampled_from(["", "a", "b", "passing", "passing/0", "a\0", "\1", "é"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=3
)
SMALL = st.integers(0, 3)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(-1, 2**62)
IDS = st.builds(lambda number: uuid.UUID(int=number), st.integers(0, 2**128 - 1))
BYTES = st.binary(max_size=8)
PARTITIONS = st.sets(st.tuples(TEXTS, SMALL), max_size=3).map(lambda found: tuple(sorted(found)))


def rows(row: Any, *fields: Any, key: int) -> Any:
    """Lists of rows of which no two begin with the same ``key`` values."""
    return st.lists(st.builds(row, *fields), max_size=4, unique_by=lambda one: tuple(one[:key]))


@attrs.frozen
class Contents:
    """What a catalogue holds, sorted."""

    topics: list[TopicRow]
    deleted: list[uuid.UUID]
    configs: list[tuple[str, str, str]]
    offsets: list[StoredOffset]
    groups: list[tuple[str, bytes]]
    transactions: list[TransactionRow]
    pending: list[PendingOffset]
    next_producer_id: int
    acls: list[AclRow]
    credentials: list[CredentialRow]
    quotas: list[QuotaRow]
    cursors: list[CursorRow]
    documents: list[tuple[str, str, bytes]]
    remote_files: list[RemoteFile]
    condemned: list[tuple[str, int]]
    meta: dict[str, str]

    @classmethod
    def of(cls, catalogue: Catalogue) -> "Contents":
        return cls(
            catalogue.topics(),
            sorted(catalogue.deleted_topic_ids()),
            sorted(catalogue.load_configs()),
            sorted(catalogue.load_offsets(), key=lambda row: row[:3]),
            sorted(catalogue.load_groups()),
            sorted(catalogue.load_transactions()),
            sorted(catalogue.load_pending_offsets(), key=lambda row: row[:4]),
            catalogue.next_producer_id(),
            sorted(catalogue.load_acls()),
            sorted(catalogue.load_credentials()),
            sorted(catalogue.load_quotas()),
            sorted(catalogue.load_cursors()),
            sorted((kind, *rest) for kind in catalogue.document_kinds() for rest in catalogue.load_documents(kind)),
            sorted(catalogue.load_remote_files()),
            catalogue.condemned_objects(),
            catalogue.load_meta(),
        )


@st.composite
def contents(draw: Any) -> dict[str, Any]:
    """The arguments of ``fill``."""
    topics = draw(
        st.lists(
            st.tuples(TEXTS, IDS, SMALL, st.dictionaries(TEXTS, TEXTS, max_size=2)),
            max_size=4,
            unique_by=lambda t: t[0],
        ).filter(lambda found: len({topic[1] for topic in found}) == len(found))
    )
    taken = {topic[1] for topic in topics}
    files = draw(rows(RemoteFile, TEXTS, TEXTS, SMALL, NUMBERS.filter(lambda n: n >= 0), key=1))
    used = {file.object for file in files}
    return {
        "topics": [TopicRow(*topic) for topic in topics],
        "deleted": draw(st.sets(IDS.filter(lambda one: one not in taken), max_size=3)),
        "configs": draw(st.dictionaries(st.tuples(TEXTS, TEXTS), TEXTS, max_size=4)),
        "offsets": draw(
            rows(StoredOffset, TEXTS, TEXTS, SMALL, NUMBERS, NUMBERS, st.none() | TEXTS, TIMES, TIMES, key=3)
        ),
        "groups": draw(st.dictionaries(TEXTS, BYTES, max_size=3)),
        "transactions": draw(
            rows(
                TransactionRow, TEXTS, NUMBERS, SMALL, SMALL, SMALL, TEXTS, PARTITIONS,
                st.sets(TEXTS, max_size=2).map(lambda found: tuple(sorted(found))), TIMES, TIMES, NUMBERS, NUMBERS, key=1,
            )
        ),
        "pending": draw(
            rows(PendingOffset, TEXTS, TEXTS, TEXTS, SMALL, NUMBERS, NUMBERS, st.none() | TEXTS, TIMES, key=4)
        ),
        "next_id": draw(st.integers(0, 2**62)),
        "acls": draw(st.sets(st.builds(AclRow, SMALL, TEXTS, SMALL, TEXTS, TEXTS, SMALL, SMALL), max_size=3)),
        "credentials": draw(rows(CredentialRow, TEXTS, TEXTS, BYTES, BYTES, BYTES, SMALL, key=2)),
        "quotas": draw(st.dictionaries(st.tuples(TEXTS, TEXTS), st.floats(0.001, 1e300), max_size=3)),
        "cursors": draw(rows(CursorRow, IDS, SMALL, TEXTS, BYTES, key=3)),
        "documents": draw(st.dictionaries(st.tuples(TEXTS, TEXTS), BYTES, max_size=4)),
        "files": files,
        "condemned": draw(st.dictionaries(TEXTS.filter(lambda key: key not in used), TIMES, max_size=3)),
        "meta": draw(st.dictionaries(TEXTS, TEXTS, max_size=3)),
    }  # fmt: skip


def fill(catalogue: Catalogue, of: dict[str, Any]) -> None:
    for topic_id in of["deleted"]:
        catalogue.put_topic(TopicRow("x", topic_id, 1))
        catalogue.delete_topic("x")
    for topic in of["topics"]:
        catalogue.put_topic(topic)
    for (entity, name), value in of["configs"].items():
        catalogue.alter_broker_configs({name: value}, entity)
    catalogue.restore_offsets(of["offsets"])
    for group, blob in of["groups"].items():
        catalogue.save_group(group, blob)
    catalogue.save_transactions(of["transactions"])
    for row in of["pending"]:
        catalogue.add_pending_offsets(row.transactional_id, row.group, [row[2:]])
    catalogue.allocate_producer_ids(of["next_id"])
    catalogue.alter_acls(of["acls"], [])
    catalogue.alter_credentials(of["credentials"], [])
    catalogue.alter_quotas([(*key, value) for key, value in of["quotas"].items()])
    catalogue.save_cursors(of["cursors"])
    catalogue.alter_documents([(*key, body) for key, body in of["documents"].items()])
    for key, since_ms in of["condemned"].items():
        catalogue.alter_remote_files([RemoteFile("x", key, 0, 0)], [], 0)
        catalogue.alter_remote_files([], ["x"], since_ms)
    catalogue.alter_remote_files(of["files"], [], 0)
    for key, value in of["meta"].items():
        catalogue.set_meta(key, value)


PAIRS = [(one, other) for one in CATALOGUES for other in CATALOGUES]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_a_copy_holds_what_the_catalogue_held(one: str, other: str, tmp_path: Path) -> None:
    places = iter(range(1_000_000))

    def opened(name: str) -> Catalogue:
        directory = tmp_path / str(next(places))
        directory.mkdir()
        return CATALOGUES[name](directory)()

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(contents())
    def check(of: dict[str, Any]) -> None:
        source, target = opened(one), opened(other)
        fill(source, of)
        copy_catalogue(source, target)
        expected = Contents.of(source)
        assert expected == Contents.of(target)
        assert (of["topics"], of["offsets"]) == (
            sorted(expected.topics, key=of["topics"].index),
            sorted(expected.offsets, key=of["offsets"].index),
        )
        source.close()
        target.close()

    check()


@pytest.mark.parametrize("name", list(CATALOGUES))
def test_a_catalogue_with_something_in_it_takes_no_copy(name: str, tmp_path: Path) -> None:
    opened = CATALOGUES[name](tmp_path)()
    opened.set_meta("cluster_id", "x")
    with pytest.raises(StorageError, match="is not empty"):
        copy_catalogue(CATALOGUES["simulated"](tmp_path)(), opened)
    opened.close()


def test_large_tables_are_copied_in_parts(tmp_path: Path) -> None:
    source = CATALOGUES["simulated"](tmp_path)()
    source.commit_offsets("g", [("t", number, number, 0, "", 0) for number in range(12_000)])
    target = CATALOGUES["sqlite"](tmp_path)()
    copy_catalogue(source, target)
    assert 12_000 == len(list(target.load_offsets()))
    target.close()
