"""ACLs drawn by hypothesis, over few names so that they meet; and Kafka's decision, slow and obvious, to compare with."""

from collections.abc import Collection

from hypothesis import strategies as st

from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType

NAMES = ("a", "ab", "abc", "b", "ba", "*", "**", "hardcode")
PRINCIPALS = ("User:alice", "User:bob", "User:*", "Group:alice")
HOSTS = ("*", "10.0.0.1", "::1")
OPERATIONS = tuple(operation for operation in Operation if operation > Operation.ANY)
# Few, so that they meet; all others are drawn as well.
USUAL = (Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS)


def acls(resource_types: Collection[ResourceType] = (ResourceType.TOPIC, ResourceType.GROUP)) -> st.SearchStrategy[Acl]:
    return st.builds(
        Acl,
        st.sampled_from(list(resource_types)),
        st.sampled_from(NAMES),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        st.sampled_from(PRINCIPALS),
        st.sampled_from(HOSTS),
        st.sampled_from(USUAL) | st.sampled_from(OPERATIONS),
        st.sampled_from([Permission.ALLOW, Permission.DENY]),
    )


def covers(acl: Acl, resource_type: ResourceType, name: str) -> bool:
    if acl.resource_type != resource_type:
        return False
    if acl.pattern == PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def concerns(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in ("User:*", principal) and acl.host in ("*", host)


IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def is_allowed(
    acls: Collection[Acl],
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    default: bool,
) -> bool:
    covering = [acl for acl in acls if covers(acl, resource_type, name)]
    if not covering:
        return default
    concerning = [acl for acl in covering if concerns(acl, principal, host)]
    if any(acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in concerning):
        return False
    sufficient = {operation, Operation.ALL, *IMPLIED_BY.get(operation, ())}
    return any(acl.permission == Permission.ALLOW and acl.operation in sufficient for acl in concerning)


def is_any_allowed(
    acls: Collection[Acl], principal: str, host: str, operation: Operation, resource_type: ResourceType
) -> bool:
    """KIP-679: an ALLOW, of just this operation or of ALL, that no DENY covers as a whole."""
    of_client = [
        acl
        for acl in acls
        if acl.resource_type == resource_type
        and concerns(acl, principal, host)
        and acl.operation in (operation, Operation.ALL)
    ]
    denied = [acl for acl in of_client if acl.permission == Permission.DENY]
    return any(acl.permission == Permission.ALLOW and not any(dominates(no, acl) for no in denied) for acl in of_client)


def dominates(deny: Acl, allow: Acl) -> bool:
    """Whether the DENY covers everything that the ALLOW covers."""
    everything = allow.pattern == PatternType.LITERAL and allow.name == "*"
    if deny.pattern == PatternType.LITERAL:
        return deny.name == "*" or (allow.pattern == PatternType.LITERAL and deny.name == allow.name)
    return not everything and allow.name.startswith(deny.name)
