"""The authorizer that asks ACLs, as Kafka's StandardAuthorizer does: super users may do everything; else the ACLs decide
(``acl_rules.py``); and what no ACL covers is denied, or allowed with ``allow.everyone.if.no.acl.found``.

Processors ask for every request, so answers are kept. They belong to the rules from which they were found: a change of ACLs
replaces both in one assignment, and the next request of every connection is decided by the new ones. Any thread may ask.
Changes are made by handlers, one after the other under a lock: first the catalogue, then the rules, then the reply. If the
catalogue does not know whether a change has reached the disk, the ACLs concerned are remembered as doubtful, and the next
change that names them is written whatever the rules in force say.

Denials: each is counted, and the first ones are logged. A client that is denied repeats its request several times a second,
and a hostile one thinks of a new resource each time; neither may fill a disk with events.

Of the same denial (who, from where, what, on which resource) one event a minute is logged, of one principal at most
``_EVENTS_OF_PRINCIPAL`` a minute, and in all at most ``_EVENTS``. The next event of that principal says how many were not
logged. Any thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

import attrs

from broker.errors import ConfigError, Refusal, StorageError, UnknownOutcome
from broker.log import get_logger
from broker.metadata.catalogue import AclRow, Catalogue
from broker.metrics import Labels, Registry, names
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType, canonical_host
from broker.security.acl_rules import EVERYTHING, AclFilter, AclRules, InvalidAcl, bit, check_new, no_rules
from broker.security.principal import Principal

log = get_logger("security")

PERIOD_S: Final = 60.0
_EVENTS_OF_PRINCIPAL: Final = 20
_EVENTS: Final = 200
# Principals whose unlogged denials are counted. Beyond that they are only in the metrics.
_PRINCIPALS_MAX: Final = 1000
# Characters of a name in an event: a topic's longest name is 249.
_TEXT_MAX: Final = 249


class Audit:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._counts: dict[Labels, int] = {}  # by operation and type of resource
        # Of the present period.
        self._ends = 0.0  # Clock.monotonic() s
        self._logged: set[tuple[str, str, Operation, ResourceType, str]] = set()
        self._events_of: dict[str, int] = {}
        # By principal, since its last event.
        self._unlogged: dict[str, int] = {}

    def denied(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """A client was refused what it asked for."""
        with self._lock:
            labels = operation.name.lower(), resource_type.name.lower()
            self._counts[labels] = self._counts.get(labels, 0) + 1
            if not self._is_news(principal, (principal, host, operation, resource_type, name[:_TEXT_MAX])):
                if principal in self._unlogged or len(self._unlogged) < _PRINCIPALS_MAX:
                    self._unlogged[principal] = self._unlogged.get(principal, 0) + 1
                return
            unlogged = self._unlogged.pop(principal, 0)
        log.warning(
            "authorization_denied",
            principal=printable(principal),
            host=host,
            operation=labels[0],
            resource_type=labels[1],
            resource=printable(name),
            unlogged=unlogged,
        )

    def counts(self) -> Mapping[Labels, float]:
        """The number of denials by operation and type of resource."""
        with self._lock:
            return {labels: float(count) for labels, count in self._counts.items()}

    def _is_news(self, principal: str, denial: tuple[str, str, Operation, ResourceType, str]) -> bool:
        now = self._clock.monotonic()
        if now >= self._ends:
            self._ends = now + PERIOD_S
            self._logged.clear()
            self._events_of.clear()
        events = self._events_of.get(principal, 0)
        if denial in self._logged or events >= _EVENTS_OF_PRINCIPAL or len(self._logged) >= _EVENTS:
            return False
        self._logged.add(denial)
        self._events_of[principal] = events + 1
        return True


def printable(text: str) -> str:
    """The text without what could forge a line of a log or control a terminal, and not too long."""
    shown = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "..."
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in shown)


# Answers that are kept of each kind, and the longest names (characters) of a resource for which one is kept: a topic's longest
# name, and the second name of a subscription, which begins with that. About 400 bytes each. When there are more, all are
# dropped: a client that asks for ever new names makes others pay 2-5 us again, not memory.
_ANSWERS_MAX: Final = 20_000
_ANSWERED_NAME_MAX: Final = 249
_ANSWERED_ALIAS_MAX: Final = 512

# Kafka asks for a resource of this name first, to find out whether the client may do everything anyway.
_SOME_NAME: Final = "hardcode"

_BITS: Final = tuple(map(bit, Operation))

# How many matches one request to delete may have, over all its filters: each filter returns all of its own.
_MATCHES_MAX: Final = 1_000_000


class TooManyAcls(Refusal):
    """There is no room for another ACL."""


@attrs.frozen(eq=False, slots=True)
class _Answers:
    """Rules, and what was found out from them."""

    rules: AclRules
    # By type and name of the principal, host, type and name of the resource: the bits of the operations that are allowed.
    of_resource: dict[tuple[str, str, str, ResourceType, str], int] = attrs.field(factory=dict)
    # The same for a resource with another name, which follows: those that are allowed, and those that are not denied.
    of_aliased: dict[tuple[str, str, str, ResourceType, str, str | None], tuple[int, int]] = attrs.field(factory=dict)
    # By type and name of the principal, host, operation and type of the resource.
    of_type: dict[tuple[str, str, str, Operation, ResourceType], bool] = attrs.field(factory=dict)


class AclAuthorizer:
    """Implements ``Authorizer``, and lists, creates and deletes ACLs."""

    def __init__(
        self,
        catalogue: Catalogue,
        clock: Clock,
        *,
        super_users: frozenset[str] = frozenset(),
        default: bool = False,
        acls_max: int = 1_000_000,
    ) -> None:
        """``default``: what no ACL covers is allowed. Raises ConfigError for ACLs of a newer version of the broker."""
        self._catalogue = catalogue
        self._super_users = super_users
        self._acls_max = acls_max
        self._lock = Lock()  # guards changes
        self._doubtful: set[Acl] = set()
        # Called after each change, before it is answered, on the thread that makes it: who has something open looks whether its
        # clients may still have it. Must not block for long.
        self.on_change: list[Callable[[], None]] = []
        self.audit = Audit(clock)
        self._answers = _Answers(no_rules(default).changed(map(_acl, catalogue.load_acls())))

    @property
    def rules(self) -> AclRules:
        """The rules in force."""
        return self._answers.rules

    def register(self, registry: Registry) -> None:
        registry.gauge(names.ACLS, lambda: {(): self.rules.count})
        registry.read_counter(names.AUTHORIZATIONS_DENIED, self.audit.counts)

    # -- questions ----------------------------------------------------------------------------------------------------

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
        """See ``Authorizer``."""
        answers = self._answers
        bits = answers.of_resource.get((principal.type, principal.name, host, resource_type, name))
        if bits is None:
            bits = self._find(answers, principal, host, resource_type, name)
        if bits & _BITS[operation]:
            return True
        if audited:
            self.audit.denied(str(principal), host, operation, resource_type, name)
        return False

    def allows_by(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        alias: str | None,
        *,
        granted: bool = False,
        audited: bool = True,
    ) -> bool:
        """The same for a resource with another name: ACLs allow it by either, and none denies it by either. ``granted``: the
        client may do it unless an ACL denies it."""
        answers = self._answers
        key = principal.type, principal.name, host, resource_type, name, alias
        bits = answers.of_aliased.get(key)
        if bits is None:
            who = str(principal)
            if who in self._super_users:
                bits = EVERYTHING, EVERYTHING
            else:
                bits = answers.rules.decide_by(who, canonical_host(host), resource_type, name, alias)
            if len(name) <= _ANSWERED_NAME_MAX and len(alias or "") <= _ANSWERED_ALIAS_MAX:
                if len(answers.of_aliased) >= _ANSWERS_MAX:
                    answers.of_aliased.clear()
                answers.of_aliased[key] = bits
        if bits[granted] & _BITS[operation]:
            return True
        if audited:
            self.audit.denied(str(principal), host, operation, resource_type, name)
        return False

    def allows_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """See ``Authorizer``."""
        answers = self._answers
        key = principal.type, principal.name, host, operation, resource_type
        answer = answers.of_type.get(key)
        if answer is None:
            answer = bool(
                self._find(answers, principal, host, resource_type, _SOME_NAME) & bit(operation)
            ) or answers.rules.decide_any(str(principal), canonical_host(host), operation, resource_type)
            if len(answers.of_type) >= _ANSWERS_MAX:
                answers.of_type.clear()
            answers.of_type[key] = answer
        return answer

    def _find(self, answers: _Answers, principal: Principal, host: str, resource_type: ResourceType, name: str) -> int:
        who = str(principal)
        if who in self._super_users:
            bits = EVERYTHING
        else:
            bits = answers.rules.decide(who, canonical_host(host), resource_type, name)
        if len(name) <= _ANSWERED_NAME_MAX:
            if len(answers.of_resource) >= _ANSWERS_MAX:
                answers.of_resource.clear()
            answers.of_resource[principal.type, principal.name, host, resource_type, name] = bits
        return bits

    # -- changes ------------------------------------------------------------------------------------------------------

    def create(self, acls: Sequence[Acl]) -> list[Refusal | StorageError | None]:
        """Add these; the result for each, in their order: None where the ACL is there now. Each is valid or refused by itself;
        the valid ones are written all or none."""
        results: list[Refusal | StorageError | None] = []
        added: dict[Acl, None] = {}
        with self._lock:
            rules = self.rules
            room = self._acls_max - rules.count
            for acl in acls:
                try:
                    check_new(acl)
                    if acl not in added and (acl not in rules or acl in self._doubtful):
                        if acl not in rules:
                            if room <= 0:
                                raise TooManyAcls(f"There are {self._acls_max} ACLs already (acls_max).")
                            room -= 1
                        added[acl] = None
                    results.append(None)
                except Refusal as error:
                    results.append(error)
            try:
                self._change(added, ())
            except StorageError as error:
                return [
                    error if result is None and acl in added else result
                    for acl, result in zip(acls, results, strict=True)
                ]
        return results

    def delete(
        self, filters: Sequence[AclFilter], checkpoint: Callable[[], None] = lambda: None
    ) -> list[Sequence[Acl] | Refusal | StorageError]:
        """Remove what matches; for each filter the ACLs that it matches, or why it was not carried out. All are removed or
        none.

        ``checkpoint`` is called from time to time; an exception from it ends the work before anything is removed.
        """
        results: list[Sequence[Acl] | Refusal | StorageError] = []
        removed: dict[Acl, None] = {}
        with self._lock:
            rules = self.rules
            room = _MATCHES_MAX
            for filter_ in filters:
                try:
                    filter_.check()
                    matches = []
                    for number, acl in enumerate(filter_.candidates(rules)):
                        if number % 1000 == 0:
                            checkpoint()
                        if filter_.matches(acl):
                            matches.append(acl)
                    room -= len(matches)
                    if room < 0:
                        raise InvalidAcl("Delete fewer ACLs with one request, or with fewer filters.")
                except Refusal as error:
                    results.append(error)
                    continue
                results.append(matches)
                removed.update(zip(matches, repeat(None)))
                removed.update(zip(filter(filter_.matches, self._doubtful), repeat(None)))
            try:
                self._change((), removed)
            except StorageError as error:
                return [result if isinstance(result, Refusal) else error for result in results]
        return results

    def _change(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Durable first, then in force. Called with the lock."""
        concerned = {*added, *removed}
        if not concerned:
            return
        rules = self.rules.changed(added, removed)
        try:
            self._catalogue.alter_acls(map(_row, added), map(_row, removed))
        except UnknownOutcome:
            self._doubtful |= concerned
            raise
        self._doubtful -= concerned
        self._answers = _Answers(rules)
        for changed in self.on_change:
            changed()


def _row(acl: Acl) -> AclRow:
    return AclRow(
        int(acl.resource_type),
        acl.name,
        int(acl.pattern),
        acl.principal,
        acl.host,
        int(acl.operation),
        int(acl.permission),
    )


def _acl(row: AclRow) -> Acl:
    try:
        return Acl(
            ResourceType(row.resource_type),
            row.resource_name,
            PatternType(row.pattern_type),
            row.principal,
            row.host,
            Operation(row.operation),
            Permission(row.permission),
        )
    except ValueError as error:
        # To leave out a DENY that this version does not understand would open what it protects.
        raise ConfigError(f"Start the version of the broker that has created the ACL {row}: {error}.") from error
