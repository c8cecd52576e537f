"""Which requests are noted, and that the notes have a bound and no secrets."""

from types import SimpleNamespace
from typing import Any

from broker.network.traces import QUEUE_MAX, Traces


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


def test_a_note_has_the_times_in_order_whatever_the_threads_have_measured() -> None:
    traces = Traces(1.0)
    traces.offer(request(), 0, 2.0, 1.5, 1.0)
    (note,) = traces.take()
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
    assert "x" * 100 == note.client_id


def test_a_request_that_a_handler_had_is_told_apart() -> None:
    traces = Traces(1.0)
    offer(traces)
    offer(traces, done=False)
    assert [False, True] == [note.by_handler for note in traces.take()]
