"""What a principal may do. Services ask an ``Authorizer``; without one, everybody may do everything.

Tests: tests/test_server.py.
"""

from typing import Protocol

from broker.security.acl import Operation, ResourceType
from broker.security.principal import Principal


class Authorizer(Protocol):
    """Any thread may call any method: processors ask for every request, so an answer costs about 0.2 us."""

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        audited: bool = True,
    ) -> bool:
        """Whether ``principal`` from the address ``host`` may do this.

        ``audited``: a denial is logged. False where the request did not name the resource, so that a denial only hides it.
        """

    def allows_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there is any resource of this type for which the principal is allowed the operation (Kafka's
        authorizeByResourceType)."""
