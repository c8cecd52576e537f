"""ACLs as values, and the interface of an authorizer. The codes are those of Kafka's protocol.

`canonical_host` brings addresses of clients into one spelling, so that an ACL's host can be compared with the client's
as a text. Services ask an ``Authorizer`` for the rights of a principal; without an authorizer, everybody may do
everything. Pure.

Tests: tests/server/test_broker_server.py.
"""

import ipaddress
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, Protocol

import attrs

from broker.security.principal import Principal


def canonical_host(text: str) -> str:
    """The spelling of an address that ACLs use. ``0:0:0:0:0:0:0:1`` and ``::1`` are the same, and so are
    ``::ffff:10.0.0.1`` and ``10.0.0.1``, because a listener on ``::`` may report the former for an IPv4 client. Other
    texts are returned unchanged."""
    if text == "*":
        return text
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


class ResourceType(IntEnum):
    """Kafka's ResourceType. A shuffle data set is a TOPIC whose name begins with ``shuffle:`` (see docs/SECURITY.md)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's PatternType. ANY and MATCH are for filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's AclOperation."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Kafka's AclPermissionType."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O = Operation
# The operations that make sense for a resource of each type, besides ALL: Kafka's AclEntry.supportedOperations.
SUPPORTED: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(
        {_O.READ, _O.WRITE, _O.CREATE, _O.DESCRIBE, _O.DELETE, _O.ALTER, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}
    ),
    ResourceType.GROUP: frozenset({_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
    ResourceType.CLUSTER: frozenset(
        {
            _O.CREATE,
            _O.CLUSTER_ACTION,
            _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
            _O.IDEMPOTENT_WRITE,
            _O.ALTER,
            _O.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({_O.DESCRIBE}),
    ResourceType.USER: frozenset({_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS}),
}

# The name of the one resource of type CLUSTER, and the name that a literal pattern uses for all resources of a type.
CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"


@attrs.frozen(slots=True, order=True)
class Acl:
    """One rule: ``principal`` from ``host`` is allowed or denied ``operation`` on the resources that the pattern covers."""

    resource_type: ResourceType
    name: str  # the resource's name, or a prefix of it; "*" in a LITERAL pattern: every resource of the type
    pattern: PatternType  # LITERAL or PREFIXED
    principal: str  # such as "User:alice"; "User:*" is everybody
    host: str  # an address, or "*"
    operation: Operation
    permission: Permission  # ALLOW or DENY


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
        """Whether ``principal`` from the address ``host`` has this right.

        ``audited``: a denial is logged. Pass False if the request did not name the resource, so that a denial only
        hides it.
        """

    def allows_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the principal is allowed the operation on any resource of this type (Kafka's
        authorizeByResourceType)."""
