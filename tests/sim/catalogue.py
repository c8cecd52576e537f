"""The simulator's catalogue, in memory: a change is durable when its method returns, or has not happened.

``Tables`` outlive the broker; a ``SimCatalogue`` belongs to one of its lives.
"""

import copy
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from broker.errors import StorageError
from broker.metadata.catalogue import (
    AclRow,
    Change,
    CredentialRow,
    CursorRow,
    PendingOffset,
    QuotaRow,
    RemoteFile,
    StoredOffset,
    TopicRow,
    TransactionRow,
)
from tests.sim.world import Process, World


class Tables:
    def __init__(self) -> None:
        self.topics: dict[str, TopicRow] = {}
        # A dict for its order: the simulation must not depend on hashes.
        self.deleted: dict[uuid.UUID, None] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.offsets: dict[tuple[str, str, int], StoredOffset] = {}
        self.groups: dict[str, bytes] = {}
        self.transactions: dict[str, TransactionRow] = {}
        self.pending: dict[tuple[str, str, str, int], PendingOffset] = {}
        self.acls: dict[AclRow, None] = {}
        self.credentials: dict[tuple[str, str], CredentialRow] = {}
        self.quotas: dict[tuple[str, str], QuotaRow] = {}
        self.cursors: dict[tuple[uuid.UUID, int, str], CursorRow] = {}
        self.documents: dict[tuple[str, str], bytes] = {}
        self.remote_files: dict[str, RemoteFile] = {}
        self.condemned: dict[str, int] = {}
        self.next_producer_id = 0
        self.meta: dict[str, str] = {}


def _copied(tables: Tables) -> Tables:
    copied = Tables()
    vars(copied).update({name: copy.copy(value) for name, value in vars(tables).items()})
    return copied


class Guard(Protocol):
    """Of a catalogue that is not on the machine. Raises StorageError where it cannot be read or changed now."""

    def read(self) -> None: ...

    def change(self) -> None: ...

    def changed(self) -> None:
        """Raises UnknownOutcome where nobody learns that it was changed."""


