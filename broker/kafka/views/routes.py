"""All views of the Kafka service, and the figures that it has for the overview and the history.

Tests: tests/kafka/views/test_topics.py, tests/http/api/test_overview.py.
"""

from bisect import bisect_left
from collections.abc import Mapping

from broker.kafka.context import KafkaContext
from broker.kafka.groups.lag import Lags, longest_s
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.transactions.transaction import AT_REST
from broker.kafka.views.groups import Groups
from broker.kafka.views.records import Records, Tail
from broker.kafka.views.topics import Settings, Topics
from broker.kafka.views.transactions import Transactions
from broker.kafka.views.view_context import ViewContext
from broker.web.callers import Callers
from broker.web.history import Field, Figures
from broker.web.routes import Route

LAG = Field("group", "lag")
LAG_S = Field("group", "lag_s")
# Partitions of groups that one sample looks at: some 10 ms. And partitions of lagging groups with a looked-up lag in time: a
# small read each, unless the group stands still.
_SAMPLED_MAX = 20_000
_TIMED_MAX = 500


class KafkaViews:
    """``tail`` is the body of the thread ``record-tail``."""

    def __init__(self, kafka: KafkaContext, callers: Callers, figures: Figures) -> None:
        context = ViewContext(kafka, callers, figures, Lags(kafka.logs))
        _add_figures(context)
        self.tail = Tail(context)
        views = (
            Topics(context),
            Groups(context),
            Settings(context),
            Transactions(context),
            Records(context),
            self.tail,
        )
        self.routes: list[Route] = [callers.protected(route) for view in views for route in view.routes()]


def _add_figures(context: ViewContext) -> None:
    kafka, figures = context.kafka, context.figures
    figures.whole["groups"] = kafka.groups.count
    figures.whole["transactions_open"] = lambda: _open_transactions(kafka)
    lags = _GroupLags(context)
    figures.sources.append(lags.read)


def _open_transactions(kafka: KafkaContext) -> int:
    _, states = kafka.transactions.list()
    return sum(state.phase not in AT_REST for _, state in states)


class _GroupLags:
    """The lag of all groups, in records and in time. If they have very many partitions, a sample looks at some groups, in turns,
    and the others keep their figures. A group has a lag in time only while there is room for its partitions."""

    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._known: dict[str, float] = {}
        self._known_s: dict[str, float] = {}
        self._next = ""  # the group with which the next sample begins

    def read(self) -> Mapping[Field, Mapping[str, float]]:
        groups, left, timed = self._context.kafka.groups, _SAMPLED_MAX, _TIMED_MAX
        names = sorted(groups.names())
        first = bisect_left(names, self._next)
        self._next = ""
        known = {name: self._known[name] for name in names if name in self._known}
        known_s = {name: self._known_s[name] for name in names if name in self._known_s}
        for name in names[first:] + names[:first]:
            if left <= 0:
                self._next = name
                break
            figures = groups.figures(name)
            if figures is not None:
                offsets = groups.committed(name, figures.topics)
                count = sum(map(len, offsets.values()))
                left -= 1 + count
                lag = self._context.lags.records(offsets)
                known_s.pop(name, None)
                if lag is None:
                    known.pop(name, None)
                    continue
                known[name] = lag
                if not lag:
                    if offsets:
                        known_s[name] = 0.0
                elif count <= timed:
                    timed -= count
                    longest = self._longest_s(offsets)
                    if longest is not None:
                        known_s[name] = longest
        self._known, self._known_s = known, known_s
        return {LAG: known, LAG_S: known_s}

    def _longest_s(self, offsets: Mapping[str, Mapping[int, CommittedOffset]]) -> float | None:
        lags, now_ms = self._context.lags, self._context.kafka.clock.time_ms()
        return longest_s(
            lags.in_time(lags.of(topic, partition, committed), now_ms)
            for topic, partitions in offsets.items()
            for partition, committed in partitions.items()
        )
