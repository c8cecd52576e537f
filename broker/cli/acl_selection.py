"""Which ACLs a command line of `broker acls` means. The options are those of Kafka's kafka-acls.sh. Pure.

Tests: tests/cli/test_acls.py.
"""

from collections.abc import Iterable

import attrs

from broker.errors import ConfigError
from broker.security.acl import CLUSTER_NAME, SUPPORTED, Acl, Operation, PatternType, Permission, ResourceType
from broker.security.principal import parse_principal


@attrs.frozen
class Selection:
    """The options of a command line."""

    resources: tuple[tuple[ResourceType, str], ...] = ()
    pattern: PatternType = PatternType.LITERAL
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False

    def rules(self) -> list[Acl]:
        """The ACLs to add. Raises ConfigError."""
        if not self.allowed and not self.denied:
            raise ConfigError("Say for whom: --allow-principal User:alice or --deny-principal User:alice.")
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise ConfigError("Choose --resource-pattern-type literal or prefixed: the others only find ACLs.")
        rules = []
        for kind, name, operation in self._permitted():
            pattern = PatternType.LITERAL if kind is ResourceType.CLUSTER else self.pattern
            for principal, host, permission in self._entries():
                rules.append(Acl(kind, name, pattern, principal, host, operation, permission))
        return list(dict.fromkeys(rules))

    def filters(
        self,
    ) -> list[tuple[ResourceType, str | None, PatternType, str | None, str | None, Operation, Permission]]:
        """What `remove` deletes: these ACLs, or those of the resources for everybody where no principal is given."""
        if not self.resources:
            raise ConfigError("Say of what: --topic NAME, --group NAME, --cluster, --transactional-id ID.")
        entries: list[tuple[str | None, str | None, Permission]] = [*self._entries()] or [(None, None, Permission.ANY)]
        found = []
        chosen = bool(self.operations or self.producer or self.consumer)
        wanted: Iterable[tuple[ResourceType, str, Operation]] = (
            self._permitted() if chosen else [(kind, name, Operation.ANY) for kind, name in self.resources]
        )
        for kind, name, operation in wanted:
            pattern = self.pattern if kind is not ResourceType.CLUSTER else PatternType.ANY
            for principal, host, permission in entries:
                found.append((kind, name, pattern, principal, host, operation, permission))
        return list(dict.fromkeys(found))

    def _permitted(self) -> list[tuple[ResourceType, str, Operation]]:
        """Resource and operation."""
        if self.producer or self.consumer:
            if self.operations:
                raise ConfigError("Leave out --operation: --producer and --consumer say which operations they need.")
            return self._needed()
        if not self.resources:
            raise ConfigError("Say of what: --topic NAME, --group NAME, --cluster, --transactional-id ID.")
        permitted = []
        for kind, name in self.resources:
            for operation in self.operations or (Operation.ALL,):
                if operation is not Operation.ALL and operation not in SUPPORTED[kind]:
                    names = ", ".join(sorted(one.name for one in SUPPORTED[kind]))
                    raise ConfigError(
                        f"Choose an --operation that a {kind.name} has, not {operation.name}: {names}, ALL."
                    )
                permitted.append((kind, name, operation))
        return permitted

    def _needed(self) -> list[tuple[ResourceType, str, Operation]]:
        """What producers and consumers need, as kafka-acls.sh has it."""
        kinds = {kind for kind, _ in self.resources}
        if ResourceType.TOPIC not in kinds:
            raise ConfigError("Name a --topic with --producer or --consumer.")
        if self.consumer and ResourceType.GROUP not in kinds:
            raise ConfigError("Name a --group with --consumer.")
        needed: list[tuple[ResourceType, str, Operation]] = []
        for kind, name in self.resources:
            operations: list[Operation] = []
            if kind is ResourceType.TOPIC:
                operations += [Operation.WRITE, Operation.DESCRIBE, Operation.CREATE] * self.producer + [
                    Operation.READ,
                    Operation.DESCRIBE,
                ] * self.consumer
            elif kind is ResourceType.TRANSACTIONAL_ID and self.producer:
                operations += [Operation.WRITE, Operation.DESCRIBE]
            elif kind is ResourceType.GROUP and self.consumer:
                operations += [Operation.READ]
            else:
                raise ConfigError(f"Leave out the {kind.name}: --producer and --consumer do not use it.")
            needed += [(kind, name, operation) for operation in operations]
        if self.idempotent:
            needed.append((ResourceType.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE))
        return needed

    def _entries(self) -> list[tuple[str, str, Permission]]:
        """Principal, host and permission."""
        entries = []
        for principals, hosts, permission in (
            (self.allowed, self.allowed_hosts, Permission.ALLOW),
            (self.denied, self.denied_hosts, Permission.DENY),
        ):
            if hosts and not principals:
                name = permission.name.lower()
                raise ConfigError(f"Give --{name}-principal with --{name}-host.")
            for principal in principals:
                parse_principal(principal)
                entries += [(principal, host, permission) for host in hosts or ("*",)]
        return entries


def parse_operation(text: str) -> Operation:
    """``Read``, ``DescribeConfigs`` or ``DESCRIBE_CONFIGS``. Raises ConfigError."""
    wanted = text.replace("_", "").replace("-", "").lower()
    for operation in Operation:
        if operation > Operation.ANY and operation.name.replace("_", "").lower() == wanted:
            return operation
    names = ", ".join(one.name for one in Operation if one > Operation.ANY)
    raise ConfigError(f"There is no operation {text!r}: the operations are {names}.")