class SimCatalogue:
    """``Catalogue``. ``error`` is the probability that a change fails."""

    def __init__(
        self,
        process: Process | None,
        tables: Tables,
        world: World | None = None,
        error: float = 0.0,
        guard: Guard | None = None,
        own: Tables | None = None,
    ) -> None:
        """``own``: of one of several nodes, the tables of its files."""
        self._guard = guard
        self._process = process
        self._world = world
        self.tables = tables
        self._own = tables if own is None else own
        self.error = error
        self.closed = False
        self._together = False  # several changes are being made; the real catalogue holds its lock then

    def _begin(self) -> None:
        """Before a change. Here the change may fail or be interrupted, and the broker may be killed."""
        assert not self.closed, "used after close"
        if self._process is None or self._world is None:
            return
        rng = self._world.rng("catalogue")
        self._world.wait_for_disk(self._process, rng.choice((0.0005, 0.003, 0.02)) * rng.random())
        if self.error and self._world.rng("catalogue").random() < self.error:
            self._world.note("  catalogue fails")
            raise StorageError("The catalogue could not be written: disk I/O error")
        if self._together:
            self._world.block(self._process, "the catalogue", lambda: not self._together, None)
        if self._guard is not None:
            self._guard.change()

    def _end(self) -> None:
        """After a change. It is durable, but the broker may be killed before the caller learns that."""
        if self._process is not None and self._world is not None:
            self._world.yield_point(self._process)
        if self._guard is not None:
            self._guard.changed()

    def _check_topics(self) -> None:
        """Raises StorageError where topics may not be changed now."""

    def _read(self) -> None:
        assert not self.closed, "used after close"
        if self._process is not None:
            self._process.check()
        if self._guard is not None:
            self._guard.read()

    def topics(self, names: Collection[str] | None = None) -> list[TopicRow]:
        self._read()
        return [row for name, row in sorted(self.tables.topics.items()) if names is None or name in names]

    def put_topic(self, row: TopicRow) -> None:
        self._begin()
        self._check_topics()
        for other in [other for other in self.tables.topics.values() if other.topic_id == row.topic_id]:
            del self.tables.topics[other.name]
        self.tables.topics[row.name] = row
        self._end()

    def delete_topic(self, name: str) -> None:
        self._begin()
        self._check_topics()
        row = self.tables.topics.pop(name, None)
        if row is not None:
            self.tables.deleted[row.topic_id] = None
        self._end()

    def deleted_topic_ids(self) -> set[uuid.UUID]:
        self._read()
        return set(self.tables.deleted)

    def forget_deleted_topics(self, topic_ids: Iterable[uuid.UUID]) -> None:
        gone = list(topic_ids)
        self._begin()
        for topic_id in gone:
            self.tables.deleted.pop(topic_id, None)
        self._end()

    def broker_configs(self, entity: str = "") -> dict[str, str]:
        self._read()
        return dict(self.tables.configs.get(entity, {}))

    def configs_by_entity(self, prefix: str) -> dict[str, dict[str, str]]:
        self._read()
        configs = self.tables.configs
        return {entity: dict(own) for entity, own in configs.items() if entity.startswith(prefix) and own}

    def alter_broker_configs(self, changes: Mapping[str, str | None], entity: str = "") -> None:
        self._begin()
        configs = self.tables.configs.setdefault(entity, {})
        for name, value in changes.items():
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = value
        self._end()

    def load_configs(self) -> Iterable[tuple[str, str, str]]:
        self._read()
        configs = self.tables.configs
        return [(entity, name, value) for entity, own in configs.items() for name, value in own.items()]

    def load_offsets(self) -> Iterable[StoredOffset]:
        self._read()
        return list(self.tables.offsets.values())

    def commit_offsets(self, group: str, offsets: Iterable[tuple[str, int, int, int, str | None, int]]) -> None:
        self.restore_offsets([StoredOffset(group, *offset, -1) for offset in offsets])

    def restore_offsets(self, rows: Iterable[StoredOffset]) -> None:
        rows = list(rows)
        self._begin()
        for row in rows:
            self.tables.offsets[row[:3]] = row
        self._end()

    def delete_offsets(self, group: str, partitions: Iterable[tuple[str, int]] | None) -> None:
        wanted = None if partitions is None else {(group, *partition) for partition in partitions}
        self._begin()
        offsets = self.tables.offsets
        for key in [key for key in offsets if (key[0] == group if wanted is None else key in wanted)]:
            del offsets[key]
        self._end()

    def delete_topic_offsets(self, topic: str) -> None:
        self._begin()
        for key in [key for key in self.tables.offsets if key[1] == topic]:
            del self.tables.offsets[key]
        for pending in [pending for pending in self.tables.pending if pending[2] == topic]:
            del self.tables.pending[pending]
        self._end()

    def load_groups(self) -> Iterable[tuple[str, bytes]]:
        self._read()
        return list(self.tables.groups.items())

    def save_group(self, group: str, blob: bytes) -> None:
        self._begin()
        self.tables.groups[group] = bytes(blob)
        self._end()

    def delete_group(self, group: str) -> None:
        self._begin()
        self.tables.groups.pop(group, None)
        self._end()

    def load_transactions(self) -> Iterable[TransactionRow]:
        self._read()
        return list(self.tables.transactions.values())

    def save_transactions(self, rows: Iterable[TransactionRow]) -> None:
        new = {row.transactional_id: row for row in rows}
        self._begin()
        self.tables.transactions.update(new)
        self._end()

    def add_to_transaction(
        self, transactional_id: str, partitions: Iterable[tuple[str, int]], groups: Iterable[str]
    ) -> None:
        row = self.tables.transactions[transactional_id]
        self._begin()
        self.tables.transactions[transactional_id] = row._replace(
            partitions=tuple(sorted({*row.partitions, *partitions})), groups=tuple(sorted({*row.groups, *groups}))
        )
        self._end()

    def load_pending_offsets(self) -> Iterable[PendingOffset]:
        self._read()
        return list(self.tables.pending.values())

    def add_pending_offsets(
        self, transactional_id: str, group: str, offsets: Iterable[tuple[str, int, int, int, str | None, int]]
    ) -> None:
        rows = [PendingOffset(transactional_id, group, *offset) for offset in offsets]
        self._begin()
        for row in rows:
            self.tables.pending[row[:4]] = row
        self._end()

    def end_pending_offsets(self, transactional_id: str, group: str, commit: bool) -> None:
        self._begin()
        for key in [key for key in self.tables.pending if key[:2] == (transactional_id, group)]:
            pending = self.tables.pending.pop(key)
            if commit:
                self.tables.offsets[key[1:]] = StoredOffset(*pending[1:], -1)
        self._end()

    def complete_transaction(self, row: TransactionRow, commit: bool) -> None:
        self._begin()
        for key in [key for key in self.tables.pending if key[0] == row.transactional_id]:
            pending = self.tables.pending.pop(key)
            if commit:
                self.tables.offsets[key[1:]] = StoredOffset(*pending[1:], -1)
        self.tables.transactions[row.transactional_id] = row
        self._end()

    def delete_transaction(self, transactional_id: str) -> None:
        self._begin()
        for key in [key for key in self.tables.pending if key[0] == transactional_id]:
            del self.tables.pending[key]
        self.tables.transactions.pop(transactional_id, None)
        self._end()

    def allocate_producer_ids(self, n: int) -> int:
        self._begin()
        first = self.tables.next_producer_id
        self.tables.next_producer_id += n
        self._end()
        return first

    def next_producer_id(self) -> int:
        self._read()
        return self.tables.next_producer_id

    def load_acls(self) -> Iterable[AclRow]:
        self._read()
        return list(self.tables.acls)

    def alter_acls(self, added: Iterable[AclRow], removed: Iterable[AclRow]) -> None:
        added, removed = list(added), list(removed)
        self._begin()
        for row in removed:
            self.tables.acls.pop(row, None)
        self.tables.acls.update(dict.fromkeys(added))
        self._end()

    def load_credentials(self) -> Iterable[CredentialRow]:
        self._read()
        return list(self.tables.credentials.values())

    def alter_credentials(self, put: Iterable[CredentialRow], deleted: Iterable[tuple[str, str]]) -> None:
        put, deleted = list(put), list(deleted)
        self._begin()
        for key in deleted:
            self.tables.credentials.pop(key, None)
        self.tables.credentials.update({(row.user, row.mechanism): row for row in put})
        self._end()

    def load_quotas(self) -> Iterable[QuotaRow]:
        self._read()
        return list(self.tables.quotas.values())

    def alter_quotas(self, changes: Iterable[tuple[str, str, float | None]]) -> None:
        changes = list(changes)
        self._begin()
        for entity, key, value in changes:
            if value is None:
                self.tables.quotas.pop((entity, key), None)
            else:
                self.tables.quotas[entity, key] = QuotaRow(entity, key, value)
        self._end()

    def load_cursors(self) -> Iterable[CursorRow]:
        self._read()
        return list(self.tables.cursors.values())

    def save_cursors(self, rows: Iterable[CursorRow]) -> None:
        rows = list(rows)
        self._begin()
        self.tables.cursors.update({row[:3]: row for row in rows})
        self._end()

    def delete_cursors(self, cursors: Iterable[tuple[uuid.UUID, int, str]]) -> None:
        cursors = list(cursors)
        self._begin()
        for cursor in cursors:
            self.tables.cursors.pop(cursor, None)
        self._end()

    def delete_topic_cursors(self, topic_ids: Iterable[uuid.UUID]) -> None:
        deleted = set(topic_ids)
        self._begin()
        self.tables.cursors = {key: row for key, row in self.tables.cursors.items() if key[0] not in deleted}
        self._end()

    def load_documents(self, kind: str, prefix: str = "") -> Iterable[tuple[str, bytes]]:
        self._read()
        documents = self.tables.documents.items()
        return [(key, body) for (each, key), body in documents if each == kind and key.startswith(prefix)]

    def document_kinds(self) -> list[str]:
        self._read()
        return sorted({kind for kind, _ in self.tables.documents})

    def alter_documents(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        changes = list(changes)
        self._begin()
        for kind, key, body in changes:
            if body is None:
                self.tables.documents.pop((kind, key), None)
            else:
                self.tables.documents[kind, key] = body
        self._end()

    def add_documents(self, documents: Iterable[tuple[str, str, bytes]]) -> None:
        documents = list(documents)
        self._begin()
        for kind, key, body in documents:
            self.tables.documents.setdefault((kind, key), body)
        self._end()

    def delete_other_documents(self, kind: str, keys: Iterable[str], body: bytes) -> None:
        keys = list(keys)
        self._begin()
        for key in keys:
            if self.tables.documents.get((kind, key), body) != body:
                del self.tables.documents[kind, key]
        self._end()

    def delete_documents(self, kind: str, prefix: str) -> None:
        self._begin()
        for document in [key for key in self.tables.documents if key[0] == kind and key[1].startswith(prefix)]:
            del self.tables.documents[document]
        self._end()

    def load_remote_files(self) -> Iterable[RemoteFile]:
        self._read()
        return list(self._own.remote_files.values())

    def alter_remote_files(self, put: Iterable[RemoteFile], removed: Iterable[str], now_ms: int) -> None:
        put, removed = list(put), list(removed)
        self._begin()
        self._replace_files(removed, put, now_ms)
        self._end()

    def rename_remote_files(self, old: str, new: str, now_ms: int) -> None:
        if old == new:
            return
        self._begin()
        files = [file for file in self._own.remote_files.values() if f"{file.path}/".startswith(f"{old}/")]
        renamed = [file._replace(path=new + file.path[len(old) :]) for file in files]
        self._replace_files([file.path for file in files], renamed, now_ms)
        self._end()

    def _replace_files(self, removed: Iterable[str], put: list[RemoteFile], now_ms: int) -> None:
        tables = self._own
        gone = [tables.remote_files.pop(path, None) for path in removed]
        for file in put:
            gone.append(tables.remote_files.get(file.path))
            tables.remote_files[file.path] = file
            tables.condemned.pop(file.object, None)
        used = {file.object for file in tables.remote_files.values()}
        for file in gone:
            if file is not None and file.object not in used:
                tables.condemned.setdefault(file.object, now_ms)

    def condemned_objects(self) -> list[tuple[str, int]]:
        self._read()
        return sorted(self._own.condemned.items())

    def forget_objects(self, keys: Iterable[str]) -> None:
        gone = list(keys)
        self._begin()
        for key in gone:
            self._own.condemned.pop(key, None)
        self._end()

    def together(self, changes: Iterable[Change]) -> None:
        self._begin()
        # On copies. No other thread may change the tables before they are replaced below.
        tables = _copied(self.tables)
        own = tables if self._own is self.tables else _copied(self._own)
        inside = SimCatalogue(None, tables, own=own)
        self._together = True
        try:
            for change in changes:
                change(inside)
            if self._guard is not None:
                self._guard.change()
            if tables.topics != self.tables.topics:
                self._check_topics()
            vars(self._own).update(vars(own))
            vars(self.tables).update(vars(tables))
        finally:
            self._together = False
        self._end()

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        self._read()
        moment()

        def save(path: str) -> None:
            raise AssertionError("the simulated catalogue has no file to be copied")

        return save

    def meta(self, key: str) -> str | None:
        self._read()
        return self.tables.meta.get(key)

    def set_meta(self, key: str, value: str) -> None:
        self._begin()
        self.tables.meta[key] = value
        self._end()

    def load_meta(self) -> dict[str, str]:
        self._read()
        return dict(self.tables.meta)

    def close(self) -> None:
        self.closed = True
