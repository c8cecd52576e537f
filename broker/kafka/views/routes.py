"""All views of the Kafka service, and the figures that it has for the overview and the history.

Tests: tests/kafka/views/test_topics.py, tests/http/api/test_overview.py.
"""

from bisect import bisect_left
from collections.abc import Mapping

from broker.kafka.context import KafkaContext
from broker.kafka.groups.lag import Lags
from broker.kafka.transactions.phases import AT_REST
from broker.kafka.views.groups import Groups
from broker.kafka.views.records import Records
from broker.kafka.views.settings import Settings
from broker.kafka.views.tail import Tail
from broker.kafka.views.topics import Topics
from broker.kafka.views.transactions import Transactions
from broker.kafka.views.view_context import ViewContext
from broker.network.callers import Callers
from broker.network.figures import Field, Figures
from broker.network.routes import Route

LAG = Field("group", "lag")
# Partitions of groups that one sample looks at: some 10 ms.
_SAMPLED_MAX = 20_000


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
    figures.sources.append(lambda: {LAG: lags.read()})


def _open_transactions(kafka: KafkaContext) -> int:
    _, states = kafka.transactions.list()
    return sum(state.phase not in AT_REST for _, state in states)


class _GroupLags:
    """The lag of all groups in records. If they have very many partitions, a sample looks at some groups, in turns, and the
    others keep what they had."""

    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._known: dict[str, float] = {}
        self._next = ""  # the group with which the next sample begins

    def read(self) -> Mapping[str, float]:
        groups, left = self._context.kafka.groups, _SAMPLED_MAX
        names = sorted(groups.names())
        first = bisect_left(names, self._next)
        self._next = ""
        known = {name: self._known[name] for name in names if name in self._known}
        for name in names[first:] + names[:first]:
            if left <= 0:
                self._next = name
                break
            figures = groups.figures(name)
            if figures is not None:
                offsets = groups.committed(name, figures.topics)
                left -= 1 + sum(map(len, offsets.values()))
                known[name] = self._context.lags.records(offsets)
        self._known = known
        return known
