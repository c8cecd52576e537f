"""All ACLs at one moment, and filters over them. `AclRules` is indexed, so that a decision costs the same for ten ACLs
and for a hundred thousand. It is immutable: a change returns new rules, which share the unchanged tables.

The rules are those of Kafka's StandardAuthorizer. An ACL concerns a request if its principal is the client's or ``User:*``, its
host the client's or ``*``, and its pattern covers the resource: its name, a prefix of its name, or ``*``. Then

- a DENY of the operation, or of ALL, refuses the request, whatever else there is;
- an ALLOW of the operation, of ALL, or of one that implies it (see ``_DESCRIBED_BY`` and ``_CONFIGS_DESCRIBED_BY``) grants it;
- without either it is refused, or, if no ACL of any principal covers the resource, the default decides.

The index leads from the type of the resource, the principal and the host to the names, and from a name to two sets of
operations, allowed and denied, as bits, ``1 << Operation``. So a decision takes four look-ups (the principal or
everybody, the host or any) for the name, for ``*``, and for each length of that principal's prefixes.

Any thread may read. A change copies the tables that it changes: those of one type of resource and of one principal.

`AclFilter` selects ACLs to describe or delete (Kafka's AclBindingFilter); `check_new` says which ACLs can be created.
Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Final

import attrs

from broker.errors import Refusal
from broker.security.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)

EVERYBODY: Final = "User:*"
EVERYTHING: Final = (1 << len(Operation)) - 1


def bit(operation: Operation) -> int:
    return 1 << operation


_ALL = bit(Operation.ALL)
# As in Kafka. Only an ALLOW implies other operations: a client that may not write may still be allowed to describe.
_DESCRIBED_BY = bit(Operation.READ) | bit(Operation.WRITE) | bit(Operation.DELETE) | bit(Operation.ALTER)
_CONFIGS_DESCRIBED_BY = bit(Operation.ALTER_CONFIGS)

# The bits of the allowed operations, and of the denied operations, as the ACLs name them.
Bits = tuple[int, int]
_NO_BITS: Bits = (0, 0)
Client = tuple[str, str]  # principal and host, as in an ACL


@attrs.frozen(slots=True)
class _Names:
    """The ACLs of one principal and host for the resources of one type."""

    literal: Mapping[str, Bits]
    prefixed: Mapping[str, Bits]
    lengths: tuple[int, ...]  # of the prefixes, ascending
    allowed: int  # the union of all allowed operations

    def of(self, name: str) -> Bits:
        """The operations that are allowed and denied for this resource."""
        allowed, denied = self.literal.get(name, _NO_BITS)
        more = self.literal.get(WILDCARD)
        if more is not None:
            allowed |= more[0]
            denied |= more[1]
        size = len(name)
        for length in self.lengths:
            if length > size:
                break
            more = self.prefixed.get(name[:length])
            if more is not None:
                allowed |= more[0]
                denied |= more[1]
        return allowed, denied


_NO_NAMES = _Names({}, {}, (), 0)


@attrs.frozen(slots=True)
class _Patterns:
    """The number of ACLs for each pattern of one type of resource, of all principals. Needed only if the default is to
    allow resources that no ACL covers."""

    literal: Mapping[str, int]
    prefixed: Mapping[str, int]
    lengths: tuple[int, ...]

    def cover(self, name: str) -> bool:
        return (
            name in self.literal
            or WILDCARD in self.literal
            or any(name[:length] in self.prefixed for length in self.lengths if length <= len(name))
        )


_NO_PATTERNS = _Patterns({}, {}, ())


@attrs.frozen(slots=True)
class AclRules:
    """``changed`` adds and removes ACLs; ``decide``, ``decide_by`` and ``decide_any`` answer. Begin with
    ``no_rules``."""

    clients: Mapping[ResourceType, Mapping[Client, _Names]]
    patterns: Mapping[ResourceType, _Patterns] | None  # None: a resource that no ACL covers is denied
    count: int  # the number of ACLs

    # -- questions ----------------------------------------------------------------------------------------------------

    def decide(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """The bits of all operations that the client is allowed on this resource."""
        allowed, denied = self._stated(principal, host, resource_type, name)
        if not allowed and self.patterns is not None and not self.patterns.get(resource_type, _NO_PATTERNS).cover(name):
            return EVERYTHING
        return _with_implied(allowed) & ~_of_all(denied)

    def decide_by(
        self, principal: str, host: str, resource_type: ResourceType, name: str, alias: str | None
    ) -> tuple[int, int]:
        """The bits of all operations that the client is allowed on a resource with a second name, and of the operations
        that no ACL denies. ACLs of either name count; whether the default applies depends on the first name."""
        allowed, denied = self._stated(principal, host, resource_type, name)
        is_open = (
            not allowed and self.patterns is not None and not self.patterns.get(resource_type, _NO_PATTERNS).cover(name)
        )
        if alias is not None:
            more = self._stated(principal, host, resource_type, alias)
            allowed, denied = allowed | more[0], denied | more[1]
        undenied = EVERYTHING & ~_of_all(denied)
        return (EVERYTHING if is_open else _with_implied(allowed)) & undenied, undenied

    def _stated(self, principal: str, host: str, resource_type: ResourceType, name: str) -> Bits:
        """The operations that ACLs allow and deny for this name."""
        clients = self.clients.get(resource_type, {})
        allowed = denied = 0
        for client in _clients(principal, host):
            names = clients.get(client)
            if names is not None:
                more = names.of(name)
                allowed |= more[0]
                denied |= more[1]
        return allowed, denied

    def decide_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether a resource of this type exists, or could exist, for which ACLs allow the operation (KIP-679). As in
        Kafka, no operation implies another here, and the default does not count."""
        clients = self.clients.get(resource_type, {})
        tables = [clients[client] for client in _clients(principal, host) if client in clients]
        wanted = bit(operation) | _ALL

        def denied(name: str) -> bool:
            return any(names.literal.get(name, _NO_BITS)[1] & wanted for names in tables)

        def prefix_denied(name: str) -> bool:
            return any(
                names.prefixed.get(name[:length], _NO_BITS)[1] & wanted
                for names in tables
                for length in names.lengths
                if length <= len(name)
            )

        if denied(WILDCARD):
            return False
        if any(names.literal.get(WILDCARD, _NO_BITS)[0] & wanted for names in tables):
            return True
        for names in tables:
            if not names.allowed & wanted:
                continue
            for name, bits in names.literal.items():
                if bits[0] & wanted and not denied(name) and not prefix_denied(name):
                    return True
            for name, bits in names.prefixed.items():
                if bits[0] & wanted and not prefix_denied(name):
                    return True
        return False

    def __contains__(self, acl: Acl) -> bool:
        names = self.clients.get(acl.resource_type, {}).get((acl.principal, acl.host), _NO_NAMES)
        table = names.literal if acl.pattern is PatternType.LITERAL else names.prefixed
        bits = table.get(acl.name, _NO_BITS)[_side(acl)]
        return bool(bits & bit(acl.operation))

    def __iter__(self) -> Iterator[Acl]:
        for resource_type, clients in self.clients.items():
            for client in clients:
                yield from self.of_client(resource_type, *client)

    def of_client(
        self, resource_type: ResourceType, principal: str, host: str, name: str | None = None
    ) -> Iterator[Acl]:
        """The ACLs of exactly this principal and host, and, if ``name`` is not None, of exactly this name."""
        names = self.clients.get(resource_type, {}).get((principal, host), _NO_NAMES)
        for pattern, table in ((PatternType.LITERAL, names.literal), (PatternType.PREFIXED, names.prefixed)):
            if name is not None:
                table = {name: table[name]} if name in table else {}
            for key, sides in table.items():
                for permission, bits in zip((Permission.ALLOW, Permission.DENY), sides, strict=True):
                    while bits:
                        operation = Operation(bits.bit_length() - 1)
                        bits ^= bit(operation)
                        yield Acl(resource_type, key, pattern, principal, host, operation, permission)

    # -- changes ------------------------------------------------------------------------------------------------------

    def changed(self, added: Iterable[Acl] = (), removed: Iterable[Acl] = ()) -> "AclRules":
        """The rules without ``removed`` and then with ``added``."""
        change = _Change(self)
        for acl in removed:
            change.set(acl, False)
        for acl in added:
            change.set(acl, True)
        return change.result()


