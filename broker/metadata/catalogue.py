"""The interface of the catalogue: everything durable that is not a record.

It holds topics and their settings, the settings of the broker, consumer groups with their committed offsets, transactions,
security (ACLs, SCRAM credentials, client quotas), the cursors of subscriptions, the documents of services, which files are in
the object store, and the next producer id. ``sqlite.py`` is the embedded implementation; the simulator has another
(``tests/sim/catalogue.py``).

Any thread may call any method. A method that changes something returns when the change is durable, that is, when it survives
a power loss. It raises StorageError if the change could not be made; then none of it has happened, now or after a restart. If a
disk error keeps the broker from finding that out, the method raises UnknownOutcome: the change is not in force, and after the
next start it exists either as a whole or not at all.

Every change costs an fsync, so callers keep their own copy in memory where speed matters. Records do not pass through here.

Tests: tests/contract/test_catalogue.py.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

import attrs

from broker.metrics import HistogramCell

# A group's commit for one partition: topic, partition, offset, leader epoch, metadata, commit time (wall clock, ms).
# A plain tuple, because consumers commit at the rate at which they poll.
OffsetRow = tuple[str, int, int, int, str | None, int]


@attrs.frozen
class TopicRow:
    """One topic. ``configs`` holds only the settings that differ from the broker's defaults."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = attrs.field(factory=dict)


class StoredOffset(NamedTuple):
    """A committed offset as it is loaded. If ``expire_ms`` is -1, the group decides how long the offset is kept."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    commit_ms: int
    expire_ms: int


class TransactionRow(NamedTuple):
    """A transactional id. Ids, epochs and times (wall clock, ms) are -1 if they are not set."""

    transactional_id: str
    producer_id: int
    epoch: int
    last_epoch: int
    timeout_ms: int
    phase: str
    partitions: tuple[tuple[str, int], ...]
    groups: tuple[str, ...]
    started_ms: int
    updated_ms: int
    last_producer_id: int
    next_producer_id: int


class PendingOffset(NamedTuple):
    """An offset that a group commits in a transaction that has not ended yet."""

    transactional_id: str
    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    commit_ms: int


class AclRow(NamedTuple):
    """One ACL. The numbers are Kafka's codes: of the type of the resource, of the pattern, the operation and the permission."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class CredentialRow(NamedTuple):
    """The broker's verifier of a password (RFC 5802): the password cannot be computed from it."""

    user: str
    mechanism: str  # "SCRAM-SHA-256" or "SCRAM-SHA-512"
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class QuotaRow(NamedTuple):
    """A quota of an entity. ``entity`` is its text form in the quotas, such as ``user=alice,client-id=<default>``."""

    entity: str
    key: str  # such as "producer_byte_rate"
    value: float


class CursorRow(NamedTuple):
    """The state of a subscription in one partition, in the caller's format.

    The topic is named by its id, so that a topic that is made again under the same name does not inherit cursors.
    """

    topic_id: uuid.UUID
    partition: int
    subscription: str
    state: bytes


class RemoteFile(NamedTuple):
    """A file whose bytes are a part of an object in the object store."""

    path: str  # relative to the data directory
    object: str  # the object's key
    position: int  # where the file begins in the object, bytes
    size: int  # bytes


