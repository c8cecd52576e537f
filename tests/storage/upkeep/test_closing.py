"""Closing many logs: clean ones cost nothing, dirty ones what the time allows, and a disk that hangs holds nobody up."""

import threading
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.runtime.clock import SystemClock
from broker.runtime.threads import Event, SystemThreads
from broker.storage.upkeep.closing import THREADS
from tests.storage.helpers import Storage, append, values

LOGS = 3 * THREADS


def fill(storage: Storage, **options: tuple[int, int, int]) -> None:
    storage.manager.create_topic("t", LOGS)
    for number in range(LOGS):
        append(storage.log("t", number), b"%d" % number, **options)


def mark(storage: Storage) -> bool:
    return (Path(storage.directory) / ".kafka_cleanshutdown").exists()


def assert_all_there(storage: Storage) -> None:
    for number in range(LOGS):
        assert values(storage.log("t", number)) == [b"%d" % number]
        assert storage.log("t", number).offline is None


@pytest.mark.parametrize("threads", [None, SystemThreads()])
@pytest.mark.parametrize("producer", [None, (7, 0, 0)])
def test_clean_logs_cost_no_operation_at_all(
    storage: Storage, threads: SystemThreads | None, producer: tuple[int, int, int] | None
) -> None:
    fill(storage, **({"producer": producer} if producer else {}))
    touched: list[str] = []
    for expected in (True, False):
        storage.disk.before = lambda what, path: touched.append(path)
        touched.clear()
        assert storage.manager.close(None, threads)
        assert expected == any("/t-" in path for path in touched)
        assert mark(storage)
        storage.catalogue.close()
        storage.disk.before = lambda what, path: None
        storage.open()
    assert_all_there(storage)


def test_an_empty_index_is_not_synced(storage: Storage) -> None:
    fill(storage)
    storage.disk.synced.clear()
    storage.stop()
    assert not [path for path in storage.disk.synced if path.endswith(".index")]
    storage.open()


@pytest.mark.parametrize("producer", [None, (7, 0, 0)])
def test_unsynced_logs_at_deadline_are_left_to_recovery(
    storage: Storage, producer: tuple[int, int, int] | None
) -> None:
    fill(storage, **({"producer": producer} if producer else {}))

    def a_second_each(what: str, path: str) -> None:
        if what == "sync" and path.endswith(".log"):
            storage.clock.sleep_ms(1000)

    storage.disk.before = a_second_each
    storage.disk.synced.clear()
    assert storage.manager.close(storage.clock.monotonic() + 5)
    storage.catalogue.close()
    assert len([path for path in storage.disk.synced if path.endswith(".log")]) == 5
    assert not mark(storage)
    storage.disk.before = lambda what, path: None
    storage.open()
    assert_all_there(storage)
    if producer:
        for number in range(LOGS):
            assert append(storage.log("t", number), b"%d" % number, producer=producer).duplicate
    storage.restart()
    assert_all_there(storage)


def test_hanging_disk_delays_close_until_deadline_keeping_lock(storage: Storage) -> None:
    fill(storage)
    answers, hangs = Event(), Event()

    def hang(what: str, path: str) -> None:
        if what == "sync" and path.endswith(".log"):
            hangs.set()
            answers.wait(60)

    storage.disk.before = hang

    class UntilItHangs(SystemClock):
        monotonic = staticmethod(lambda: SystemClock.monotonic() + 3600 * hangs.is_set())  # and then the time is over

    manager = storage.manager
    manager.clock = UntilItHangs()
    assert not manager.close(manager.clock.monotonic() + 60, SystemThreads())
    storage.catalogue.close()
    assert hangs.is_set()
    assert not mark(storage)
    with pytest.raises(ConfigError, match="Another broker"):
        storage.open()
    storage.disk.before = lambda what, path: None
    answers.set()
    for thread in threading.enumerate():
        if thread.name.startswith("closing-"):
            thread.join(60)
    manager._release_directory()
    storage.open()
    assert_all_there(storage)


def test_error_of_one_log_does_not_affect_others(storage: Storage) -> None:
    fill(storage)
    storage.disk.fail["sync", "/t-3/"] = 5  # EIO
    assert storage.manager.close(None, SystemThreads())
    storage.catalogue.close()
    storage.disk.fail.clear()
    assert not mark(storage)
    storage.open()
    assert [number for number in range(LOGS) if storage.log("t", number).recovery_point == 0] == [3]
    assert_all_there(storage)
