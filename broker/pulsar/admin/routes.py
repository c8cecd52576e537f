"""All routes of the admin API and of the lookup. The assembly adds authentication to those that block.

Tests: tests/pulsar/admin/test_topics.py.
"""

from broker.pulsar.admin.brokers import Brokers, BrokerStats, Lookup
from broker.pulsar.admin.non_persistent import NonPersistent
from broker.pulsar.admin.policies import PolicyCalls
from broker.pulsar.admin.schemas import Schemas
from broker.pulsar.admin.stats import Rates, Stats
from broker.pulsar.admin.subscriptions import Subscriptions
from broker.pulsar.admin.tenants import Permissions, Tenants
from broker.pulsar.admin.topics import Topics
from broker.pulsar.context import PulsarContext
from broker.web.routes import Route


def routes(context: PulsarContext) -> list[Route]:
    rates = Rates(context)
    lookup, passing = Lookup(context), NonPersistent(context, rates)
    topics, permissions = Topics(context, passing), Permissions(context)
    groups = (
        lookup,
        topics,
        passing,
        Subscriptions(context),
        Stats(context, rates),
        Tenants(context, topics, permissions),
        PolicyCalls(context),
        Schemas(context),
        permissions,
        Brokers(context, lookup),
        BrokerStats(context, rates),
    )
    return [route for group in groups for route in group.routes()]