def no_rules(default: bool) -> AclRules:
    """``default``: a resource that no ACL covers is allowed."""
    return AclRules({}, {} if default else None, 0)


class _Change:
    """Builds new rules. Each table is copied when it is first changed."""

    def __init__(self, rules: AclRules) -> None:
        self._rules = rules
        self._clients = dict(rules.clients)
        self._patterns = None if rules.patterns is None else dict(rules.patterns)
        self._count = rules.count
        self._own_clients: dict[ResourceType, dict[Client, _Names]] = {}
        self._own_names: dict[tuple[ResourceType, Client], tuple[dict[str, Bits], dict[str, Bits]]] = {}
        self._own_patterns: dict[ResourceType, tuple[dict[str, int], dict[str, int]]] = {}

    def set(self, acl: Acl, present: bool) -> None:
        resource_type, client = acl.resource_type, (acl.principal, acl.host)
        own = self._own_names.get((resource_type, client))
        if own is None:
            names = self._clients.get(resource_type, {}).get(client, _NO_NAMES)
            own = self._own_names[resource_type, client] = dict(names.literal), dict(names.prefixed)
        literal = acl.pattern is PatternType.LITERAL
        table = own[0 if literal else 1]
        bits = list(table.get(acl.name, _NO_BITS))
        side, mask = _side(acl), bit(acl.operation)
        if bool(bits[side] & mask) == present:
            return
        bits[side] ^= mask
        if any(bits):
            table[acl.name] = bits[0], bits[1]
        else:
            del table[acl.name]
        change = 1 if present else -1
        self._count += change
        if self._patterns is None:
            return
        patterns = self._own_patterns.get(resource_type)
        if patterns is None:
            before = self._patterns.get(resource_type, _NO_PATTERNS)
            patterns = self._own_patterns[resource_type] = dict(before.literal), dict(before.prefixed)
        counts = patterns[0 if literal else 1]
        counts[acl.name] = counts.get(acl.name, 0) + change
        if not counts[acl.name]:
            del counts[acl.name]

    def result(self) -> AclRules:
        for resource_type, (literal, prefixed) in self._own_patterns.items():
            assert self._patterns is not None
            self._patterns[resource_type] = _Patterns(literal, prefixed, _lengths(prefixed))
        for (resource_type, client), (names, prefixes) in self._own_names.items():
            clients = self._own_clients.get(resource_type)
            if clients is None:
                clients = self._own_clients[resource_type] = dict(self._clients.get(resource_type, {}))
            if names or prefixes:
                allowed = reduce(or_, (bits[0] for table in (names, prefixes) for bits in table.values()))
                clients[client] = _Names(names, prefixes, _lengths(prefixes), allowed)
            else:
                clients.pop(client, None)
        self._clients.update(self._own_clients)
        return AclRules(self._clients, self._patterns, self._count)


