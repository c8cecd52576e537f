"""A fault that somebody asks for: what happens, to which requests, and how often. Immutable, and the same in Python and in JSON.

A *passing* is a request as faults see it: its API, its client, and its *entities*, the things that it is about. A fault's
selectors have to match all, and one that a request lacks never matches, so a fault
with a topic never meets a heartbeat. Topic, partition, group and transactional id have to match in one and the same entity.

A protocol describes itself by a ``Vocabulary``: the kinds of faults that it carries out, and the names of its APIs and errors. A
name that is not in it is an error that says what is possible. ``Vocabularies`` are those of all protocols of a broker. A fault
is of all protocols in whose words it makes sense, except that the same name of an API or error in two of them is refused as
ambiguous unless the fault says which ``protocol`` it means.

Pure; any thread.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import attrs

from broker.errors import ConfigError

# Kafka's longest names of topics have 249 characters; group ids and principals may be longer.
TEXT_MAX: Final = 1000
NUMBER_MAX: Final = 2**31 - 1
# An hour: longer than any client waits.
DELAY_MAX_MS: Final = 3_600_000
# Ten years.
JUMP_MAX_MS: Final = 10 * 365 * 86_400_000
# Names that an error message lists.
_LISTED_MAX = 100

# The least and the greatest value of each number.
_NUMBERS = {
    "partition": (0, NUMBER_MAX),
    "count": (1, NUMBER_MAX),
    "skip": (0, NUMBER_MAX),
    "seed": (-(2**63), 2**63 - 1),
    "after_ms": (0, NUMBER_MAX),
    "for_ms": (0, NUMBER_MAX),
    "delay_ms": (0, DELAY_MAX_MS),
    "jump_ms": (-JUMP_MAX_MS, JUMP_MAX_MS),
    "offset": (0, 2**63 - 1),
    "partitions": (1, NUMBER_MAX),
}
_OF_PASSING = ("protocol", "api", "client_id", "principal")
ENTITY_FIELDS = ("topic", "partition", "group", "transactional_id", "subscription", "partition_id")
_SELECTORS = (*_OF_PASSING[1:], *ENTITY_FIELDS)
# Fields that say what happens. The others say to what, and how often.
_OF_KINDS = ("error", "delay_ms", "jump_ms", "member_id", "offset", "partitions")


class Entity(NamedTuple):
    """One thing that a request is about, as far as the request says: a partition of a produce, the group of a heartbeat."""

    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    transactional_id: str | None = None
    subscription: str | None = None
    partition_id: str | None = None  # of the shuffle service: 120 hex digits


@attrs.frozen
class Passing:
    """A request that comes by. ``entities``: at least one, which is empty if the request is about nothing in particular.
    ``protocol``: the scheme of the service's listeners."""

    time_ms: int  # since 1970
    api: str
    client_id: str | None
    principal: str
    entities: tuple[Entity, ...] = (Entity(),)
    protocol: str = ""

    def as_json(self) -> dict[str, Any]:
        entities = [
            {name: value for name, value in each._asdict().items() if value is not None} for each in self.entities
        ]
        values = attrs.asdict(self, filter=lambda field, value: field.name != "entities" and value != "")
        return {**values, "entities": [each for each in entities if each]}


@attrs.frozen
class Kind:
    """What a kind of fault needs. ``fields``: those of ``_OF_KINDS`` that it must have; ``may``: those that it may have; it must
    not have others. ``passes``: it meets every request that matches, and other faults meet the request as well.
    ``apis``: it meets only these; None: all.

    ``changes``: it changes the broker and not the answer. It happens when a request passes, before the work, or by hand
    (``Faults.trigger``). ``thing``: the field with the name of what is changed, which the fault or else the request has to
    have; ``parts``: fields that by hand limit the change to a part of that.
    """

    fields: frozenset[str] = frozenset()
    passes: bool = False
    may: frozenset[str] = frozenset()
    changes: bool = False
    thing: str | None = None
    parts: frozenset[str] = frozenset()
    apis: frozenset[str] | None = None


def _every_name(_api: str) -> Collection[str]:
    return ENTITY_FIELDS


