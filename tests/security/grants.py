"""An authorizer for tests: everything is allowed, or exactly what was granted. No operation implies another. And the same by real
ACLs, where some do."""

from collections.abc import Iterator
from contextlib import contextmanager

from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter
from broker.security.principal import ANONYMOUS, Principal

Grant = tuple[Operation, ResourceType, str]


class Grants:
    """Implements ``Authorizer``. ``rules`` None: everything is allowed."""

    def __init__(self) -> None:
        self.rules: frozenset[Grant] | None = None
        self.asked: list[Grant] = []
        self.denied: list[Grant] = []  # audited denials only
        self.principals: set[str] = set()

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
        grant = operation, resource_type, name
        self.principals.add(f"{principal} from {host}")
        self.asked.append(grant)
        allowed = self.rules is None or grant in self.rules
        if audited and not allowed:
            self.denied.append(grant)
        return allowed

    def allows_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        self.asked.append((operation, resource_type, "?"))
        return self.rules is None or any(rule[:2] == (operation, resource_type) for rule in self.rules)

    @contextmanager
    def only(self, *rules: Grant) -> Iterator[None]:
        """Only these are allowed meanwhile."""
        before, self.rules = self.rules, frozenset(rules)
        self.asked.clear()
        self.denied.clear()
        try:
            yield
        finally:
            self.rules = before


class AclGrants(Grants):
    """Grants are ACLs for ``User:ANONYMOUS``, and ``AclAuthorizer`` decides."""

    def __init__(self, authorizer: AclAuthorizer) -> None:
        super().__init__()
        self._authorizer = authorizer

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
        if self.rules is None:
            return True
        allowed = self._authorizer.allows(principal, host, operation, resource_type, name, audited=audited)
        if audited and not allowed:
            self.denied.append((operation, resource_type, name))
        return allowed

    def allows_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        return self.rules is None or self._authorizer.allows_any(principal, host, operation, resource_type)

    @contextmanager
    def only(self, *rules: Grant) -> Iterator[None]:
        acls = [
            Acl(kind, name, PatternType.LITERAL, str(ANONYMOUS), "*", operation, Permission.ALLOW)
            for operation, kind, name in rules
        ]
        assert self._authorizer.create(acls) == [None] * len(acls)
        try:
            with super().only(*rules):
                yield
        finally:
            self._authorizer.delete([AclFilter(acl.resource_type, acl.name) for acl in acls])
