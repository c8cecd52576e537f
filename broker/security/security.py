"""The security of one broker, for all its services: made by the server, before the services.

Tests: tests/security/test_security.py.
"""

import attrs

from broker.config import BrokerConfig
from broker.metadata.catalogue import Catalogue
from broker.metrics import Registry
from broker.runtime import Runtime
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.principal import parse_principal


@attrs.define(eq=False)
class Security:
    """``authorizer`` None: everybody may do everything."""

    authorizer: AclAuthorizer | None = None

    def register_metrics(self, registry: Registry) -> None:
        authorizer = self.authorizer
        if authorizer is not None:
            registry.gauge("acls", "ACLs in force", lambda: {(): authorizer.rules.count})
            registry.read_counter(
                "authorizations_denied",
                "Requests, or parts of them, that ACLs have denied",
                authorizer.audit.counts,
                labels=("operation", "resource_type"),
            )


def open_security(config: BrokerConfig, catalogue: Catalogue, runtime: Runtime, timer: Timer) -> Security:
    """Load what the catalogue has. Raises ConfigError for settings that cannot be carried out."""
    return Security(authorizer=_authorizer(config, catalogue, runtime.clock))


def _authorizer(config: BrokerConfig, catalogue: Catalogue, clock: Clock) -> AclAuthorizer | None:
    # Checked in either case: a name that is misspelled now would be missed on the day that ACLs are switched on.
    super_users = frozenset(
        str(parse_principal(text.strip())) for text in config.super_users.split(";") if text.strip()
    )
    if config.authorizer_class_name is None:
        return None
    return AclAuthorizer(
        catalogue,
        clock,
        super_users=super_users,
        default=config.allow_everyone_if_no_acl_found,
        acls_max=config.acls_max,
    )