@attrs.frozen
class Vocabulary:
    """What is possible in a protocol, by name. APIs and errors are written as here, or as ``OffsetCommit`` for OFFSET_COMMIT.
    ``names_of``: the fields of entities that requests of this API may have. ``plain``: the fault with names as requests have
    them here, for names as clients may write them; raises ConfigError. ``selectors``: the fields by which a fault may say what
    it meets."""

    kinds: Mapping[str, Kind]
    apis: tuple[str, ...]
    errors: tuple[str, ...]
    names_of: Callable[[str], Collection[str]] = _every_name
    plain: Callable[["Fault"], "Fault"] = lambda fault: fault
    selectors: tuple[str, ...] = _SELECTORS

    def checked(self, fault: "Fault") -> "Fault":
        """The fault with the names as they are in here. Raises ConfigError for one that cannot be carried out."""
        fault = self._spelt(fault)
        thing = self.kinds[fault.kind].thing
        if thing is not None and getattr(fault, thing) is None and not self._may_name(fault, thing):
            raise ConfigError(f"Give {thing} for a fault of the kind {fault.kind!r}: no {fault.api} request names one.")
        for field in set(ENTITY_FIELDS) - self.not_asked(fault):
            if getattr(fault, field) is not None and not self._may_name(fault, field):
                raise ConfigError(f"Leave out {field}: no {fault.api} request names one, so none would ever match.")
        return fault

    def checked_by_hand(self, fault: "Fault") -> "Fault":
        """``checked`` for a fault that happens now, without a request."""
        kind = self.kinds[_known("kind", fault.kind, self.kinds)]
        if not kind.changes:
            possible = ", ".join(name for name, each in self.kinds.items() if each.changes)
            raise ConfigError(
                f"A fault of the kind {fault.kind!r} needs requests: add it. Possible by hand: {possible}."
            )
        fault = self._spelt(fault)
        if kind.thing is not None and getattr(fault, kind.thing) is None:
            raise ConfigError(f"Give {kind.thing} for a fault of the kind {fault.kind!r}.")
        allowed = {"kind", "protocol", kind.thing} | kind.parts | kind.fields | kind.may
        unfit = [name for name in fault.as_json() if name not in allowed] + ["when"] * (fault.when is not None)
        if unfit:
            raise ConfigError(f"Leave out {unfit[0]} for a fault of the kind {fault.kind!r} that happens at once.")
        return fault

    def not_asked(self, fault: "Fault") -> frozenset[str]:
        """Fields of the fault that only say what is changed, because no request of the API has them."""
        kind = self.kinds[fault.kind]
        if kind.thing is None:
            return frozenset()
        return frozenset(field for field in {kind.thing} | kind.parts if not self._may_name(fault, field))

    def _may_name(self, fault: "Fault", field: str) -> bool:
        return fault.api is None or field in self.names_of(fault.api)

    def _spelt(self, fault: "Fault") -> "Fault":
        name = _known("kind", fault.kind, self.kinds)
        kind = self.kinds[name]
        for field in _OF_KINDS:
            is_given = getattr(fault, field) is not None
            if is_given and field not in kind.fields | kind.may:
                raise ConfigError(f"Leave out {field} for a fault of the kind {name!r}.")
            if not is_given and field in kind.fields:
                raise ConfigError(f"Give {field} for a fault of the kind {name!r}.")
        for field in _SELECTORS:
            if field not in self.selectors and getattr(fault, field) is not None:
                raise ConfigError(f"Leave out {field} for a fault of the kind {name!r}: it meets no requests.")
        api = None if fault.api is None else _known("api", fault.api, self.apis)
        if api is not None and kind.apis is not None and api not in kind.apis:
            listed = ", ".join(each for each in self.apis if each in kind.apis)
            raise ConfigError(f"A fault of the kind {name!r} never meets {api}, only: {listed}.")
        return attrs.evolve(
            fault,
            kind=name,
            api=api,
            error=None if fault.error is None else _known("error", fault.error, self.errors),
        )

    def knows(self, fault: "Fault") -> list[bool]:
        """Whether the names of the fault are in here, those that say most about its protocol first."""
        names = ((fault.api, self.apis), (fault.kind, self.kinds), (fault.error, self.errors))
        return [name is not None and _plain(name) in map(_plain, known) for name, known in names]


# What a broker has its machine do. By default such a fault meets all of that until it is removed. Only some brokers run on a
# machine that can have faults (broker.server.machine).
MACHINE: Final = Vocabulary(
    kinds={
        "disk_full": Kind(apis=frozenset({"WRITE"})),
        "slow_fsync": Kind(frozenset({"delay_ms"}), apis=frozenset({"FSYNC"})),
        "clock_jump": Kind(frozenset({"jump_ms"}), apis=frozenset({"CLOCK"})),
    },
    apis=("WRITE", "FSYNC", "CLOCK"),
    errors=(),
    selectors=(),
)


