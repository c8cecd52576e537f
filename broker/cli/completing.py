"""Names of topics, groups and transactional ids for the shell, from the broker that the command line names so far.

A shell waits for this at every press of the Tab key: the broker has a short time to answer, no password is asked for,
and every error means no suggestions.

Tests: tests/cli/test_completion.py.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from broker.cli.broker_options import target_without_asking
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.client.kafka import Cluster

_ANSWER_MS = 1000
# More than a person reads, and few enough for a shell to sort.
_NAMES_MAX = 500


def topics(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from broker.client.kafka.admin.configs import describe_topics

    def ask(cluster: "Cluster") -> Iterable[str]:
        return (topic.name for topic in describe_topics(cluster.routing).topics if not topic.is_internal)

    return _names(ctx, incomplete, ask)


def groups(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from broker.client.kafka.admin.groups import list_groups

    return _names(ctx, incomplete, lambda cluster: (group.group for group in list_groups(cluster.routing)))


def transactional_ids(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from broker.client.kafka.admin.cluster import list_ids

    return _names(
        ctx, incomplete, lambda cluster: (transaction.transactional_id for transaction in list_ids(cluster.routing, ()))
    )


def _names(ctx: click.Context, incomplete: str, ask: "Callable[[Cluster], Iterable[str]]") -> list[str]:
    """The names that begin with the typed text and are not on the command line already."""
    from broker.client.kafka.cluster import Cluster

    typed = {
        name for value in ctx.params.values() if isinstance(value, tuple) for name in value if isinstance(name, str)
    }
    try:
        target = target_without_asking(ctx.params)
        with Cluster(target.config("completion")) as cluster, cluster.routing.limit.within(_ANSWER_MS):
            names = [name for name in ask(cluster) if name.startswith(incomplete) and name not in typed]
    except (BrokerError, click.ClickException, OSError, ValueError):
        return []
    return names[:_NAMES_MAX]
