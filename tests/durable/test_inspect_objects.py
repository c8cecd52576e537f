"""`broker inspect --objects --catalogue`: what a broker has left over in its store, with a real broker."""

import uuid

import pytest

from broker.runtime.directory_objects import DirectoryObjects
from broker.server import BrokerServer
from broker.storage.tier.keys import SegmentKey
from tests.durable.postgres import fresh_schema
from tests.durable.servers import Place, broker_command, fill_one, start, stop

ORPHAN = str(SegmentKey(uuid.UUID(int=1), 0, 0, 1, -1, 0, 1000, uuid.UUID(int=2)))


@pytest.fixture
def moved(place: Place, running: list[BrokerServer]) -> Place:
    server = start(place.config("data"), running)
    fill_one(server)
    stop(server, running)
    place.move()
    return place


def store(place: Place) -> DirectoryObjects:
    return DirectoryObjects(place.objects.removeprefix("file://"))


def inspect(place: Place, *more: str, catalogue: str = "-", fails: int = 0) -> str:
    line = ["inspect", "--objects", place.objects, "--catalogue", catalogue, "--schema", place.schema, *more]
    said = broker_command(*line, BROKER_CATALOGUE=place.url, fails=fails)
    assert place.url not in said
    return said


def test_orphans_are_listed_and_deleted(moved: Place, running: list[BrokerServer]) -> None:
    server = start(moved.durable(), running)
    store(moved).put(ORPHAN, [b"12"], 2)
    assert f"{ORPHAN}\t2\n" in inspect(moved), "the broker may run"
    stop(server, running)
    flush = f"journal/{0:08x}/{1:012d}"
    before = set(moved.stored()) - {ORPHAN}
    for key in (ORPHAN, flush):
        store(moved).put(key, [b"12"], 2)
    said = inspect(moved)
    assert "segments\t" in said
    assert f"{flush}\t2\n{ORPHAN}\t2\n2 orphans of 4 bytes\n" in said
    assert "Nothing was deleted" in said
    assert {ORPHAN, flush} <= set(moved.stored())
    assert "2 orphans were deleted" in inspect(moved, "--delete-orphans")
    assert not {ORPHAN, flush} & set(moved.stored())
    assert {key for key in before if key.startswith("segments/")} <= set(moved.stored())
    assert "There are no orphans" in inspect(moved)


def test_the_schema_comes_from_the_environment_as_the_url_does(moved: Place) -> None:
    line = ["inspect", "--objects", moved.objects, "--catalogue", "-"]
    said = broker_command(*line, BROKER_CATALOGUE=moved.url, BROKER_CATALOGUE_SCHEMA=moved.schema)
    assert "There are no orphans" in said


def test_a_store_of_another_broker_is_left_alone(moved: Place) -> None:
    lost = next(key for key in moved.stored() if key.startswith("segments/"))
    store(moved).put(ORPHAN, [b"12"], 2)
    store(moved).delete([lost])
    said = inspect(moved, "--delete-orphans", fails=1)
    assert f"1 objects that the catalogue names are not in {moved.objects}, for example {lost}" in said
    assert ORPHAN in moved.stored()


def test_a_catalogue_that_names_nothing_deletes_nothing(moved: Place, running: list[BrokerServer]) -> None:
    store(moved).put(ORPHAN, [b"12"], 2)
    data = str(moved.directory / "data")
    said = inspect(moved, "--delete-orphans", catalogue=data, fails=1)
    assert "The catalogue names no object" in said
    assert ORPHAN in moved.stored()


def test_a_data_directory_is_a_catalogue(place: Place, running: list[BrokerServer]) -> None:
    server = start(place.config("data", objects=place.objects, log_flush_offset_checkpoint_interval_ms=50,
                                remote_log_manager_task_interval_ms=50), running)  # fmt: skip
    fill_one(server)
    place.wait_for_uploads(server)
    assert "Stop the broker that uses" in inspect(place, catalogue=str(place.directory / "data"), fails=2)
    stop(server, running)
    store(place).put(ORPHAN, [b"12"], 2)
    data = str(place.directory / "data")
    assert f"{ORPHAN}\t2" in inspect(place, catalogue=data)
    assert "1 orphans were deleted" in inspect(place, "--delete-orphans", catalogue=data)
    assert ORPHAN not in place.stored()


def test_a_schema_without_catalogue_is_not_made(place: Place) -> None:
    place.schema = fresh_schema()
    (place.directory / "objects").mkdir()
    assert "has no catalogue" in inspect(place, fails=2)
    assert "has no catalogue" in inspect(place, fails=2)


def test_options_go_together(place: Place) -> None:
    assert "go with --objects" in broker_command("inspect", str(place.directory), "--delete-orphans", fails=2)
    line = ["inspect", "--objects", place.objects, "--delete-orphans"]
    assert "--delete-orphans goes with --catalogue" in broker_command(*line, fails=2)