class Meaning(NamedTuple):
    """What a fault is in a protocol. ``not_asked``: see ``Vocabulary``."""

    kind: Kind
    not_asked: frozenset[str]


class Vocabularies:
    """Those of a broker's protocols, by the name of the protocol."""

    def __init__(self, by_protocol: Mapping[str, Vocabulary]) -> None:
        self._by_protocol = by_protocol

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Of all protocols, by name; where several have one, that of the first."""
        return {name: kind for words in reversed([*self._by_protocol.values()]) for name, kind in words.kinds.items()}

    def names_of(self, api: str) -> Collection[str]:
        """The fields of entities that requests of this API may have, in any protocol that has it."""
        return {name for words in self._by_protocol.values() if api in words.apis for name in words.names_of(api)}

    def checked(self, fault: "Fault") -> "Fault":
        """The fault with the names as they are here. Raises ConfigError for one that cannot be carried out, or that may mean
        different things."""
        return self._found(fault, Vocabulary.checked)[0]

    def meanings(self, fault: "Fault") -> Mapping[str, Meaning]:
        """What a fault is in each protocol that it is about. Raises ConfigError as ``checked`` does."""
        fault, found = self._found(fault, Vocabulary.checked)
        return {name: Meaning(words.kinds[fault.kind], words.not_asked(fault)) for name, words in found.items()}

    def checked_by_hand(self, fault: "Fault") -> "Fault":
        """``checked`` for a fault that happens now, without a request."""
        return self._found(fault, Vocabulary.checked_by_hand)[0]

    def _found(
        self, fault: "Fault", check: Callable[[Vocabulary, "Fault"], "Fault"]
    ) -> tuple["Fault", Mapping[str, Vocabulary]]:
        """The protocols that the fault is about."""
        possible = self._by_protocol
        if fault.protocol is not None:
            name = _known("protocol", fault.protocol, possible)
            fault, possible = attrs.evolve(fault, protocol=name), {name: possible[name]}
        checked: dict[str, Fault] = {}
        failed: dict[str, ConfigError] = {}
        for name, words in possible.items():
            try:
                checked[name] = check(words, fault)
            except ConfigError as error:
                failed[name] = error
        if not checked:
            self._refuse(fault, possible, failed)
        if len(checked) > 1 and (fault.api is not None or fault.error is not None):
            *others, last = (f"protocol={name!r}" for name in checked)
            named = fault.api if fault.api is not None else fault.error
            raise ConfigError(f"Several protocols have {named}: give {', '.join(others)} or {last}.")
        fault = next(iter(checked.values()))  # without names of APIs and errors, all are the same
        for name in checked:
            fault = possible[name].plain(fault)
        return fault, {name: possible[name] for name in checked}

    @staticmethod
    def _refuse(fault: "Fault", possible: Mapping[str, Vocabulary], failed: Mapping[str, ConfigError]) -> None:
        """Raise the error that says most: of a name that none of them knows, else that of the protocol that it seems to mean."""

        def all_of(names: Callable[[Vocabulary], Iterable[str]]) -> list[str]:
            return list(dict.fromkeys(name for words in possible.values() for name in names(words)))

        _known("kind", fault.kind, all_of(lambda words: words.kinds))
        if fault.api is not None:
            _known("api", fault.api, all_of(lambda words: words.apis))
        if fault.error is not None:
            _known("error", fault.error, all_of(lambda words: words.errors))
        name, error = max(failed.items(), key=lambda item: possible[item[0]].knows(fault))
        raise error if len(possible) == 1 else ConfigError(f"For {name}: {error}")


def _known(what: str, name: str, names: Any) -> str:
    spelt = {_plain(each): each for each in names}
    found = spelt.get(_plain(name))
    if found is not None:
        return str(found)
    near = difflib.get_close_matches(_plain(name), spelt, 1)
    meant = f" Did you mean {spelt[near[0]]}?" if near else ""
    listed = ", ".join(list(names)[:_LISTED_MAX])
    more = f", and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    raise ConfigError(f"There is no {what} {name[:TEXT_MAX]!r}.{meant} Possible: {listed}{more}.")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _check_text(_fault: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise ConfigError(f"Give {attribute.name} of a fault as a text of at most {TEXT_MAX} characters.")


def _check_number(_fault: Any, attribute: Any, value: Any) -> None:
    least, most = _NUMBERS[attribute.name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"Give {attribute.name} of a fault as a whole number from {least} to {most}.")


def _check_probability(_fault: Any, _attribute: Any, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ConfigError("Give probability of a fault as a number from 0 to 1.")


_WITHOUT_COUNT = set(map(_plain, MACHINE.kinds))


def _usual_count(fault: "Fault") -> int | None:
    kind: object = fault.kind  # of any type: it is checked after the defaults are made
    return None if isinstance(kind, str) and _plain(kind) in _WITHOUT_COUNT else 1


_text: Any = attrs.validators.optional(_check_text)
_number: Any = attrs.validators.optional(_check_number)


@attrs.frozen(kw_only=True)
class Fault:
    """Raises ConfigError for a value of another type or beyond its bounds.

    Of the requests that match, the first ``skip`` pass, each of the others is taken with ``probability`` (drawn from ``seed``, so
    always in the same order), and the fault ends after ``count`` of these (None: it is in force until it is removed). A
    request is one of ``count``, however many of its entities match. Faults of the machine count writes, fsyncs and looks at the
    clock in place of requests, and their ``count`` is None unless it is given.

    ``after_ms`` and ``for_ms`` limit that to a time: it begins so many ms after the fault was added, and ends so many ms later
    (None: it does not). What passes before and after does not count as a match.

    ``when``: called last, with the passing; False lets it pass. In Python only. It runs on a thread of the broker and must not
    wait for the broker.
    """

    kind: str = attrs.field(validator=_check_text)
    api: str | None = attrs.field(default=None, validator=_text)
    client_id: str | None = attrs.field(default=None, validator=_text)
    principal: str | None = attrs.field(default=None, validator=_text)  # as in ACLs: User:alice
    topic: str | None = attrs.field(default=None, validator=_text)
    partition: int | None = attrs.field(default=None, validator=_number)
    group: str | None = attrs.field(default=None, validator=_text)
    transactional_id: str | None = attrs.field(default=None, validator=_text)
    subscription: str | None = attrs.field(default=None, validator=_text)
    partition_id: str | None = attrs.field(default=None, validator=_text)
    protocol: str | None = attrs.field(default=None, validator=_text)
    count: int | None = attrs.field(default=attrs.Factory(_usual_count, takes_self=True), validator=_number)
    skip: int = attrs.field(default=0, validator=_check_number)
    probability: float = attrs.field(default=1.0, validator=_check_probability)
    seed: int = attrs.field(default=0, validator=_check_number)
    after_ms: int = attrs.field(default=0, validator=_check_number)
    for_ms: int | None = attrs.field(default=None, validator=_number)
    delay_ms: int | None = attrs.field(default=None, validator=_number)
    jump_ms: int | None = attrs.field(default=None, validator=_number)
    error: str | None = attrs.field(default=None, validator=_text)
    member_id: str | None = attrs.field(default=None, validator=_text)
    offset: int | None = attrs.field(default=None, validator=_number)
    partitions: int | None = attrs.field(default=None, validator=_number)  # how many are added
    when: Callable[[Passing], bool] | None = None

    def matching(self, passing: Passing, not_asked: Collection[str] = ()) -> tuple[Entity, ...]:
        """The entities of the request that the fault is about; none if it does not match. Does not ask ``when``. ``not_asked``:
        fields that need not match."""
        for name in _OF_PASSING:
            wanted = getattr(self, name)
            if wanted is not None and wanted != getattr(passing, name):
                return ()
        wanted_names = {
            name: getattr(self, name)
            for name in ENTITY_FIELDS
            if name not in not_asked and getattr(self, name) is not None
        }
        return tuple(
            entity
            for entity in passing.entities
            if all(getattr(entity, name) == wanted for name, wanted in wanted_names.items())
        )

    def as_json(self) -> dict[str, Any]:
        """Everything but the defaults, as ``fault_of`` reads it."""
        usual = {field.name: field.default for field in attrs.fields(Fault)} | {
            "count": _usual_count(self),
            "when": self.when,
        }
        return {name: value for name, default in usual.items() if (value := getattr(self, name)) != default}


def fault_of(values: Mapping[str, Any]) -> Fault:
    """The fault with these fields, which are keywords or parsed JSON. Raises ConfigError for a name that no fault has."""
    names = [field.name for field in attrs.fields(Fault)]
    for name in values:
        _known("field", name, [name] if name in names else names)
    if "kind" not in values:
        raise ConfigError("Give the kind of the fault.")
    return Fault(**values)
