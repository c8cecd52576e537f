"""`broker inspect --objects`: what is in an object store, by the first part of the keys; and with a catalogue, what in it nobody
needs any more.

Only the list of the store is read. ``storage/tier/orphans.py`` says what an orphan is.

Tests: tests/cli/test_inspect_objects.py, tests/durable/test_inspect_objects.py.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from broker.cli.output import print_object, print_rows, print_table, say
from broker.errors import BrokerError
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.runtime.objects import ObjectError
from broker.runtime.open_objects import open_objects
from broker.storage.stopped_directory import copy_of_catalogue, locked
from broker.storage.tier.orphans import Orphans, Used, find_orphans

# More first parts than a broker makes; a list of somebody else's bucket must not fill the memory.
_MOST = 10_000
_SHOWN = 20
_DELETED_AT_ONCE = 500


def show_objects(url: str, as_json: bool) -> None:
    """ConfigError for a URL that is none, BrokerError if the store cannot be read."""
    store = open_objects(url, read_only=True)
    found: dict[str, list[int]] = {}  # number and bytes
    with _plain_errors():
        for key, size in store.list(""):
            counts = found.setdefault(key.partition("/")[0], [0, 0])
            counts[0] += 1
            counts[1] += size
            if len(found) > _MOST:
                raise BrokerError(
                    f"{store.name} has objects under more than {_MOST} names: no broker has written them."
                )
    print_rows(("objects under", "objects", "bytes"), [(name, *found[name]) for name in sorted(found)], as_json)
    if not found:
        say(f"There are no objects in {store.name}.", err=as_json)


def show_orphans(url: str, catalogue: str, schema: str, delete: bool, as_json: bool) -> None:
    """``catalogue``: a data directory, or a URL of PostgreSQL. Raises ConfigError, BrokerError."""
    store = open_objects(url, read_only=not delete)
    with _plain_errors():
        orphans = find_orphans(store, lambda: _read(catalogue, schema), SystemClock.time_ms())
    _print(orphans, as_json)
    if orphans.missing:
        raise BrokerError(
            f"{len(orphans.missing)} objects that the catalogue names are not in {store.name}, for example "
            f"{min(orphans.missing)}: it is another broker's store, or records are lost. Nothing was deleted."
        )
    if not orphans.found:
        say("There are no orphans.", err=as_json)
    elif not orphans.named:
        raise BrokerError(
            f"The catalogue names no object of {store.name}, so it may be another broker's store. Nothing was deleted."
        )
    elif delete:
        keys = sorted(orphans.found)
        with _plain_errors():
            for first in range(0, len(keys), _DELETED_AT_ONCE):
                store.delete(keys[first : first + _DELETED_AT_ONCE])
        say(f"{len(keys)} orphans were deleted.", err=as_json)
    else:
        say("Nothing was deleted: --delete-orphans does it.", err=as_json)


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except ObjectError as error:
        raise BrokerError(f"{error}.") from error


def _print(orphans: Orphans, as_json: bool) -> None:
    if as_json:
        for key in sorted(orphans.found):
            print_object({"orphan": key, "bytes": orphans.found[key]})
        return
    if not orphans.found:
        return
    shown = sorted(orphans.found)[:_SHOWN]
    print_table(("orphan", "bytes"), [(key, orphans.found[key]) for key in shown])
    if len(orphans.found) > _SHOWN:
        say(f"and {len(orphans.found) - _SHOWN} more, which --output json shows")
    say(f"{len(orphans.found)} orphans of {sum(orphans.found.values())} bytes")


def _read(place: str, schema: str) -> Used:
    """What the catalogue names. ``place``: a data directory, or a URL of PostgreSQL."""
    if place.startswith(("postgresql://", "postgres://")):
        from broker.metadata.postgres_connection import Address
        from broker.metadata.postgres_reading import named_objects

        named = named_objects(Address.parse(place, schema))
        return Used(named.files, named.condemned, named.journal, named.epoch, named.number)
    disk, data_dir = SystemDisk(), os.path.abspath(place)
    with locked(disk, data_dir), copy_of_catalogue(disk, data_dir) as catalogue:
        files = {file.object for file in catalogue.load_remote_files()}
        return Used(files, {key for key, _ in catalogue.condemned_objects()})
