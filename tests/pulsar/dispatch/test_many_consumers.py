"""Outstanding reads and their epochs."""

from broker.pulsar.dispatch.dispatcher import DispatchSettings, Now
from broker.pulsar.dispatch.many_consumers import Reading

NOW = Now(5.0, 0)


def test_read_ends_once_by_its_own_completion() -> None:
    reading = Reading(DispatchSettings())
    old = reading.begin_read(0, 1, 1)
    assert reading.forget()
    assert not reading.forget()
    new = reading.begin_read(0, 1, 1)
    assert not reading.end_read(old)
    assert reading.read is new
    assert reading.end_read(new)
    assert not reading.end_read(new)


def test_replay_ends_once_by_its_own_completion() -> None:
    reading = Reading(DispatchSettings())
    old = reading.begin_replay([1])
    reading.forget()
    new = reading.begin_replay([1])
    assert not reading.end_replay(old)
    assert reading.end_replay(new)


def test_failures_back_off_and_success_grows_reads() -> None:
    reading = Reading(DispatchSettings(read_retry_s=1.0, read_retry_max_s=3.0, read_entries_max=5))
    waits = []
    for _ in range(4):
        reading.failed(NOW)
        waits.append(reading.retry_at - NOW.monotonic)
    assert [1.0, 2.0, 3.0, 3.0] == waits
    sizes = [reading.entries_max]
    for _ in range(4):
        reading.succeeded()
        sizes.append(reading.entries_max)
    assert [1, 2, 4, 5, 5] == sizes
    reading.failed(NOW)
    assert 6.0 == reading.retry_at


def test_messages_per_entry_are_a_moving_average() -> None:
    reading = Reading(DispatchSettings())
    for _ in range(100):
        reading.measure(2, 200)
    assert 99 < reading.messages_per_entry <= 100