def _clients(principal: str, host: str) -> tuple[Client, ...]:
    """The principals and hosts of the ACLs that apply to this client."""
    return (principal, host), (principal, WILDCARD), (EVERYBODY, host), (EVERYBODY, WILDCARD)


def _side(acl: Acl) -> int:
    return 0 if acl.permission is Permission.ALLOW else 1


def _with_implied(bits: int) -> int:
    if bits & _DESCRIBED_BY:
        bits |= bit(Operation.DESCRIBE)
    if bits & _CONFIGS_DESCRIBED_BY:
        bits |= bit(Operation.DESCRIBE_CONFIGS)
    return _of_all(bits)


def _of_all(bits: int) -> int:
    return EVERYTHING if bits & _ALL else bits


def _lengths(names: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({len(name) for name in names}))


# The longest name of a resource, principal or host (characters). Names of topics have up to 249; the distinguished
# names of certificates are the longest principals. Kafka's only limit is that of its strings, 32 KiB.
TEXT_MAX = 1024


class InvalidAcl(Refusal):
    """An ACL or a filter that is not valid."""


@attrs.frozen(slots=True)
class AclFilter:
    """None and ANY match every value. ``name`` with the pattern MATCH: every pattern that covers this resource."""

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
        """A superset of the matching ACLs."""
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
    """Raises InvalidAcl for an ACL that cannot be created. The rules are Kafka's, with a limit to the lengths."""
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
