"""Which requests are noted, and that the notes have a bound and no secrets."""

from types import SimpleNamespace
from typing import Any

from broker.metrics.tracing import LOG_CALLS_MAX, QUEUE_MAX, Arrival, Note, Traces


def request(**fields: Any) -> Any:
    peer = SimpleNamespace(host="127.0.0.1", listener="kafka")
    return SimpleNamespace(connection=SimpleNamespace(peer=peer), kind="Produce", received_at=1.0, **fields)


def offer(traces: Traces, count: int = 1, **fields: Any) -> None:
    for _ in range(count):
        traces.offer(request(**fields), 0, 2.0, 3.0, 4.0)


def test_the_share_is_kept_exactly() -> None:
    for ratio, noted in ((1.0, 1000), (0.5, 500), (0.25, 250), (0.001, 1), (0.0, 0)):
        traces = Traces(ratio)
        offer(traces, 1000)
        assert abs(noted - len(traces.take())) <= 1, ratio
        assert [] == traces.take()


def test_beyond_the_bound_notes_are_dropped_and_counted() -> None:
    traces = Traces(1.0)
    offer(traces, QUEUE_MAX + 7)
    assert 7 == traces.dropped
    assert QUEUE_MAX == len(traces.take())
    offer(traces)
    assert 1 == len(traces.take())


def test_note_has_its_times_in_order() -> None:
    traces = Traces(1.0)
    traces.offer(request(), 0, 2.0, 1.5, 1.0)
    (note,) = traces.take()
    assert isinstance(note, Note)
    assert sorted((note.received_at, note.taken_at, note.handled_at, note.answered_at)) == [
        note.received_at,
        note.taken_at,
        note.handled_at,
        note.answered_at,
    ]


def test_what_a_client_says_of_itself_is_cut() -> None:
    traces = Traces(1.0)
    offer(traces, client_id="x" * 10_000)
    (note,) = traces.take()
    assert isinstance(note, Note)
    assert "x" * 100 == note.client_id


def test_request_of_a_handler_is_told_apart() -> None:
    traces = Traces(1.0)
    offer(traces)
    offer(traces, done=False)
    assert [False, True] == [note.by_handler for note in traces.take() if isinstance(note, Note)]


def test_request_with_many_partitions_notes_some_log_work() -> None:
    traces = Traces(1.0)
    offer(traces, log_calls=[()] * 20_000)
    (note,) = traces.take()
    assert isinstance(note, Note)
    assert LOG_CALLS_MAX == len(note.log_calls)


def arrive(traces: Traces, count: int = 1, accepted_at: float = 1.0, handed_at: float = 2.0) -> None:
    peer = SimpleNamespace(host="127.0.0.1", listener="kafka")
    for _ in range(count):
        new: Any = SimpleNamespace(peer=peer, accepted_at=accepted_at, handed_at=handed_at)
        traces.arrived(new, 0, 3.0)


def test_connections_have_a_share_of_their_own() -> None:
    traces = Traces(0.5)
    for _ in range(10):
        arrive(traces)
        offer(traces)
    kinds = [type(note) for note in traces.take()]
    assert 5 == kinds.count(Arrival) == kinds.count(Note)


def test_connection_has_its_times_in_order() -> None:
    traces = Traces(1.0)
    arrive(traces, accepted_at=4.0)
    assert [Arrival("127.0.0.1", "kafka", 0, 4.0, 4.0, 4.0)] == traces.take()


def test_connections_beyond_the_bound_are_dropped_and_counted() -> None:
    traces = Traces(1.0)
    arrive(traces, QUEUE_MAX + 7)
    assert 7 == traces.dropped
