"""What services tell the HTTP service of themselves as numbers: for the overview, for rates and for the history.

A service adds its figures while it is put together. The sampler of the HTTP service (`broker/http/assembly.py`) reads them every
5 s on its own thread, computes rates, and keeps the history; without an http:// listener nobody reads anything.

Tests: tests/network/test_figures.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import attrs

from broker.network.history import STEP_S, WHOLE, History


class Field(NamedTuple):
    """What is known of each thing of a kind: ``Field("topic", "messages_in", counter=True)``. Its series are called
    ``kind:thing:name``."""

    kind: str
    name: str
    counter: bool = False  # it only goes up, and its rate per second is shown


# The present values, by field and by the name of the thing.
Read = Callable[[], Mapping[Field, Mapping[str, float]]]


def series_name(field: Field, thing: str) -> str:
    return f"{field.kind}:{thing}:{field.name}"


@attrs.define(eq=False)
class Figures:
    """Filled on the thread that starts the broker, before the first request. ``health``: each says in a short sentence why the
    broker is not as it should be."""

    whole: dict[str, Callable[[], float]] = attrs.Factory(dict)  # of the whole broker: gauges
    counters: dict[str, Callable[[], float]] = attrs.Factory(dict)  # of the whole broker: shown as rates per second
    sources: list[Read] = attrs.Factory(list)
    health: list[Callable[[], list[str]]] = attrs.Factory(list)
    # What another service has on a topic, by its name in Kafka: for the view of the topic.
    subscriptions: Callable[[str], list[dict[str, Any]]] = lambda _topic: []
    history: History = attrs.Factory(History)
    # What the sampler has found last; replaced as a whole.
    values: Mapping[str, float] = attrs.Factory(dict)  # of the whole broker: gauges and rates
    reasons: tuple[str, ...] = ()  # why it is not healthy
    _rates: Mapping[Field, Mapping[str, float]] = attrs.Factory(dict)
    # The counters of the sample before, and when it was taken (monotonic, s).
    _before: Mapping[str, float] = attrs.Factory(dict)
    _before_of: Mapping[Field, Mapping[str, float]] = attrs.Factory(dict)
    _sampled_at: float | None = None

    def rate(self, field: Field, thing: str) -> float:
        """Of a counter, per second, over the last sample."""
        rates = self._rates.get(field)
        return 0.0 if rates is None else rates.get(thing, 0.0)

    def sample(self, now: float, now_ms: int) -> None:
        """Read everything. On the sampler's thread."""
        elapsed_s = None if self._sampled_at is None else now - self._sampled_at
        if elapsed_s is not None and elapsed_s < STEP_S / 2:
            return
        self._sampled_at = now
        counters = {name: read() for name, read in self.counters.items()}
        values = {name: read() for name, read in self.whole.items()}
        of_things: dict[Field, Mapping[str, float]] = {}
        for source in self.sources:
            of_things.update(source())
        rates: dict[Field, Mapping[str, float]] = {}
        if elapsed_s:
            values |= _rates(counters, self._before, elapsed_s, keep_zero=True)
            for field, by_thing in of_things.items():
                if field.counter and field in self._before_of:
                    rates[field] = _rates(by_thing, self._before_of[field], elapsed_s)
        else:
            values |= dict.fromkeys(counters, 0.0)
        recorded = {name: (WHOLE, value) for name, value in values.items()}
        for field, by_thing in of_things.items():
            shown = rates.get(field, {}) if field.counter else by_thing
            kind = f"{field.kind}:{field.name}"
            recorded |= {series_name(field, thing): (kind, value) for thing, value in shown.items()}
            if field.counter:  # of what was not counted, the rate is 0 for as long as the thing is there
                for name in self.history.names(kind):
                    if name not in recorded and name[len(field.kind) + 1 : -len(field.name) - 1] in by_thing:
                        recorded[name] = kind, 0.0
        self._before = counters
        self._before_of = {field: by_thing for field, by_thing in of_things.items() if field.counter}
        self._rates = rates
        self.values = values
        self.reasons = tuple(reason for check in self.health for reason in check())
        self.history.record(now_ms, recorded)


def _rates(
    present: Mapping[str, float], before: Mapping[str, float], elapsed_s: float, *, keep_zero: bool = False
) -> dict[str, float]:
    """What was counted since, per second; without those of which nothing was."""
    rates = {}
    for name, value in present.items():
        counted = max(0.0, value - before.get(name, 0.0))
        if counted or keep_zero:
            rates[name] = counted / elapsed_s
    return rates
