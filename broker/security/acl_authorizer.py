"""The authorizer that uses ACLs, and the audit log of denials.

`AclAuthorizer` works like Kafka's StandardAuthorizer: super users may do everything; otherwise the ACLs decide
(``acl_rules.py``); a resource that no ACL covers is denied, or allowed with ``allow.everyone.if.no.acl.found``.
Processors ask for every request, so answers are cached. They belong to the rules that they were computed from: a change
of ACLs replaces both in one assignment, and the next request of every connection is decided by the new rules. Any
thread may ask. Handlers make changes, one after the other under a lock: first the catalogue, then the rules, then the
reply. If the catalogue does not know whether a change has reached the disk, the ACLs of the change are remembered as
doubtful, and the next change that names them is written whatever the rules in force say.

`Audit` counts every denial and logs some. A denied client repeats its request several times a second, and a hostile
client names a new resource each time; neither may fill a disk with events. So the same denial (principal, host,
operation, resource) is logged once a minute, denials of one principal at most ``_EVENTS_OF_PRINCIPAL`` times a minute,
and all together at most ``_EVENTS`` times. The next event of that principal says how many were not logged. Any thread.
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
# Principals whose unlogged denials are counted. Denials of further principals are only in the metrics.
_PRINCIPALS_MAX: Final = 1000
# Characters of a name in an event: a topic's longest name is 249.
_TEXT_MAX: Final = 249


class Audit:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._counts: dict[Labels, int] = {}  # by operation and type of resource
        # State of the present period.
        self._ends = 0.0  # Clock.monotonic() s
        self._logged: set[tuple[str, str, Operation, ResourceType, str]] = set()
        self._events_of: dict[str, int] = {}
        # By principal, since its last event.
        self._unlogged: dict[str, int] = {}

    def denied(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Count a denial, and log it unless there were too many."""
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
    """The text, shortened, without characters that could forge a line of a log or control a terminal."""
    shown = text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "..."
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)


# How many answers of each kind are cached, and the longest names (characters) of a resource whose answer is cached: a
# topic's longest name, and the second name of a subscription, which begins with a topic's name. An answer takes about
# 400 bytes. When the cache is full, it is cleared: a client that asks for ever new names costs others 2-5 us again, but
# no memory.
_ANSWERS_MAX: Final = 20_000
_ANSWERED_NAME_MAX: Final = 249
_ANSWERED_ALIAS_MAX: Final = 512

# Kafka asks for a resource of this name first, to find out whether the client may do everything anyway.
_SOME_NAME: Final = "hardcode"

_BITS: Final = tuple(map(bit, Operation))

# How many matches one request to delete may have, over all its filters: each filter returns all of its matches.
_MATCHES_MAX: Final = 1_000_000


class TooManyAcls(Refusal):
    """There is no room for another ACL."""


@attrs.frozen(eq=False, slots=True)
class _Answers:
    """Rules, and the answers that were computed from them."""

    rules: AclRules
    # By type and name of the principal, host, type and name of the resource: the bits of the operations that are allowed.
    of_resource: dict[tuple[str, str, str, ResourceType, str], int] = attrs.field(factory=dict)
    # The same for a resource with another name, which follows: the allowed operations, and those that are not
    # denied.
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
        """``default``: a resource that no ACL covers is allowed. Raises ConfigError for ACLs of a newer version of the
        broker."""
        self._catalogue = catalogue
        self._super_users = super_users
        self._acls_max = acls_max
        self._lock = Lock()  # guards changes
        self._doubtful: set[Acl] = set()
        # Called after each change, before it is answered, on the thread that makes it: owners of open streams and
        # consumers check their clients' rights again. Must not block for long.
        self.on_change: list[Callable[[], None]] = []
        self.audit = Audit(clock)
        self._answers = _Answers(no_rules(default).changed(map(_acl, catalogue.load_acls())))

    def reload(self) -> None:
        """Put in force what another node has made of the catalogue. Raises StorageError."""
        with self._lock:
            stored = set(map(_acl, self._catalogue.load_acls()))
            present = set(self.rules)
            if stored != present:
                self._answers = _Answers(self.rules.changed(stored - present, present - stored))
                for changed in self.on_change:
                    changed()

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
        """The same for a resource with a second name: ACLs for either name allow the operation, and neither name is
        denied it. ``granted``: the client has the right unless an ACL denies it."""
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
        """Add ACLs. The result for each, in order: None if the ACL exists now. An invalid ACL is refused without
        affecting the others; the valid ACLs are written all or none."""
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
        """Remove the matches of all filters, all or none. The result for each filter: the ACLs that it matches, or the
        error.

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
        """Write the change to the catalogue, then put it in force. Called with the lock."""
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
        # Leaving out a DENY that this version does not know would open the resource that it protects.
        raise ConfigError(f"Start the version of the broker that has created the ACL {row}: {error}.") from error
