"""The mark in an object store that says whose it is: an object with the cluster's id.

A broker deletes objects that its journal does not name, and its catalogue takes for granted those that it names. So one place
serves one cluster: with the catalogue of another one, or with another place than before, a broker must not start.

Two copies of one database have the same id and cannot be told apart; whoever starts a copy has to give it a copy of the objects.

On the thread that starts the broker, which owns the state. Tests: tests/storage/journal/test_store_mark.py.
"""

from collections.abc import Callable
from contextlib import closing

from broker.errors import ConfigError
from broker.metadata.catalogue import Catalogue
from broker.metadata.journal import Journal
from broker.runtime.objects import ObjectExists, ObjectMissing, ObjectStore

MARK = "cluster-id"
# Longer ids than anybody has: what is read of a mark that somebody else has written.
_ID_MAX = 1024


def claim(objects: ObjectStore, cluster_id: str, named: Callable[[], str | None]) -> None:
    """Check the mark, or make it. ``named``: is only asked without a mark, see ``some_object``; that object must be there.

    Raises ConfigError if the place is another one's, ObjectError.
    """
    found = _read(objects)
    if found is None:
        key = named()
        if key is not None:
            _must_have(objects, key)
        body = cluster_id.encode()
        try:
            objects.put(MARK, [body], len(body), create=True)
            return
        except ObjectExists:  # another one was faster
            found = _read(objects)
    if found != cluster_id:
        raise ConfigError(
            f"Set objects to a place of its own for this catalogue, for example another prefix: {objects.name} is that of the "
            f"cluster {found!r}, and this one is {cluster_id!r}. They would delete each other's objects."
        )


def some_object(catalogue: Catalogue, journal: Journal | None) -> str | None:
    """An object that the catalogue or the journal names; None if there is none. Raises StorageError."""
    for file in catalogue.load_remote_files():
        return file.object
    if journal is not None:
        with closing(journal.read(0)) as rows:  # type: ignore[type-var]  # a generator
            return next((row.object for row in rows if row.object is not None), None)
    return None


def _read(objects: ObjectStore) -> str | None:
    try:
        size = objects.size(MARK)
        return objects.get(MARK, 0, min(size, _ID_MAX)).decode(errors="replace")
    except ObjectMissing:
        return None


def _must_have(objects: ObjectStore, key: str) -> None:
    try:
        objects.size(key)
    except ObjectMissing:
        raise ConfigError(
            f"Set objects to the place that this catalogue has used so far: {objects.name} has neither {MARK} nor {key}."
        ) from None
