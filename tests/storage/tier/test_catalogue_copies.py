"""Copies of an embedded catalogue, in the object store."""

from pathlib import Path

from broker.metadata.sqlite import SqliteCatalogue
from broker.storage.tier.catalogue_copies import CatalogueCopies, copies, key_of
from tests.storage.helpers import append_many
from tests.storage.tier.helpers import TieredStorage


def of(storage: TieredStorage) -> CatalogueCopies:
    path = f"{storage.directory}/.copy"

    def copy(target: str) -> None:
        storage.catalogue.copy(lambda: None)(target)

    made = CatalogueCopies(copy, storage.store, storage.disk, path, storage.clock)
    storage.uploads.copies = made
    return made


def opened(storage: TieredStorage, key: str, size: int, directory: Path) -> SqliteCatalogue:
    path = directory / "copy.sqlite"
    path.unlink(missing_ok=True)
    path.write_bytes(storage.store.get(key, 0, size))
    return SqliteCatalogue(str(path))


def test_a_copy_has_what_was_uploaded_before(storage: TieredStorage, tmp_path: Path) -> None:
    made = of(storage)
    log = storage.create()
    append_many(log, 60)
    storage.upload()
    ((taken_ms, key, size),) = copies(storage.store)
    assert storage.clock.time_ms() == taken_ms == made.taken_ms
    catalogue = opened(storage, key, size, tmp_path)
    assert ["t"] == [row.name for row in catalogue.topics()]
    assert set(storage.rows()) == {file.path for file in catalogue.load_remote_files()}
    catalogue.close()
    assert not storage.disk.exists(f"{storage.directory}/.copy")


def test_copies_are_made_once_a_minute_if_something_has_changed(storage: TieredStorage) -> None:
    made = of(storage)
    assert made.step()
    storage.catalogue.set_meta("a", "1")
    assert not made.step()
    storage.clock.sleep_ms(60000)
    assert made.step()
    storage.clock.sleep_ms(60000)
    before = made.taken_ms
    assert not made.step(), "nothing has changed"
    assert before < made.taken_ms
    assert 2 == len(copies(storage.store))


def test_newest_three_stay(storage: TieredStorage) -> None:
    made = of(storage)
    times = []
    for number in range(5):
        storage.catalogue.set_meta("a", str(number))
        assert made.step()
        times.append(made.taken_ms)
        storage.clock.sleep_ms(60000)
    storage.store.put("catalogue/notes", [b"a"], 1)
    assert times[-3:] == [taken_ms for taken_ms, _, _ in copies(storage.store)]
    assert "catalogue/notes" in storage.store.names()


def test_the_newest_copy_is_the_last_one_also_after_the_clock_was_set_back(
    storage: TieredStorage, tmp_path: Path
) -> None:
    storage.store.put(key_of(storage.clock.time_ms() + 10**9), [b"of a time that never was"], 24)
    made = of(storage)
    for number in range(5):
        storage.catalogue.set_meta("a", str(number))
        assert made.step()
        _, key, size = copies(storage.store)[-1]
        catalogue = opened(storage, key, size, tmp_path)
        assert str(number) == catalogue.meta("a")
        catalogue.close()
        storage.clock.sleep_ms(60_000)


def test_newest_copy_names_no_object_that_was_deleted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    storage = TieredStorage(tmp_path / "data", remote_object_delete_delay_ms=0)
    of(storage)
    log = storage.create(retention_bytes=3000)
    append_many(log, 60)
    storage.upload()
    for _ in range(8):
        storage.clock.sleep_ms(25_000)
        append_many(log, 20)
        storage.manager.checkpoint()
        storage.housekeep()
        storage.upload()
        _, key, size = copies(storage.store)[-1]
        catalogue = opened(storage, key, size, tmp_path)
        named = {file.object for file in catalogue.load_remote_files()}
        catalogue.close()
        assert named <= set(storage.store.names())
    assert storage.uploads.counts.deleted
    storage.kill()
