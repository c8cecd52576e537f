"""Figures: gauges, and counters as rates."""

from broker.web.history import WHOLE, Field, Figures

IN = Field("topic", "messages_in", counter=True)
LAG = Field("group", "lag")


def sampled(*counts: float) -> Figures:
    """The messages of the topic ``t`` at each sample, 5 s apart."""
    figures = Figures()
    present = {"t": counts[0]}
    figures.sources.append(lambda: {IN: dict(present), LAG: {"g": 3.0}})
    figures.whole["groups"] = lambda: 1
    for number, count in enumerate(counts):
        present["t"] = count
        figures.sample(100.0 + 5 * number, (100 + 5 * number) * 1000)
    return figures


def test_a_counter_of_a_thing_is_a_rate() -> None:
    figures = sampled(10, 60)
    assert 10.0 == figures.rate(IN, "t")
    assert 0.0 == figures.rate(IN, "other")
    assert [None, 10.0] == figures.history.read(["topic:t:messages_in"], 0).series["topic:t:messages_in"]


def test_uncounted_thing_has_rate_zero() -> None:
    figures = sampled(10, 60, 60)
    assert 0.0 == figures.rate(IN, "t")
    assert [None, 10.0, 0.0] == figures.history.read(["topic:t:messages_in"], 0).series["topic:t:messages_in"]


def test_a_counter_that_begins_again_counts_nothing() -> None:
    assert 0.0 == sampled(60, 10).rate(IN, "t")


def test_gauges_are_kept_as_they_are() -> None:
    figures = sampled(1, 1)
    assert [3.0, 3.0] == figures.history.read(["group:g:lag"], 0).series["group:g:lag"]
    assert ["groups"] == figures.history.names(WHOLE)


def test_sample_that_comes_too_early_is_dropped() -> None:
    figures = sampled(10, 60)
    figures.sample(106.0, 106_000)
    assert 10.0 == figures.rate(IN, "t")


def test_health_is_why_something_is_wrong() -> None:
    figures = Figures()
    figures.health += [list, lambda: ["The disk is full."]]
    figures.sample(1.0, 1000)
    assert ("The disk is full.",) == figures.reasons
