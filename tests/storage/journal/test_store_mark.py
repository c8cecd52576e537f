"""One place in an object store serves one cluster."""

import pytest

from broker.errors import ConfigError
from broker.runtime.objects import MemoryObjects
from broker.storage.journal.store_mark import MARK, claim


def nothing() -> str | None:
    return None


def test_a_cluster_finds_its_own_mark() -> None:
    objects = MemoryObjects()
    claim(objects, "one", nothing)
    claim(objects, "one", nothing)
    assert b"one" == objects.get(MARK, 0, 3)


def test_the_place_of_another_cluster_is_refused_and_stays_its_own() -> None:
    objects = MemoryObjects()
    claim(objects, "one", nothing)
    with pytest.raises(ConfigError, match="is that of the cluster 'one', and this one is 'two'"):
        claim(objects, "two", nothing)
    assert {MARK: 3} == dict(objects.list(""))


def test_of_two_clusters_that_claim_a_place_at_once_one_gets_it() -> None:
    objects = MemoryObjects()

    def meanwhile() -> str | None:
        claim(objects, "one", nothing)
        return None

    with pytest.raises(ConfigError, match="'one'"):
        claim(objects, "two", meanwhile)


def test_another_place_than_before_is_refused() -> None:
    objects = MemoryObjects()
    with pytest.raises(ConfigError, match="the place that this catalogue has used so far"):
        claim(objects, "one", lambda: "segments/a")
    assert {} == dict(objects.list(""))


def test_a_lost_mark_is_made_again_where_the_objects_are() -> None:
    objects = MemoryObjects()
    objects.put("segments/a", [b"a"], 1)
    claim(objects, "one", lambda: "segments/a")
    assert {MARK: 3, "segments/a": 1} == dict(objects.list(""))


@pytest.mark.parametrize("mark", [b"", b"\xff", b"x" * 5000])
def test_a_mark_that_is_none_is_refused(mark: bytes) -> None:
    objects = MemoryObjects()
    objects.put(MARK, [mark], len(mark))
    with pytest.raises(ConfigError, match="a place of its own"):
        claim(objects, "one", nothing)
