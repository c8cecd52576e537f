"""Which ACLs a request to describe or to delete means (Kafka's AclBindingFilter), and which ACLs can be created. Pure."""

from collections.abc import Iterator

import attrs

from broker.errors import Refusal
from broker.security.acl import CLUSTER_NAME, WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_rules import AclRules
from broker.security.hosts import canonical_host

# Characters of a resource's name, a principal or a host. Names of topics have up to 249; the distinguished names of
# certificates are the longest principals. Kafka has no limit but that of its strings, 32 KiB.
TEXT_MAX = 1024


class InvalidAcl(Refusal):
    """An ACL or a filter that means nothing."""


@attrs.frozen(slots=True)
class AclFilter:
    """None, and ANY: every value. ``name`` with the pattern MATCH: every pattern that covers this resource."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = attrs.field(default=None, converter=attrs.converters.optional(canonical_host))
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def check(self) -> None:
        """Raises InvalidAcl for a filter with unknown values."""
        for value in (self.resource_type, self.pattern, self.operation, self.permission):
            if value == 0:
                raise InvalidAcl(f"The filter has an unknown {_WORDS[type(value)]}.")

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self.pattern in (PatternType.ANY, PatternType.MATCH, acl.pattern)
            and (self.name is None or self._matches_name(acl))
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.name == acl.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        if acl.pattern is PatternType.PREFIXED:
            assert self.name is not None
            return self.name.startswith(acl.name)
        return acl.name == WILDCARD

    def candidates(self, rules: AclRules) -> Iterator[Acl]:
        """The ACLs among which those that match are."""
        if self.resource_type is ResourceType.ANY or self.principal is None or self.host is None:
            return iter(rules)
        name = None if self.pattern is PatternType.MATCH else self.name
        return rules.of_client(self.resource_type, self.principal, self.host, name)


_WORDS = {
    ResourceType: "resource type",
    PatternType: "pattern type",
    Operation: "operation",
    Permission: "permission",
}


def check_new(acl: Acl) -> None:
    """Raises InvalidAcl for what cannot be created: the rules are Kafka's, with a limit to the lengths."""
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise InvalidAcl("Give the ACL the type of a resource.")
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise InvalidAcl(f"The only valid name of a resource of type CLUSTER is {CLUSTER_NAME}.")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidAcl("Give the ACL the pattern type LITERAL or PREFIXED.")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        raise InvalidAcl("Give the ACL an operation.")
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise InvalidAcl("Give the ACL the permission DENY or ALLOW.")
    if not acl.name:
        raise InvalidAcl("Give the ACL the name of a resource.")
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise InvalidAcl("Write the principal of the ACL as TYPE:NAME, for example User:alice.")
    if not acl.host:
        raise InvalidAcl(f"Give the ACL the address of a host, or {WILDCARD} for all hosts.")
    if max(len(acl.name), len(acl.principal), len(acl.host)) > TEXT_MAX:
        raise InvalidAcl(f"Keep the name, the principal and the host of an ACL within {TEXT_MAX} characters each.")
    try:
        (acl.name + acl.principal + acl.host).encode()
    except UnicodeEncodeError:  # JSON can escape half of a character
        raise InvalidAcl("Write the ACL in characters that UTF-8 can encode.") from None
