"""The contract of every Catalogue, SQLite's, PostgreSQL's and the simulator's: changes survive closing and reopening."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

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
from tests.contract.implementations import CATALOGUES

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


class Reopening:
    """The catalogue under test; ``again()`` closes and reopens it."""

    def __init__(self, open_it: Callable[[], Catalogue]) -> None:
        self._open = open_it
        self.now = open_it()

    def again(self) -> Catalogue:
        self.now.close()
        self.now = self._open()
        return self.now


@pytest.fixture(params=list(CATALOGUES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def catalogue(name: str, tmp_path: Path) -> Iterator[Reopening]:
    reopening = Reopening(CATALOGUES[name](tmp_path))
    yield reopening
    reopening.now.close()


def test_a_new_catalogue_is_empty(catalogue: Reopening) -> None:
    new = catalogue.now
    assert new.topics() == []
    assert new.deleted_topic_ids() == set()
    assert new.broker_configs() == {}
    assert list(new.load_offsets()) == []
    assert list(new.load_groups()) == []
    assert new.meta("cluster_id") is None


def test_topics_stay_and_come_sorted(catalogue: Reopening) -> None:
    catalogue.now.put_topic(TopicRow("b", B, 3, {"retention.ms": "5", "cleanup.policy": "compact"}))
    catalogue.now.put_topic(TopicRow("a", A, 1))
    assert catalogue.again().topics() == [
        TopicRow("a", A, 1, {}),
        TopicRow("b", B, 3, {"cleanup.policy": "compact", "retention.ms": "5"}),
    ]


@pytest.mark.parametrize("count", [1, 3, 300])
def test_topics_are_found_by_their_names(catalogue: Reopening, count: int) -> None:
    rows = [TopicRow(f"{number:03}", uuid.UUID(int=number + 1), 1) for number in range(count)]
    for row in [*rows, TopicRow("other", uuid.UUID(int=999), 1)]:
        catalogue.now.put_topic(row)
    assert rows == catalogue.now.topics([*(row.name for row in reversed(rows)), "missing"])
    assert [] == catalogue.now.topics([])


def test_topic_is_replaced_by_topic_of_same_name(catalogue: Reopening) -> None:
    catalogue.now.put_topic(TopicRow("a", A, 1, {"x": "1"}))
    catalogue.now.put_topic(TopicRow("a", A, 2))
    assert catalogue.again().topics() == [TopicRow("a", A, 2, {})]


def test_topic_is_replaced_by_topic_of_same_id(catalogue: Reopening) -> None:
    catalogue.now.put_topic(TopicRow("a", A, 1))
    catalogue.now.put_topic(TopicRow("b", B, 1))
    catalogue.now.put_topic(TopicRow("c", A, 2))
    assert catalogue.again().topics() == [TopicRow("b", B, 1), TopicRow("c", A, 2)]


def test_deleted_topic_is_remembered_until_forgotten(catalogue: Reopening) -> None:
    catalogue.now.put_topic(TopicRow("a", A, 1))
    catalogue.now.delete_topic("a")
    catalogue.now.delete_topic("a")
    catalogue.now.delete_topic("never was")
    assert catalogue.again().topics() == []
    assert catalogue.now.deleted_topic_ids() == {A}
    catalogue.now.put_topic(TopicRow("a", B, 1))
    catalogue.now.forget_deleted_topics([A, B])
    assert catalogue.again().deleted_topic_ids() == set()
    assert catalogue.now.topics() == [TopicRow("a", B, 1, {})]


def test_settings_of_brokers_are_set_and_taken_back(catalogue: Reopening) -> None:
    catalogue.now.alter_broker_configs({"a": "1", "b": "2"})
    catalogue.now.alter_broker_configs({"a": "3"}, "1")
    catalogue.now.alter_broker_configs({"a": None, "b": "4", "never": None})
    assert catalogue.again().broker_configs() == {"b": "4"}
    assert catalogue.now.broker_configs("1") == {"a": "3"}
    assert catalogue.now.broker_configs("2") == {}


def test_settings_of_entities_are_listed_by_name_prefix(catalogue: Reopening) -> None:
    for entity in ("", "1", "group:a", "group:ü", "groups"):
        catalogue.now.alter_broker_configs({"a": "1", "b": entity}, entity)
    catalogue.now.alter_broker_configs({"a": "1"}, "group:gone")
    catalogue.now.alter_broker_configs({"a": None}, "group:gone")
    expected = {"group:a": {"a": "1", "b": "group:a"}, "group:ü": {"a": "1", "b": "group:ü"}}
    assert catalogue.again().configs_by_entity("group:") == expected
    assert catalogue.now.configs_by_entity("other") == {}


def test_offsets_are_committed_with_all_their_fields(catalogue: Reopening) -> None:
    catalogue.now.commit_offsets("g", [("t", 0, 5, 3, "näher ⇒", 1_000), ("t", 1, 2**62, -1, "", 2_000)])
    catalogue.now.commit_offsets("g", [("t", 0, 6, -1, None, 3_000)])
    catalogue.now.commit_offsets("g", [])
    assert sorted(catalogue.again().load_offsets()) == [
        StoredOffset("g", "t", 0, 6, -1, None, 3_000, -1),
        StoredOffset("g", "t", 1, 2**62, -1, "", 2_000, -1),
    ]


def keys(catalogue: Catalogue) -> list[tuple[str, str, int]]:
    return sorted((offset.group, offset.topic, offset.partition) for offset in catalogue.load_offsets())


def test_offsets_are_deleted_singly_by_group_and_topic(catalogue: Reopening) -> None:
    for group in ("g", "h"):
        catalogue.now.commit_offsets(group, [("t", 0, 1, 0, "", 0), ("t", 1, 1, 0, "", 0), ("u", 0, 1, 0, "", 0)])
    catalogue.now.delete_offsets("g", [("t", 1), ("t", 7)])
    assert keys(catalogue.again()) == [("g", "t", 0), ("g", "u", 0), ("h", "t", 0), ("h", "t", 1), ("h", "u", 0)]
    catalogue.now.delete_topic_offsets("t")
    assert keys(catalogue.again()) == [("g", "u", 0), ("h", "u", 0)]
    catalogue.now.delete_offsets("h", None)
    assert keys(catalogue.again()) == [("g", "u", 0)]


def test_groups_are_saved_replaced_and_deleted_without_offsets(catalogue: Reopening) -> None:
    catalogue.now.save_group("g", b"one")
    catalogue.now.save_group("g", b"\0two")
    catalogue.now.save_group("h", b"")
    catalogue.now.commit_offsets("h", [("t", 0, 1, 0, "", 0)])
    catalogue.now.delete_group("h")
    catalogue.now.delete_group("never was")
    assert list(catalogue.again().load_groups()) == [("g", b"\0two")]
    assert keys(catalogue.now) == [("h", "t", 0)]


def test_acls_are_added_and_removed(catalogue: Reopening) -> None:
    reads = AclRow(2, "ü ⇒", 3, "User:a,b", "*", 3, 3)
    denied = reads._replace(permission=2)
    catalogue.now.alter_acls([reads, denied, reads], [])
    catalogue.now.alter_acls([denied], [reads, reads._replace(host="10.0.0.1")])
    assert list(catalogue.again().load_acls()) == [denied]
    catalogue.now.alter_acls([reads], [reads, denied])
    assert list(catalogue.again().load_acls()) == [reads]


def test_credentials_are_replaced_and_deleted(catalogue: Reopening) -> None:
    alice = CredentialRow("alice", "SCRAM-SHA-256", b"\0salt", b"stored", b"server", 4096)
    bob = CredentialRow("bob", "SCRAM-SHA-512", b"s", b"k", b"v", 2**31 - 1)
    catalogue.now.alter_credentials([alice, bob, alice._replace(mechanism="SCRAM-SHA-512")], [])
    catalogue.now.alter_credentials(
        [alice._replace(salt=b"new")], [("alice", "SCRAM-SHA-512"), ("nobody", "SCRAM-SHA-256")]
    )
    assert sorted(catalogue.again().load_credentials()) == [alice._replace(salt=b"new"), bob]


def test_quotas_are_set_and_removed(catalogue: Reopening) -> None:
    catalogue.now.alter_quotas([("user=a", "producer_byte_rate", 1e12), ("user=a", "request_percentage", 0.5)])
    catalogue.now.alter_quotas(
        [("user=a", "producer_byte_rate", None), ("ip=::1", "never", None), ("ip=::1", "rate", 3)]
    )
    assert sorted(catalogue.again().load_quotas()) == [
        QuotaRow("ip=::1", "rate", 3),
        QuotaRow("user=a", "request_percentage", 0.5),
    ]


def test_cursors_are_kept_replaced_and_deleted(catalogue: Reopening) -> None:
    topic_id, other_id = uuid.UUID(int=1), uuid.UUID(int=2)
    rows = [
        CursorRow(topic_id, 0, "a", b""),
        CursorRow(topic_id, 1, "a", b"\x00\xff"),
        CursorRow(topic_id, 0, "ü", b"x"),
    ]
    catalogue.now.save_cursors([*rows, CursorRow(other_id, 0, "a", b"y")])
    catalogue.now.save_cursors([CursorRow(topic_id, 0, "a", b"later")])
    catalogue.now.delete_cursors([(topic_id, 1, "a"), (topic_id, 7, "never")])
    assert sorted(catalogue.again().load_cursors()) == [
        CursorRow(topic_id, 0, "a", b"later"),
        CursorRow(topic_id, 0, "ü", b"x"),
        CursorRow(other_id, 0, "a", b"y"),
    ]
    catalogue.now.delete_topic_cursors([topic_id])
    assert list(catalogue.again().load_cursors()) == [CursorRow(other_id, 0, "a", b"y")]


def test_documents_are_set_and_removed_by_kind(catalogue: Reopening) -> None:
    catalogue.now.alter_documents([("k", "a", b"1"), ("k", "b", b"2"), ("l", "a", b"3")])
    catalogue.now.alter_documents([("k", "a", None), ("k", "b", b""), ("k", "never", None)])
    assert list(catalogue.again().load_documents("k")) == [("b", b"")]
    assert list(catalogue.now.load_documents("l")) == [("a", b"3")]


def test_documents_are_loaded_by_key_prefix(catalogue: Reopening) -> None:
    keys = ["a", "a\0", "a\0b", "a\1", "aü\0", "b\0"]
    catalogue.now.alter_documents([(kind, key, b"1") for kind in ("k", "l") for key in keys])
    assert {("a\0", b"1"), ("a\0b", b"1")} == set(catalogue.again().load_documents("k", "a\0"))


def test_documents_are_added_only_where_there_are_none(catalogue: Reopening) -> None:
    catalogue.now.alter_documents([("k", "a", b"1")])
    catalogue.now.add_documents([("k", "b", b"2"), ("k", "a", b"2"), ("l", "a", b"2")])
    catalogue.now.add_documents([])
    assert {("a", b"1"), ("b", b"2")} == set(catalogue.again().load_documents("k"))
    assert [("a", b"2")] == list(catalogue.now.load_documents("l"))


def test_documents_are_deleted_unless_they_have_a_body(catalogue: Reopening) -> None:
    catalogue.now.alter_documents([("k", key, body) for key, body in (("a", b"1"), ("b", b"2"), ("c", b"1"))])
    catalogue.now.delete_other_documents("k", ["a", "b", "never"], b"2")
    assert {("b", b"2"), ("c", b"1")} == set(catalogue.again().load_documents("k"))


def test_documents_are_deleted_by_key_prefix(catalogue: Reopening) -> None:
    keys = ["a\0", "a\0m/x", "a\0\0", "a", "a\1", "b\0", "aü\0"]
    catalogue.now.alter_documents([(kind, key, b"1") for kind in ("k", "l") for key in keys])
    catalogue.now.delete_documents("k", "a\0")
    assert {key for key, _ in catalogue.again().load_documents("k")} == {"a", "a\1", "b\0", "aü\0"}
    assert {key for key, _ in catalogue.now.load_documents("l")} == set(keys)
    catalogue.now.delete_documents("k", "nothing")
    catalogue.now.together([lambda inside: inside.delete_documents("k", "b")])
    assert {key for key, _ in catalogue.again().load_documents("k")} == {"a", "a\1", "aü\0"}


def remote(path: str, key: str, position: int = 0, size: int = 1) -> RemoteFile:
    return RemoteFile(path, key, position, size)


def test_remote_files_are_put_replaced_and_removed(catalogue: Reopening) -> None:
    catalogue.now.alter_remote_files(
        [remote("t-0/1.log", "A", 0, 2**40), remote("t-0/1.index", "A", 2**40, 8), remote("t-0/2.log", "B")], [], 100
    )
    catalogue.now.alter_remote_files([remote("t-0/2.log", "C", 5, 0)], ["t-0/1.index", "never was"], 200)
    assert sorted(catalogue.again().load_remote_files()) == [
        remote("t-0/1.log", "A", 0, 2**40),
        remote("t-0/2.log", "C", 5, 0),
    ]
    assert catalogue.now.condemned_objects() == [("B", 200)]  # a file still refers to A


def test_object_that_no_file_refers_to_is_condemned_until_forgotten(catalogue: Reopening) -> None:
    catalogue.now.alter_remote_files([remote("a", "A"), remote("b", "A"), remote("c", "C")], [], 100)
    catalogue.now.alter_remote_files([], ["a", "c"], 200)
    assert catalogue.again().condemned_objects() == [("C", 200)]
    catalogue.now.alter_remote_files([], ["b", "c"], 300)
    assert catalogue.again().condemned_objects() == [("A", 300), ("C", 200)]
    catalogue.now.alter_remote_files([remote("d", "A")], [], 400)
    assert catalogue.again().condemned_objects() == [("C", 200)]
    catalogue.now.forget_objects(["C", "never was"])
    assert catalogue.again().condemned_objects() == []


def test_remote_files_are_renamed_singly_and_by_directory(catalogue: Reopening) -> None:
    now = catalogue.now
    now.alter_remote_files(
        [remote(path, path) for path in ("t-1/a", "t-1/b/c", "t-10/a", "t-2/a", "t-1.x", "t-1")], [], 1
    )
    now.rename_remote_files("t-1", "t-2", 200)
    now.rename_remote_files("t-10/a", "t-10/b", 200)
    now.rename_remote_files("never was", "t-2", 200)
    now.rename_remote_files("t-2/a", "t-2/a", 300)
    assert sorted(catalogue.again().load_remote_files()) == [
        remote("t-1.x", "t-1.x"),
        remote("t-10/b", "t-10/a"),
        remote("t-2", "t-1"),
        remote("t-2/a", "t-1/a"),
        remote("t-2/b/c", "t-1/b/c"),
    ]
    assert catalogue.now.condemned_objects() == [("t-2/a", 200)]


def transaction(name: str = "x", phase: str = "Ongoing", **fields: object) -> TransactionRow:
    row = TransactionRow(name, 7, 1, -1, 60_000, phase, (("t", 0), ("u", 3)), ("g", "h"), 1_000, 2_000, -1, -1)
    return row._replace(**fields)


def test_transactions_are_kept_replaced_and_deleted(catalogue: Reopening) -> None:
    catalogue.now.save_transactions([transaction("x")])
    catalogue.now.save_transactions([transaction("y", partitions=(), groups=()), transaction("ü")])
    catalogue.now.save_transactions(
        [transaction("x", "PrepareCommit", epoch=2, last_epoch=1, last_producer_id=7, next_producer_id=9)]
    )
    catalogue.now.delete_transaction("ü")
    catalogue.now.delete_transaction("never was")
    assert sorted(catalogue.again().load_transactions()) == [
        transaction("x", "PrepareCommit", epoch=2, last_epoch=1, last_producer_id=7, next_producer_id=9),
        transaction("y", partitions=(), groups=()),
    ]


def test_additions_to_open_transaction_join_its_row(catalogue: Reopening) -> None:
    catalogue.now.save_transactions([transaction("x"), transaction("y", partitions=(), groups=())])
    catalogue.now.add_to_transaction("x", [("t", 1), ("u", 3)], ["i"])
    catalogue.now.add_to_transaction("x", [("s", 7)], [])
    catalogue.now.add_to_transaction("y", [], ["g"])
    assert sorted(catalogue.again().load_transactions()) == [
        transaction("x", partitions=(("s", 7), ("t", 0), ("t", 1), ("u", 3)), groups=("g", "h", "i")),
        transaction("y", partitions=(), groups=("g",)),
    ]
    # A row written as a whole is stored completely.
    catalogue.now.save_transactions([transaction("x", "PrepareCommit", partitions=(("t", 1),), groups=())])
    catalogue.now.complete_transaction(transaction("y", "CompleteAbort", partitions=(), groups=()), False)
    catalogue.now.add_to_transaction("x", [("z", 0)], [])
    catalogue.now.delete_transaction("x")
    catalogue.now.save_transactions([transaction("x")])
    assert sorted(catalogue.again().load_transactions()) == [
        transaction("x"),
        transaction("y", "CompleteAbort", partitions=(), groups=()),
    ]


def pending(catalogue: Catalogue) -> list[tuple[str, str, str, int, int]]:
    return sorted(row[:5] for row in catalogue.load_pending_offsets())


def test_transaction_offsets_count_once_it_is_completed(catalogue: Reopening) -> None:
    catalogue.now.commit_offsets("g", [("t", 0, 1, 0, "old", 10)])
    catalogue.now.add_pending_offsets("x", "g", [("t", 0, 5, 3, "new", 20), ("t", 1, 6, -1, None, 20)])
    catalogue.now.add_pending_offsets("x", "g", [("t", 0, 7, 3, "newer", 30)])
    catalogue.now.add_pending_offsets("y", "g", [("t", 0, 9, 3, "other", 40)])
    assert list(catalogue.again().load_offsets()) == [StoredOffset("g", "t", 0, 1, 0, "old", 10, -1)]
    assert PendingOffset("x", "g", "t", 0, 7, 3, "newer", 30) in list(catalogue.now.load_pending_offsets())
    catalogue.now.complete_transaction(transaction("x", "CompleteCommit"), True)
    assert sorted(catalogue.again().load_offsets()) == [
        StoredOffset("g", "t", 0, 7, 3, "newer", 30, -1),
        StoredOffset("g", "t", 1, 6, -1, None, 20, -1),
    ]
    assert list(catalogue.now.load_transactions()) == [transaction("x", "CompleteCommit")]
    assert pending(catalogue.now) == [("y", "g", "t", 0, 9)]


def test_offsets_of_an_aborted_transaction_are_dropped(catalogue: Reopening) -> None:
    catalogue.now.add_pending_offsets("x", "g", [("t", 0, 5, 3, "new", 20)])
    catalogue.now.complete_transaction(transaction("x", "CompleteAbort"), False)
    assert list(catalogue.again().load_offsets()) == []
    assert pending(catalogue.now) == []
    assert list(catalogue.now.load_transactions()) == [transaction("x", "CompleteAbort")]


@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_of_one_group_end_and_those_of_others_do_not(catalogue: Reopening, commit: bool) -> None:
    catalogue.now.commit_offsets("g", [("t", 0, 1, 0, "old", 10)])
    for transactional_id, group, offset in (("x", "g", 5), ("x", "h", 6), ("y", "g", 7)):
        catalogue.now.add_pending_offsets(transactional_id, group, [("t", 0, offset, 3, "new", 20)])
    catalogue.now.end_pending_offsets("x", "g", commit)
    assert [("x", "h", "t", 0, 6), ("y", "g", "t", 0, 7)] == pending(catalogue.again())
    stored = (
        StoredOffset("g", "t", 0, 5, 3, "new", 20, -1) if commit else StoredOffset("g", "t", 0, 1, 0, "old", 10, -1)
    )
    assert [stored] == list(catalogue.now.load_offsets())
    catalogue.now.end_pending_offsets("x", "g", commit)  # again
    assert [stored] == list(catalogue.now.load_offsets())


def test_pending_offsets_are_deleted_with_topic_and_transaction(catalogue: Reopening) -> None:
    catalogue.now.add_pending_offsets("x", "g", [("t", 0, 5, 3, "", 20), ("u", 0, 5, 3, "", 20)])
    catalogue.now.add_pending_offsets("y", "g", [("u", 0, 5, 3, "", 20)])
    catalogue.now.delete_topic_offsets("t")
    assert pending(catalogue.again()) == [("x", "g", "u", 0, 5), ("y", "g", "u", 0, 5)]
    catalogue.now.delete_transaction("x")
    assert pending(catalogue.again()) == [("y", "g", "u", 0, 5)]


def test_changes_that_are_made_together_are_one(catalogue: Reopening) -> None:
    now = catalogue.now
    now.together(
        [
            lambda inside: inside.commit_offsets("g", [("t", 0, 1, 0, "", 0)]),
            lambda inside: inside.add_pending_offsets("x", "g", [("t", 1, 5, 3, "", 20)]),
            lambda inside: inside.save_transactions([transaction("x", "PrepareCommit")]),
            lambda inside: inside.complete_transaction(transaction("x", "CompleteCommit"), True),
            lambda inside: inside.save_group("g", b"blob"),
        ]
    )
    now.together([])
    assert keys(catalogue.again()) == [("g", "t", 0), ("g", "t", 1)]
    assert list(catalogue.now.load_transactions()) == [transaction("x", "CompleteCommit")]
    assert list(catalogue.now.load_groups()) == [("g", b"blob")]


def test_failed_joint_changes_are_all_undone(catalogue: Reopening) -> None:
    def fails(inside: Catalogue) -> None:
        raise StorageError("no")

    with pytest.raises(StorageError):
        catalogue.now.together([lambda inside: inside.commit_offsets("g", [("t", 0, 1, 0, "", 0)]), fails])
    assert keys(catalogue.now) == keys(catalogue.again()) == []
    catalogue.now.commit_offsets("g", [("t", 0, 1, 0, "", 0)])
    assert keys(catalogue.again()) == [("g", "t", 0)]


def test_no_producer_id_is_given_out_twice(catalogue: Reopening) -> None:
    first = catalogue.now.allocate_producer_ids(1)
    second = catalogue.now.allocate_producer_ids(1000)
    third = catalogue.again().allocate_producer_ids(1)
    assert (first, second, third) == (0, 1, 1001)


def test_meta_values_are_kept(catalogue: Reopening) -> None:
    catalogue.now.set_meta("cluster_id", "x")
    catalogue.now.set_meta("cluster_id", "y")
    assert catalogue.again().meta("cluster_id") == "y"
    assert catalogue.now.meta("other") is None


def test_everything_can_be_listed_for_a_copy(catalogue: Reopening) -> None:
    now = catalogue.now
    assert (list(now.load_configs()), now.document_kinds(), now.load_meta(), now.next_producer_id()) == ([], [], {}, 0)
    now.alter_broker_configs({"a": "1", "b": "2"})
    now.alter_broker_configs({"a": "3"}, "group:g")
    now.alter_documents([("k", "a", b"1"), ("k", "b", b"2"), ("j", "a", b"3"), ("gone", "a", b"")])
    now.alter_documents([("gone", "a", None)])
    now.set_meta("cluster_id", "x")
    now.allocate_producer_ids(7)
    again = catalogue.again()
    assert sorted(again.load_configs()) == [("", "a", "1"), ("", "b", "2"), ("group:g", "a", "3")]
    assert again.document_kinds() == ["j", "k"]
    assert again.load_meta() == {"cluster_id": "x"}
    assert again.next_producer_id() == 7


def test_restored_offsets_keep_when_they_expire(catalogue: Reopening) -> None:
    catalogue.now.commit_offsets("g", [("t", 0, 1, 0, "", 10)])
    rows = [StoredOffset("g", "t", 0, 5, 3, None, 20, 99), StoredOffset("h", "t", 0, 6, -1, "", 30, -1)]
    catalogue.now.restore_offsets(rows)
    assert sorted(catalogue.again().load_offsets()) == rows
    catalogue.now.commit_offsets("g", [("t", 0, 6, 0, "", 40)])  # as the group says from now on
    assert StoredOffset("g", "t", 0, 6, 0, "", 40, -1) in list(catalogue.again().load_offsets())


# What a database may have special ideas about: the end of a string, escapes, placeholders, case, and characters beyond 16 bits.
ODD = [
    "\0",
    "\1",
    "\2",
    "\0\1",
    "\1\0",
    "a\0b",
    "a\1b",
    "%s",
    "?",
    "\\",
    "'",
    "A",
    "a",
    "é",
    "\U0001f600",
    "\ue000",
    "~",
    " ",
]


def test_any_text_can_be_stored_wherever_there_is_text(catalogue: Reopening) -> None:
    now = catalogue.now
    for number, odd in enumerate(ODD):
        now.put_topic(TopicRow(odd, uuid.UUID(int=number), 1, {odd: odd}))
        now.alter_broker_configs({odd: odd}, odd)
        now.commit_offsets(odd, [(odd, 0, 1, 0, odd, 0)])
        now.save_group(odd, odd.encode())
        now.save_transactions([transaction(odd, odd, partitions=((odd, 0),), groups=(odd,))])
        now.add_to_transaction(odd, [(odd, 1)], [])
        now.add_pending_offsets(odd, odd, [(odd, 0, 1, 0, odd, 0)])
        now.alter_acls([AclRow(1, odd, 2, odd, odd, 3, 4)], [])
        now.alter_credentials([CredentialRow(odd, odd, b"", b"", b"", 1)], [])
        now.alter_quotas([(odd, odd, 1.5)])
        now.save_cursors([CursorRow(A, 0, odd, b"")])
        now.alter_documents([(odd, odd, b"")])
        now.alter_remote_files([remote(odd, odd)], [], 0)
        now.set_meta(odd, odd)
    again = catalogue.again()
    in_order = sorted(ODD)
    assert [row.name for row in again.topics()] == in_order
    assert [dict(row.configs) for row in again.topics()] == [{odd: odd} for odd in in_order]
    assert sorted(again.load_configs()) == [(odd, odd, odd) for odd in in_order]
    assert sorted(again.load_offsets()) == [StoredOffset(odd, odd, 0, 1, 0, odd, 0, -1) for odd in in_order]
    assert sorted(again.load_groups()) == [(odd, odd.encode()) for odd in in_order]
    assert sorted(again.load_transactions()) == [
        transaction(odd, odd, partitions=((odd, 0), (odd, 1)), groups=(odd,)) for odd in in_order
    ]
    assert sorted(again.load_pending_offsets()) == [PendingOffset(odd, odd, odd, 0, 1, 0, odd, 0) for odd in in_order]
    assert sorted(again.load_acls()) == [AclRow(1, odd, 2, odd, odd, 3, 4) for odd in in_order]
    assert sorted(again.load_credentials()) == [CredentialRow(odd, odd, b"", b"", b"", 1) for odd in in_order]
    assert sorted(again.load_quotas()) == [QuotaRow(odd, odd, 1.5) for odd in in_order]
    assert sorted(again.load_cursors()) == [CursorRow(A, 0, odd, b"") for odd in in_order]
    assert again.document_kinds() == in_order
    assert sorted(again.load_remote_files()) == [remote(odd, odd) for odd in in_order]
    assert again.load_meta() == {odd: odd for odd in ODD}
    for odd in ODD:
        assert again.broker_configs(odd) == {odd: odd}
        assert again.meta(odd) == odd


def test_texts_are_found_by_their_beginning_whatever_it_is(catalogue: Reopening) -> None:
    keys = [odd + rest for odd in ODD for rest in ("", *ODD)]
    for odd in [*ODD, "\ud7ff", "a\U0010ffff"]:
        catalogue.now.alter_documents(
            [("k", key, b"") for key in [*keys, "\ud7ff\uffff", "a\U0010ffff\U0010ffff", "b"]]
        )
        left = {key for key, _ in catalogue.now.load_documents("k") if not key.startswith(odd)}
        catalogue.now.delete_documents("k", odd)
        assert {key for key, _ in catalogue.now.load_documents("k")} == left


def test_numbers_and_bytes_are_kept_to_the_last_bit(catalogue: Reopening) -> None:
    least, most = -(2**63), 2**63 - 1
    values = [0.1, 1e308, 5e-324, 1 / 3, 2.0**53 + 2]
    catalogue.now.commit_offsets("g", [("t", 2**31 - 1, most, -(2**31), "", least)])
    catalogue.now.alter_quotas([("e", str(number), value) for number, value in enumerate(values)])
    catalogue.now.alter_documents([("k", "a", bytes(range(256))), ("k", "b", b"x" * 1_000_000)])
    again = catalogue.again()
    assert list(again.load_offsets()) == [StoredOffset("g", "t", 2**31 - 1, most, -(2**31), "", least, -1)]
    assert [str(row.value) for row in sorted(again.load_quotas())] == [str(value) for value in values]
    assert dict(again.load_documents("k")) == {"a": bytes(range(256)), "b": b"x" * 1_000_000}


def test_the_last_of_rows_with_the_same_key_counts(catalogue: Reopening) -> None:
    catalogue.now.commit_offsets("g", [("t", 0, 2, 0, "", 0), ("s", 0, 9, 0, "", 0), ("t", 0, 1, 0, "", 0)])
    catalogue.now.alter_documents([("k", "a", b"2"), ("k", "a", b"1"), ("k", "b", b""), ("k", "b", None)])
    catalogue.now.save_cursors([CursorRow(A, 0, "s", b"2"), CursorRow(A, 0, "s", b"1")])
    assert [row.offset for row in sorted(catalogue.again().load_offsets())] == [9, 1]
    assert list(catalogue.now.load_documents("k")) == [("a", b"1")]
    assert list(catalogue.now.load_cursors()) == [CursorRow(A, 0, "s", b"1")]


def test_thousands_of_rows_are_one_change(catalogue: Reopening) -> None:
    catalogue.now.commit_offsets("g", [("t", number, number, 0, "", 0) for number in range(3_000)])
    catalogue.now.alter_remote_files([remote(f"t/{number}", f"o{number % 7}") for number in range(3_000)], [], 0)
    catalogue.now.rename_remote_files("t", "u", 0)
    catalogue.now.alter_remote_files([], [f"u/{number}" for number in range(3_000)], 5)
    assert len(list(catalogue.again().load_offsets())) == 3_000
    assert catalogue.now.condemned_objects() == [(f"o{number}", 5) for number in range(7)]


NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(0, 2)


def test_it_behaves_like_plain_dicts_whatever_is_done(name: str, tmp_path: Path) -> None:
    places = iter(range(1_000_000))

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            directory = tmp_path / str(next(places))
            directory.mkdir()
            self.real = Reopening(CATALOGUES[name](directory))
            self.topics: dict[str, TopicRow] = {}
            self.offsets: dict[tuple[str, str, int], StoredOffset] = {}
            self.next_id = 0

        @rule(name=NAMES, partitions=NUMBERS, configs=st.dictionaries(NAMES, NAMES))
        def put(self, name: str, partitions: int, configs: dict[str, str]) -> None:
            row = TopicRow(name, uuid.uuid5(A, name), partitions, configs)
            self.real.now.put_topic(row)
            self.topics[name] = row

        @rule(name=NAMES)
        def delete(self, name: str) -> None:
            self.real.now.delete_topic(name)
            self.topics.pop(name, None)

        @rule(group=NAMES, partitions=st.dictionaries(st.tuples(NAMES, NUMBERS), NUMBERS))
        def commit(self, group: str, partitions: dict[tuple[str, int], int]) -> None:
            self.real.now.commit_offsets(group, [(t, p, offset, 0, "m", 7) for (t, p), offset in partitions.items()])
            for (topic, partition), offset in partitions.items():
                row = StoredOffset(group, topic, partition, offset, 0, "m", 7, -1)
                self.offsets[group, topic, partition] = row

        @rule(group=NAMES, partitions=st.none() | st.lists(st.tuples(NAMES, NUMBERS)))
        def forget(self, group: str, partitions: list[tuple[str, int]] | None) -> None:
            self.real.now.delete_offsets(group, partitions)
            for key in list(self.offsets):
                if key[0] == group and (partitions is None or key[1:] in partitions):
                    del self.offsets[key]

        @rule(topic=NAMES)
        def forget_topic(self, topic: str) -> None:
            self.real.now.delete_topic_offsets(topic)
            for key in [key for key in self.offsets if key[1] == topic]:
                del self.offsets[key]

        @rule(n=st.integers(1, 5))
        def allocate(self, n: int) -> None:
            assert self.real.now.allocate_producer_ids(n) == self.next_id
            self.next_id += n

        @rule()
        def reopen(self) -> None:
            self.real.again()

        @rule()
        def compare(self) -> None:
            assert self.real.now.topics() == [row for _, row in sorted(self.topics.items())]
            assert sorted(self.real.now.load_offsets()) == sorted(self.offsets.values())

        def teardown(self) -> None:
            self.compare()
            self.real.now.close()

    run_state_machine_as_test(Machine, settings=settings(max_examples=15, stateful_step_count=20))


PATHS = st.sampled_from(["a", "a/x", "a/y", "b/x", "a.", "b"])
FILES = st.builds(RemoteFile, PATHS, st.sampled_from(["A", "B", "C"]), NUMBERS, NUMBERS)


def test_exactly_the_objects_without_files_are_condemned(name: str, tmp_path: Path) -> None:
    places = iter(range(1_000_000))

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            directory = tmp_path / str(next(places))
            directory.mkdir()
            self.real = Reopening(CATALOGUES[name](directory))
            self.files: dict[str, RemoteFile] = {}
            self.objects: set[str] = set()

        @rule(put=st.lists(FILES, max_size=4), removed=st.lists(PATHS, max_size=3), now_ms=NUMBERS)
        def alter(self, put: list[RemoteFile], removed: list[str], now_ms: int) -> None:
            self.real.now.alter_remote_files(put, removed, now_ms)
            for path in removed:
                self.files.pop(path, None)
            self.files.update((file.path, file) for file in put)
            self.objects.update(file.object for file in put)

        @rule(old=PATHS, new=PATHS)
        def rename(self, old: str, new: str) -> None:
            self.real.now.rename_remote_files(old, new, 0)
            moved = [path for path in self.files if path == old or path.startswith(f"{old}/")]
            taken = [self.files.pop(path) for path in moved]
            self.files.update(
                (new + file.path[len(old) :], file._replace(path=new + file.path[len(old) :])) for file in taken
            )

        @rule()
        def delete_condemned(self) -> None:
            keys = [key for key, _ in self.real.now.condemned_objects()]
            self.real.now.forget_objects(keys)
            self.objects.difference_update(keys)

        @rule()
        def compare(self) -> None:
            assert sorted(self.real.again().load_remote_files()) == sorted(self.files.values())
            condemned = [key for key, _ in self.real.now.condemned_objects()]
            assert condemned == sorted(self.objects - {file.object for file in self.files.values()})

        def teardown(self) -> None:
            self.compare()
            self.real.now.close()

    run_state_machine_as_test(Machine, settings=settings(max_examples=20, stateful_step_count=15))
