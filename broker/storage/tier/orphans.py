"""Objects that nobody needs any more: remains of uploads and flushes that did not end, and of deletions that did not come so far.

What a catalogue names is read before the store is listed and after it, because a broker may be running. A segment is an orphan if
no file is in it, it is not condemned (then the broker deletes it), and its upload began more than a day ago; so is another file
that was too large for the journal. An object of the journal is an orphan if no row names it, and none can any more: its owner has
been replaced, or later rows have been stored.

Values and a store; for commands.
"""

import re
from collections.abc import Callable, Set

import attrs

from broker.runtime.objects import ObjectMissing, ObjectStore
from broker.storage.tier import keys

DAY_MS = 24 * 3600 * 1000
JOURNAL = "journal"
_FLUSH = re.compile(rf"{JOURNAL}/([0-9a-f]{{8,16}})/(?:[0-9a-f]{{8}}-)?([0-9]{{12,19}})")
# Files that are no segments, with the time (ms) when their upload began.
_FILE = re.compile(r"files/([0-9]{1,20})-[0-9a-f]{32}")


@attrs.frozen
class Used:
    """The keys that a catalogue names: of objects in which files are, of condemned ones, and of those with the bytes of journal
    rows. ``epoch`` and ``number``: of the owner and of the last row; 0 without a journal."""

    files: Set[str]
    condemned: Set[str]
    journal: Set[str] = frozenset()
    epoch: int = 0
    number: int = 0


@attrs.frozen
class Orphans:
    """``found``: their sizes by key. ``missing``: objects that are named and not in the store. ``named``: how many are in it."""

    found: dict[str, int]
    missing: set[str]
    named: int


def find_orphans(store: ObjectStore, read: Callable[[], Used], now_ms: int) -> Orphans:
    """``read`` is called twice. Raises ObjectError, and what ``read`` raises."""
    before = read()
    listed = dict(store.list(""))
    after = read()
    used = before.files | before.condemned | before.journal | after.files | after.condemned | after.journal
    found = {
        key: size for key, size in listed.items() if key not in used and _is_left_over(key, before, now_ms - DAY_MS)
    }
    lasting = (before.files & after.files) | (before.journal & after.journal)
    missing = {key for key in lasting - listed.keys() if _is_missing(store, key)}
    return Orphans(found, missing, len(used & listed.keys()))


def _is_left_over(key: str, before: Used, begun_before_ms: int) -> bool:
    segment = keys.parse(key)
    if segment is not None:
        return segment.written_ms < begun_before_ms
    file = _FILE.fullmatch(key)
    if file is not None:
        return int(file[1]) < begun_before_ms
    flush = _FLUSH.fullmatch(key)
    if flush is None or not before.epoch:
        return False
    epoch, number = int(flush[1], 16), int(flush[2])
    return epoch < before.epoch or (epoch == before.epoch and number <= before.number)


def _is_missing(store: ObjectStore, key: str) -> bool:
    try:
        store.size(key)
    except ObjectMissing:
        return True
    return False
