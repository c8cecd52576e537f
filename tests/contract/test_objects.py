"""The contract of every ObjectStore: in memory, in a directory, and in what speaks S3."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.runtime.disk import Buffer
from broker.runtime.objects import (
    CREATE_MAX_BYTES,
    ObjectError,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
)
from tests.contract.implementations import OBJECT_STORES

MIB = 1024 * 1024


@pytest.fixture(params=list(OBJECT_STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return OBJECT_STORES[request.param](request, tmp_path)


def put(store: ObjectStore, key: str, data: bytes, *, create: bool = False) -> None:
    store.put(key, [data], len(data), create=create)


def whole(store: ObjectStore, key: str) -> bytes:
    return store.get(key, 0, store.size(key))


def listed(store: ObjectStore, prefix: str) -> dict[str, int]:
    return dict(store.list(prefix))


def test_what_was_put_is_read(store: ObjectStore) -> None:
    put(store, "a/b", b"0123456789")
    assert b"3456" == store.get("a/b", 3, 4)
    assert 10 == store.size("a/b")


def test_parts_of_every_kind_are_put_in_order(store: ObjectStore) -> None:
    store.put("key", [b"ab", bytearray(b"cd"), b"", memoryview(b"xefx")[1:3]], 6)
    assert b"abcdef" == whole(store, "key")


def test_parts_may_be_made_while_they_are_put(store: ObjectStore) -> None:
    store.put("key", (bytes([n]) for n in range(100)), 100)
    assert bytes(range(100)) == whole(store, "key")


def test_what_the_caller_changes_afterwards_is_not_stored(store: ObjectStore) -> None:
    data = bytearray(b"before")
    store.put("key", [data], 6)
    data[:] = b"after!"
    assert b"before" == whole(store, "key")


def test_an_object_may_be_empty(store: ObjectStore) -> None:
    put(store, "empty", b"")
    assert 0 == store.size("empty")
    assert {"empty": 0} == listed(store, "")


def test_a_put_replaces_the_whole_object(store: ObjectStore) -> None:
    put(store, "key", b"long and old")
    put(store, "key", b"new")
    assert b"new" == whole(store, "key")


def test_a_large_object_is_whole(store: ObjectStore) -> None:
    parts = [bytes([n]) + bytes(range(256)) * 4096 for n in range(20)]
    data = b"".join(parts)
    store.put("large", iter(parts), len(data))
    assert data == whole(store, "large")
    assert data[7 * MIB + 3 : 17 * MIB] == store.get("large", 7 * MIB + 3, 10 * MIB - 3)
    with pytest.raises(ObjectError, match="get large in "):
        store.get("large", 1, len(data))


@pytest.mark.parametrize("size", [3, 5, 12 * MIB])
def test_parts_of_another_size_are_refused(store: ObjectStore, size: int) -> None:
    with pytest.raises(ValueError, match=f"not {size} bytes"):
        store.put("key", [b"abcd"], size)
    with pytest.raises(ObjectMissing):
        store.size("key")


def test_a_large_object_of_another_size_is_refused(store: ObjectStore) -> None:
    with pytest.raises(ValueError, match="not 18874368 bytes"):
        store.put("key", (bytes(MIB) for _ in range(17)), 18 * MIB)
    with pytest.raises(ObjectMissing):
        store.size("key")


@pytest.mark.parametrize("error", [OSError, FileNotFoundError, KeyError])
@pytest.mark.parametrize("size", [5, 20 * MIB])
def test_nothing_is_stored_if_the_source_fails(store: ObjectStore, size: int, error: type[Exception]) -> None:
    broken = error("the source is broken")

    def source() -> Iterator[Buffer]:
        yield b"some"
        raise broken

    with pytest.raises(error) as caught:
        store.put("key", source(), size)
    assert broken is caught.value
    with pytest.raises(ObjectMissing):
        store.size("key")


def test_an_object_that_is_not_there_is_missing(store: ObjectStore) -> None:
    with pytest.raises(ObjectMissing, match=r"get a/missing in .*: there is no such object"):
        store.get("a/missing", 0, 1)
    with pytest.raises(ObjectMissing, match=r"size of a/missing in .*: there is no such object"):
        store.size("a/missing")


def test_the_beginning_of_a_key_is_no_object(store: ObjectStore) -> None:
    put(store, "a/b/c", b"data")
    with pytest.raises(ObjectMissing):
        store.get("a/b", 0, 1)
    with pytest.raises(ObjectMissing):
        store.size("a/b")
    with pytest.raises(ObjectMissing):
        store.size("a/b/c/d")


@pytest.mark.parametrize(("offset", "size"), [(0, 11), (6, 5), (10, 1), (11, 1), (100, 10)])
def test_a_read_beyond_the_end_is_an_error_that_names_the_key(store: ObjectStore, offset: int, size: int) -> None:
    put(store, "a/short", b"0123456789")
    with pytest.raises(ObjectError, match=f"get a/short in .*: it ends before byte {offset + size}") as caught:
        store.get("a/short", offset, size)
    assert not isinstance(caught.value, ObjectMissing)


def test_nothing_is_asked_for_no_bytes(store: ObjectStore) -> None:
    assert b"" == store.get("missing", 3, 0)


def test_a_created_object_is_there(store: ObjectStore) -> None:
    put(store, "new/key", b"data", create=True)
    assert b"data" == whole(store, "new/key")


def test_nothing_else_is_created_under_the_same_key(store: ObjectStore) -> None:
    put(store, "a/key", b"first", create=True)
    for other in (b"other", b"longer", b""):
        with pytest.raises(ObjectExists, match=r"create a/key in .*: there is another object"):
            put(store, "a/key", other, create=True)
    assert b"first" == whole(store, "a/key")


def test_what_was_put_is_not_created_again(store: ObjectStore) -> None:
    put(store, "key", b"put")
    with pytest.raises(ObjectExists):
        put(store, "key", b"created", create=True)


@pytest.mark.parametrize("data", [b"data", b""])
def test_a_create_that_meets_its_own_object_succeeds(store: ObjectStore, data: bytes) -> None:
    put(store, "key", data, create=True)
    put(store, "key", data, create=True)
    assert data == whole(store, "key")


def test_what_was_deleted_can_be_created(store: ObjectStore) -> None:
    put(store, "key", b"first", create=True)
    store.delete(["key"])
    put(store, "key", b"second", create=True)
    assert b"second" == whole(store, "key")


def test_only_small_objects_are_created(store: ObjectStore) -> None:
    data = bytes(CREATE_MAX_BYTES)
    put(store, "key", data, create=True)
    assert len(data) == store.size("key")
    with pytest.raises(ValueError, match="can be created"):
        put(store, "other", data + b"!", create=True)


def test_keys_are_listed_with_sizes(store: ObjectStore) -> None:
    for key, size in {"a/b/1": 1, "a/b/2": 0, "a/c": 3, "d": 4}.items():
        put(store, key, bytes(size))
    assert {"a/b/1": 1, "a/b/2": 0, "a/c": 3, "d": 4} == listed(store, "")
    assert {"a/b/1": 1, "a/b/2": 0, "a/c": 3} == listed(store, "a")
    assert {"a/b/1": 1, "a/b/2": 0} == listed(store, "a/b") == listed(store, "a/b/")


def test_a_prefix_is_of_whole_parts(store: ObjectStore) -> None:
    put(store, "a/b/c", b"")
    put(store, "a/bc", b"")
    assert ["a/b/c"] == list(listed(store, "a/b"))
    assert {} == listed(store, "a/bc")


def test_nothing_is_listed_where_nothing_is(store: ObjectStore) -> None:
    assert {} == listed(store, "")
    assert {} == listed(store, "a/b")


def test_more_keys_than_a_page_has_are_listed(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda n: put(store, f"many/{n:04}", b"x"), range(1100)):
            pass
    assert {f"many/{n:04}": 1 for n in range(1100)} == listed(store, "many")
    store.delete(f"many/{n:04}" for n in range(1099))
    assert {"many/1099": 1} == listed(store, "many")


def test_deleted_objects_are_missing(store: ObjectStore) -> None:
    for key in ("a/1", "a/2", "b"):
        put(store, key, b"data")
    store.delete(["a/1", "b"])
    assert ["a/2"] == list(listed(store, ""))
    with pytest.raises(ObjectMissing):
        store.size("a/1")


def test_what_is_missing_may_be_deleted(store: ObjectStore) -> None:
    put(store, "there", b"data")
    store.delete(["missing", "a/missing", "there", "there"])
    assert {} == listed(store, "")
    store.delete([])


def test_keys_have_every_character_that_they_may(store: ObjectStore) -> None:
    key = "AZ09_=@+~-x/a.b.._=@+~-"
    put(store, key, b"data")
    assert b"data" == whole(store, key)
    assert [key] == list(listed(store, "")) == list(listed(store, "AZ09_=@+~-x"))
    store.delete([key])
    assert {} == listed(store, "")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        ".uploads/a",
        "a b",
        "a\n",
        "ä",
        "a%41",
        "a*",
        "x" * 201,
        "a/" * 400 + "a",
    ],
)
def test_other_keys_are_refused(store: ObjectStore, key: str) -> None:
    for call in (
        lambda: put(store, key, b""),
        lambda: store.get(key, 0, 1),
        lambda: store.size(key),
        lambda: store.delete([key]),
    ):
        with pytest.raises(ValueError, match="no key of an object"):
            call()


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, -1)])
def test_negative_ranges_are_refused(store: ObjectStore, offset: int, size: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        store.get("key", offset, size)


def test_several_threads_may_use_it(store: ObjectStore) -> None:
    def work(n: int) -> bytes:
        put(store, f"part/{n}", b"%d" % n)
        data = whole(store, f"part/{n}")
        store.delete([f"part/{n}"])
        return data

    with ThreadPoolExecutor(8) as threads:
        assert [b"%d" % n for n in range(40)] == list(threads.map(work, range(40)))
    assert {} == listed(store, "")


def test_of_many_that_create_a_key_one_succeeds(store: ObjectStore) -> None:
    def create(n: int) -> int | None:
        try:
            put(store, "owner", b"%d" % n, create=True)
        except ObjectExists:
            return None
        return n

    with ThreadPoolExecutor(8) as threads:
        winners = [n for n in threads.map(create, range(8)) if n is not None]
    assert 1 == len(winners)
    assert b"%d" % winners[0] == whole(store, "owner")