class Catalogue(Protocol):
    seconds: HistogramCell | None
    """How long it took to read and to change it. None: it is a file of this process."""

    # Topics ---------------------------------------------------------------------------------------------------------

    def topics(self, names: Collection[str] | None = None) -> list[TopicRow]:
        """All topics, or those of these names, sorted by name."""

    def put_topic(self, row: TopicRow) -> None:
        """Insert the topic. It replaces the topic of the same name, and one with the same id: its directories were renamed."""

    def delete_topic(self, name: str) -> None:
        """Remove the topic and add its id to ``deleted_topic_ids``, in one step. Does nothing if the topic does not exist."""

    def deleted_topic_ids(self) -> set[uuid.UUID]:
        """Ids of deleted topics whose files may still exist under their old names."""

    def forget_deleted_topics(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Remove these from ``deleted_topic_ids``."""

    # Settings -------------------------------------------------------------------------------------------------------

    def broker_configs(self, entity: str = "") -> dict[str, str]:
        """Settings that were changed at run time. ``entity`` is a broker's id as text, or "" for the settings of all brokers."""

    def configs_by_entity(self, prefix: str) -> dict[str, dict[str, str]]:
        """The settings of every entity whose name begins with ``prefix``, which is not empty."""

    def alter_broker_configs(self, changes: Mapping[str, str | None], entity: str = "") -> None:
        """Set these settings; remove those whose value is None."""

    def load_configs(self) -> Iterable[tuple[str, str, str]]:
        """Entity, name and value of every setting that was changed at run time, in no particular order."""

    # Groups ---------------------------------------------------------------------------------------------------------

    def load_offsets(self) -> Iterable[StoredOffset]:
        """All committed offsets, in no particular order."""

    def commit_offsets(self, group: str, offsets: Iterable[OffsetRow]) -> None:
        """Commit all of these or none."""

    def restore_offsets(self, rows: Iterable[StoredOffset]) -> None:
        """Insert or replace all of these or none, as they were loaded from another catalogue."""

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]] | None) -> None:
        """Delete the group's offsets of these (topic, partition), or all of them if ``partitions`` is None."""

    def delete_topic_offsets(self, topic: str) -> None:
        """Delete the topic's offsets of all groups, including those that are pending in transactions."""

    def load_groups(self) -> Iterable[tuple[str, bytes]]:
        """Each group's id and its state as ``save_group`` got it."""

    def save_group(self, group: str, blob: bytes) -> None:
        """Store the group's state, whose format is the caller's."""

    def delete_group(self, group: str) -> None:
        """Delete the group's state. ``delete_offsets`` deletes its offsets."""

    # Transactions ---------------------------------------------------------------------------------------------------

    def load_transactions(self) -> Iterable[TransactionRow]:
        """All transactional ids, in no particular order."""

    def save_transactions(self, rows: Iterable[TransactionRow]) -> None:
        """Insert or replace all of these or none."""

    def add_to_transaction(
        self, transactional_id: str, partitions: Iterable[tuple[str, int]], groups: Iterable[str]
    ) -> None:
        """Add these to the row of an open transaction. Writes only these, because a row may have thousands already."""

    def load_pending_offsets(self) -> Iterable[PendingOffset]:
        """The pending offsets of all transactions, in no particular order."""

    def add_pending_offsets(self, transactional_id: str, group: str, offsets: Iterable[OffsetRow]) -> None:
        """Add all of these or none. They become committed offsets when the transaction completes."""

    def end_pending_offsets(self, transactional_id: str, group: str, commit: bool) -> None:
        """Commit the offsets of this group that are pending in the transaction, or drop them, in one step."""

    def complete_transaction(self, row: TransactionRow, commit: bool) -> None:
        """Save the row, and commit its pending offsets (``commit``) or drop them, in one step."""

    def delete_transaction(self, transactional_id: str) -> None:
        """Delete the transactional id and its pending offsets."""

    def allocate_producer_ids(self, n: int) -> int:
        """The first of ``n`` consecutive producer ids that were never allocated before. Allocation starts at 0."""

    def next_producer_id(self) -> int:
        """The id that will be allocated next."""

    # Security -------------------------------------------------------------------------------------------------------

    def load_acls(self) -> Iterable[AclRow]:
        """All ACLs, in no particular order."""

    def alter_acls(self, added: Iterable[AclRow], removed: Iterable[AclRow]) -> None:
        """Remove, then add, all of these or none. Adding an existing ACL or removing a missing ACL does nothing."""

    def load_credentials(self) -> Iterable[CredentialRow]:
        """All SCRAM credentials, in no particular order."""

    def alter_credentials(self, put: Iterable[CredentialRow], deleted: Iterable[tuple[str, str]]) -> None:
        """Delete those of (user, mechanism), then insert or replace these: all of it or nothing."""

    def load_quotas(self) -> Iterable[QuotaRow]:
        """All client quotas, in no particular order."""

    def alter_quotas(self, changes: Iterable[tuple[str, str, float | None]]) -> None:
        """Set the value of (entity, key), or remove it if the value is None: all of these or none."""

    # Subscriptions, and what services keep --------------------------------------------------------------------------

    def load_cursors(self) -> Iterable[CursorRow]:
        """All cursors, in no particular order."""

    def save_cursors(self, rows: Iterable[CursorRow]) -> None:
        """Insert or replace all of these or none."""

    def delete_cursors(self, cursors: Iterable[tuple[uuid.UUID, int, str]]) -> None:
        """Delete the cursors of these (topic id, partition, subscription): all of them or none. Missing cursors are
        ignored."""

    def delete_topic_cursors(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Delete all cursors of these topics."""

    def load_documents(self, kind: str, prefix: str = "") -> Iterable[tuple[str, bytes]]:
        """Key and body of each document of this kind whose key begins with ``prefix``, in no particular order. Each kind belongs
        to one service, and so does its format."""

    def document_kinds(self) -> list[str]:
        """The kinds of which there are documents, sorted."""

    def alter_documents(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        """Set the body of (kind, key), or remove the document if the body is None: all of these or none."""

    def add_documents(self, documents: Iterable[tuple[str, str, bytes]]) -> None:
        """Make those of these (kind, key, body) that are not there: all of them or none. The others stay as they are."""

    def delete_other_documents(self, kind: str, keys: Iterable[str], body: bytes) -> None:
        """Delete the documents of these keys that do not have this body: all of them or none."""

    def delete_documents(self, kind: str, prefix: str) -> None:
        """Delete all documents of this kind whose key begins with ``prefix``, which is not empty."""

    # Files in the object store --------------------------------------------------------------------------------------

    def load_remote_files(self) -> Iterable[RemoteFile]:
        """All files whose bytes are in the object store, in no particular order."""

    def alter_remote_files(self, put: Iterable[RemoteFile], removed: Iterable[str], now_ms: int) -> None:
        """Remove the files with these paths, then insert or replace those of ``put``: all of it or nothing. Missing files are
        ignored.

        An object that a removed or replaced file referred to, and that no file refers to afterwards, is condemned in the same
        step, with ``now_ms`` as the time. An object that a file of ``put`` refers to is no longer condemned.
        """

    def rename_remote_files(self, old: str, new: str, now_ms: int) -> None:
        """Rename the file ``old``, or all files below the directory ``old``, in one step. Files with the new paths are replaced,
        which may condemn their objects. Does nothing if there is no such file."""

    def condemned_objects(self) -> list[tuple[str, int]]:
        """Key of each object that is to be deleted from the object store, and since when (wall clock, ms); sorted by key."""

    def forget_objects(self, keys: Iterable[str]) -> None:
        """Remove these from ``condemned_objects``: they have been deleted from the object store."""

    # The rest -------------------------------------------------------------------------------------------------------

    def together(self, changes: "Iterable[Change]") -> None:
        """Make several changes as one: all of them or none.

        Each is called with a catalogue of which it may call the methods that make changes.
        """

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        """Call ``moment`` while nothing changes. Returns a function that writes the catalogue as of that moment into a new file
        at a path, later and while changes go on; it is called once. Both raise StorageError."""

    def meta(self, key: str) -> str | None:
        """The value stored under the key, or None."""

    def set_meta(self, key: str, value: str) -> None:
        """Store a value under the key."""

    def load_meta(self) -> dict[str, str]:
        """All keys with their values."""

    def close(self) -> None:
        """Release the files. No method may be called afterwards."""


Change = Callable[[Catalogue], None]
