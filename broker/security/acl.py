"""ACLs as values: what is protected, what may be done with it, and one rule about it. The codes are those of Kafka's protocol.

Tests: tests/test_server.py.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import attrs


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
    name: str  # of the resource, or what its name begins with; "*" in a LITERAL pattern: every resource of the type
    pattern: PatternType  # LITERAL or PREFIXED
    principal: str  # such as "User:alice"; "User:*" is everybody
    host: str  # an address, or "*"
    operation: Operation
    permission: Permission  # ALLOW or DENY
