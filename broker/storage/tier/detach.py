"""Takes a data directory off its object store: all its files are on the local disk, and the store is not touched.

For a restored backup, which has a copy of every file: were it to use the objects of the broker that it was taken from, it would
delete them in its time. And for a broker that is started without its store. The objects stay, as nobody's (``orphans.py``).
Any thread that owns the catalogue.

Tests: tests/storage/backup/test_backups.py, tests/server/test_tiering.py.
"""

from broker.metadata.catalogue import Catalogue


def detach(catalogue: Catalogue) -> None:
    """Raises StorageError."""
    paths = [file.path for file in catalogue.load_remote_files()]
    if paths:
        catalogue.alter_remote_files((), paths, 0)
    condemned = [key for key, _ in catalogue.condemned_objects()]
    if condemned:
        catalogue.forget_objects(condemned)
