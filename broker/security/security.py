"""The security of one broker, for all its services: made by the server, before the services.

Tests: tests/test_server.py.
"""

import attrs

from broker.config import BrokerConfig
from broker.metadata.catalogue import Catalogue
from broker.runtime import Runtime
from broker.runtime.timers import Timer
from broker.security.authorizer import Authorizer
from broker.security.quotas.client_quotas import ClientQuotas
from broker.security.quotas.sensors import Windows


@attrs.define(eq=False)
class Security:
    """``authorizer`` None: everybody may do everything."""

    quotas: ClientQuotas
    authorizer: Authorizer | None = None


def open_security(config: BrokerConfig, catalogue: Catalogue, runtime: Runtime, timer: Timer) -> Security:
    """Load what the catalogue has. Raises ConfigError for settings that cannot be carried out."""
    windows = Windows(
        config.quota_window_num,
        config.quota_window_size_seconds,
        config.controller_quota_window_num,
        config.controller_quota_window_size_seconds,
    )
    quotas = ClientQuotas(catalogue, runtime.clock, windows)
    quotas.load()
    return Security(quotas)
