"""ACLs in Kafka's messages: their values from codes, and the fields of replies. Pure.

Tests: tests/kafka/handlers/test_acls.py.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType, canonical_host
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter
from protocol.kafka.errors import ErrorCode

E = TypeVar("E", bound=IntEnum)


def require_acls(context: KafkaContext) -> AclAuthorizer:
    """Raises RequestError (security_disabled) if ACLs are off, as Kafka does."""
    if isinstance(context.authorizer, AclAuthorizer):
        return context.authorizer
    raise RequestError(
        ErrorCode.security_disabled, "No authorizer is configured on the broker (authorizer.class.name)."
    )


def filter_of(message: Any) -> AclFilter:
    """The filter of a describe request, or a filter of a delete request."""
    return AclFilter(
        _value(ResourceType, message.resource_type_filter),
        message.resource_name_filter,
        _value(PatternType, message.pattern_type_filter),
        message.principal_filter,
        message.host_filter,
        _value(Operation, message.operation),
        _value(Permission, message.permission_type),
    )


def acl_of(message: Any) -> Acl:
    """An ACL of a create request."""
    return Acl(
        _value(ResourceType, message.resource_type),
        message.resource_name,
        _value(PatternType, message.resource_pattern_type),
        message.principal,
        canonical_host(message.host),
        _value(Operation, message.operation),
        _value(Permission, message.permission_type),
    )


def pattern_fields(acl: Acl) -> dict[str, Any]:
    return {"resource_type": acl.resource_type, "resource_name": acl.name, "pattern_type": acl.pattern}


def rule_fields(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def result_fields(error: Refusal | StorageError | None) -> Mapping[str, Any]:
    code, message = error_fields(error) if error is not None else (ErrorCode.none, None)
    return {"error_code": code, "error_message": message}


def _value(kind: type[E], code: int) -> E:
    """As in Kafka, UNKNOWN for a code that a newer client may know."""
    try:
        return kind(code)
    except ValueError:
        return kind(0)
