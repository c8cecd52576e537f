"""Objects that nobody needs any more."""

import uuid

from broker.runtime.objects import MemoryObjects
from broker.storage.tier.keys import SegmentKey
from broker.storage.tier.orphans import DAY_MS, Used, find_orphans

NOW_MS = 1_000 * DAY_MS


def segment(number: int, written_ms: int = 0) -> str:
    return str(SegmentKey(uuid.UUID(int=1), 0, number, number + 1, -1, number, written_ms, uuid.UUID(int=number)))


def flush(epoch: int, number: int) -> str:
    return f"journal/{epoch:08x}/0123cdef-{number:012d}"


def store(*keys: str) -> MemoryObjects:
    objects = MemoryObjects()
    for key in keys:
        objects.put(key, [b"12"], 2)
    return objects


def orphans(objects: MemoryObjects, *read: Used) -> set[str]:
    """``read``: what the catalogue says, time after time."""
    answers = list(read)
    found = find_orphans(objects, lambda: answers.pop(0) if len(answers) > 1 else answers[0], NOW_MS)
    assert set() == found.missing
    return set(found.found)


def test_segments_that_nothing_names_are_orphans_after_a_day() -> None:
    old, young = segment(1, NOW_MS - DAY_MS - 1), segment(2, NOW_MS - DAY_MS + 1)
    used, condemned = segment(3), segment(4)
    found = find_orphans(store(old, young, used, condemned), lambda: Used({used}, {condemned}), NOW_MS)
    assert ({old: 2}, 2) == (found.found, found.named)


def test_segments_that_are_named_meanwhile_are_none() -> None:
    assert set() == orphans(store(segment(1)), Used(set(), set()), Used({segment(1)}, set()))
    assert set() == orphans(store(segment(1)), Used({segment(1)}, set()), Used(set(), {segment(1)}))


def test_flushes_of_earlier_owners_and_of_removed_rows_are_orphans() -> None:
    named, removed, before = flush(3, 7), flush(3, 5), flush(2, 9)
    under_way, of_next_owner = flush(3, 8), flush(4, 1)
    objects = store(named, removed, before, under_way, of_next_owner)
    assert {removed, before} == orphans(objects, Used(set(), set(), {named}, 3, 7))


def test_other_files_that_nothing_names_are_orphans_after_a_day() -> None:
    old, young, used = (f"files/{ms}-{ms:032x}" for ms in (NOW_MS - DAY_MS - 1, NOW_MS - DAY_MS + 1, 5))
    assert {old} == orphans(store(old, young, used), Used({used}, set()))


def test_flushes_whose_rows_come_meanwhile_are_none() -> None:
    first, then = Used(set(), set(), set(), 3, 7), Used(set(), set(), {flush(3, 8)}, 3, 9)
    assert set() == orphans(store(flush(3, 8), flush(3, 9)), first, then)


def test_without_a_journal_flushes_are_left_alone() -> None:
    assert set() == orphans(store(flush(1, 1)), Used(set(), set()))


def test_other_objects_are_left_alone() -> None:
    assert set() == orphans(
        store("catalogue/000000000000001.sqlite", "backup.json", "journal/x", "segments/x"),
        Used(set(), set(), set(), 9, 9),
    )


def test_what_is_named_and_not_there_is_missing() -> None:
    found = find_orphans(store(), lambda: Used({segment(1)}, {segment(2)}, {flush(1, 1)}, 1, 1), NOW_MS)
    assert {segment(1), flush(1, 1)} == found.missing


def test_what_was_removed_or_put_meanwhile_is_not_missing() -> None:
    objects = store()
    answers = [Used({segment(1)}, set()), Used({segment(2)}, set())]
    assert set() == find_orphans(objects, lambda: answers.pop(0), NOW_MS).missing
