"""The ends of all logs at one moment, also where a log is being written to."""

import threading

import pytest

from broker.runtime.clock import SystemClock
from broker.storage.backup.staging import cut
from tests.storage.helpers import Storage, append


@pytest.mark.parametrize("visible", ["written", "durable"])
def test_cut_has_end_of_each_log_even_hidden(storage: Storage, visible: str) -> None:
    storage.create("a", 2, visible=visible)
    append(storage.log("a"), b"1", b"2")
    append(storage.log("a", 1), b"1")
    logs = [storage.log("a"), storage.log("a", 1)]
    found = cut(logs, SystemClock())
    assert [2, 1] == [each.end_offset for each in found]
    assert [log.view.segments[-1] for log in logs] == [each.segment for each in found]
    assert [log.view.segments[-1].size for log in logs] == [each.size for each in found]


def test_log_with_hanging_write_delays_no_other(storage: Storage) -> None:
    storage.create("a", 3)
    for number in range(3):
        append(storage.log("a", number), b"1")
    hanging = storage.log("a", 1)
    with hanging.lock:
        found = []
        thread = threading.Thread(
            target=lambda: found.extend(cut([storage.log("a", n) for n in range(3)], SystemClock()))
        )
        thread.start()
        thread.join(30)
    assert [1, 1, 1] == [each.end_offset for each in found]
    for number in range(3):
        append(storage.log("a", number), b"2")  # no lock was left behind
