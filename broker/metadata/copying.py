"""Copies a catalogue into another one, whatever the two are made of.

For ``broker migrate`` and for backups of a catalogue in PostgreSQL. Nobody else may use either of them in the meantime: the
source is read table by table, and the target is written in several transactions. If it fails, throw the target away.

Tests: tests/metadata/test_copying.py.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import TypeVar

from broker.errors import ConfigError, StorageError
from broker.metadata.catalogue import Catalogue, Change, PendingOffset, RemoteFile, TopicRow

T = TypeVar("T")

# Rows of one transaction.
_AT_ONCE = 5_000
# A topic and files that are there only for a moment: the target records that they are deleted.
_PASSING = "passing"


# The kind of the document, with the key "", that a target may have until everything is there. No broker serves meanwhile.
UNFINISHED = "unfinished-copy"


def unfinished(catalogue: Catalogue) -> bytes | None:
    """The body of that document, whose format is that of whoever copies."""
    return next((body for _, body in catalogue.load_documents(UNFINISHED)), None)


def refuse_unfinished(catalogue: Catalogue) -> None:
    """Raises ConfigError if a copy into this catalogue was begun and is not complete, StorageError."""
    if unfinished(catalogue) is not None:
        raise ConfigError(
            "Run `broker migrate` again with the same data directory: the last one did not finish, so this catalogue is not "
            "complete."
        )


def is_empty(catalogue: Catalogue) -> bool:
    """Whether it has nothing but that document. Raises StorageError."""
    kinds = set(catalogue.document_kinds()) - {UNFINISHED}
    return not (catalogue.topics() or catalogue.load_meta() or catalogue.next_producer_id() or kinds)


def copy_catalogue(source: Catalogue, target: Catalogue, *, remote_files: bool = True) -> None:
    """Without ``remote_files``, nothing of the object store is copied. Raises StorageError, also if the target is not empty."""
    if not is_empty(target):
        raise StorageError("The catalogue that should take the copy is not empty")
    _copy_topics(source, target)
    _copy_settings(source, target)
    _copy_groups(source, target)
    _copy_transactions(source, target)
    for cursors in _parts(source.load_cursors()):
        target.save_cursors(cursors)
    for kind in source.document_kinds():
        for documents in _parts(source.load_documents(kind)):
            target.alter_documents([(kind, key, body) for key, body in documents])
    if remote_files:
        _copy_remote_files(source, target)
    for key, value in source.load_meta().items():
        target.set_meta(key, value)


def _copy_topics(source: Catalogue, target: Catalogue) -> None:
    # The deleted ones first, while no other topic has that name.
    for topic_id in sorted(source.deleted_topic_ids()):
        target.put_topic(TopicRow(_PASSING, topic_id, 1))
        target.delete_topic(_PASSING)
    for rows in _parts(source.topics()):
        target.together([_put_topic(row) for row in rows])


def _put_topic(row: TopicRow) -> Change:
    return lambda inside: inside.put_topic(row)


def _copy_settings(source: Catalogue, target: Catalogue) -> None:
    for entity, rows in groupby(sorted(source.load_configs()), key=lambda row: row[0]):
        target.alter_broker_configs({name: value for _, name, value in rows}, entity)
    target.alter_acls(source.load_acls(), [])
    target.alter_credentials(source.load_credentials(), [])
    target.alter_quotas(source.load_quotas())


def _copy_groups(source: Catalogue, target: Catalogue) -> None:
    for groups in _parts(source.load_groups()):
        target.together([_save_group(group, blob) for group, blob in groups])
    for offsets in _parts(source.load_offsets()):
        target.restore_offsets(offsets)


def _save_group(group: str, blob: bytes) -> Change:
    return lambda inside: inside.save_group(group, blob)


def _copy_transactions(source: Catalogue, target: Catalogue) -> None:
    for transactions in _parts(source.load_transactions()):
        target.save_transactions(transactions)
    pending = sorted(source.load_pending_offsets(), key=_place)
    for (transactional_id, group), rows in groupby(pending, key=_place):
        target.add_pending_offsets(transactional_id, group, [row[2:] for row in rows])
    if next_id := source.next_producer_id():
        target.allocate_producer_ids(next_id)


def _place(row: PendingOffset) -> tuple[str, str]:
    return row.transactional_id, row.group


def _copy_remote_files(source: Catalogue, target: Catalogue) -> None:
    # The condemned objects first, while no file has that path.
    for since_ms, rows in groupby(sorted(source.condemned_objects(), key=_since), key=_since):
        for part in _parts(rows):
            files = [RemoteFile(f"{_PASSING}/{number}", key, 0, 0) for number, (key, _) in enumerate(part)]
            target.alter_remote_files(files, [], since_ms)
            target.alter_remote_files([], [file.path for file in files], since_ms)
    for remote in _parts(source.load_remote_files()):
        target.alter_remote_files(remote, [], 0)


def _since(row: tuple[str, int]) -> int:
    return row[1]


def _parts(rows: Iterable[T]) -> Iterator[list[T]]:
    """Lists of some rows each."""
    rest = iter(rows)
    while part := list(islice(rest, _AT_ONCE)):
        yield part
