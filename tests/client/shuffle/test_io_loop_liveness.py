"""Silence counts only while an answer is expected, and only while this process runs."""

from hypothesis import given
from hypothesis import strategies as st

from broker.client.shuffle.io_loop import Liveness, Verdict

FINE, ASK, DEAD = Verdict


def looks(liveness: Liveness, *times: float, expecting: bool = True) -> list[Verdict]:
    return [liveness.look(now, expecting) for now in times]


def test_silent_peer_is_asked_once_then_dead() -> None:
    assert looks(Liveness(12, 0), 3, 4, 5, 8, 11, 12) == [FINE, ASK, FINE, FINE, FINE, DEAD]


def test_peer_without_expectations_may_be_silent() -> None:
    liveness = Liveness(12, 0)
    assert looks(liveness, *range(3, 60, 3), expecting=False) == [FINE] * 19
    # The silence counts from the time at which an answer is expected: 57.
    assert looks(liveness, 60, 61, 65, 68, 69) == [FINE, ASK, FINE, FINE, DEAD]


def test_any_message_restarts_the_silence() -> None:
    liveness = Liveness(12, 0)
    assert looks(liveness, 3, 6, 9) == [FINE, ASK, FINE]
    liveness.heard(10)
    assert looks(liveness, 12, 14, 20, 22) == [FINE, ASK, FINE, DEAD]


def test_suspension_of_this_process_does_not_count() -> None:
    liveness = Liveness(12, 0)
    assert looks(liveness, 3, 1000, 1001, 1009) == [FINE, FINE, ASK, FINE]


@given(
    heard=st.lists(st.integers(1, 200), max_size=20).map(sorted),
    step=st.integers(1, 6),
)
def test_peer_is_dead_after_the_whole_silence(heard: list[int], step: int) -> None:
    """With regular looks, against the definition."""
    liveness = Liveness(12, 0)
    last = 0
    for now in range(step, 240, step):
        while heard and heard[0] <= now:
            last = heard.pop(0)
            liveness.heard(last)
        assert (liveness.look(now, True) is DEAD) == (now - last >= 12)
