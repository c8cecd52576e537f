"""All views of the Kafka service, and the figures that it has for the overview and the history.

Tests: tests/kafka/views/test_topics.py, tests/http/api/test_overview.py.
"""

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
# Partitions of groups that one sample looks at: some ms. Groups beyond that have no history of their lag.
_SAMPLED_MAX = 50_000


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
    figures.sources.append(lambda: {LAG: _group_lags(context)})


def _open_transactions(kafka: KafkaContext) -> int:
    _, states = kafka.transactions.list()
    return sum(state.phase not in AT_REST for _, state in states)


def _group_lags(context: ViewContext) -> Mapping[str, float]:
    groups, left = context.kafka.groups, _SAMPLED_MAX
    found: dict[str, float] = {}
    for name in groups.names():
        figures = groups.figures(name)
        if figures is None:
            continue
        offsets = groups.committed(name, figures.topics)
        left -= sum(map(len, offsets.values()))
        if left < 0:
            break
        found[name] = context.lags.records(offsets)
    return found
