"""What a broker has of security, from its settings and its catalogue."""

import pytest

from broker.config import load
from broker.errors import ConfigError
from broker.metrics import Registry
from broker.metrics.registry import render
from broker.runtime import system_runtime
from broker.runtime.timers import Timer
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.principal import Principal
from broker.security.security import Security, open_security
from tests.sim.catalogue import SimCatalogue, Tables

ADMIN, OPS = Principal("User", "admin"), Principal("User", "CN=ops,O=x y")


def opened(*overrides: str) -> Security:
    runtime = system_runtime()
    return open_security(load(overrides=overrides), SimCatalogue(None, Tables()), runtime, Timer(runtime.clock))


def allows(security: Security, principal: Principal) -> bool:
    authorizer = security.authorizer
    assert authorizer is not None
    return authorizer.allows(principal, "::1", Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)


def test_no_authorizer_without_the_setting() -> None:
    security = opened("super.users=User:admin")
    assert security.authorizer is None
    security.register_metrics(Registry())


@pytest.mark.parametrize("name", ["acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"])
def test_super_users_may_do_everything_and_others_nothing(name: str) -> None:
    security = opened(f"authorizer.class.name={name}", "super.users=User:admin; User:CN=ops,O=x y;")
    assert [allows(security, who) for who in (ADMIN, OPS, Principal("User", "x"))] == [True, True, False]


def test_uncovered_resources_are_open_if_configured() -> None:
    assert allows(opened("authorizer.class.name=acl", "allow.everyone.if.no.acl.found=true"), ADMIN)


def test_super_user_without_type_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="Correct super_users: Write the principal 'admin' as TYPE:NAME"):
        opened("super.users=admin")


def test_denials_are_counted() -> None:
    security, metrics = opened("authorizer.class.name=acl"), Registry()
    security.register_metrics(metrics)
    allows(security, ADMIN)
    text = render(metrics).decode()
    assert 'broker_authorizations_denied_total{operation="alter",resource_type="cluster"} 1.0' in text
    assert "\nbroker_acls 0.0" in text
