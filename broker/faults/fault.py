"""A fault that somebody asks for: what happens, to which requests, and how often. Immutable, and the same in Python and in JSON.

A *passing* is a request as faults see it: its API, its client, and its *entities*, the things that it is about. A fault's
selectors have to match all, and one that a request lacks never matches, so a fault
with a topic never meets a heartbeat. Topic, partition, group and transactional id have to match in one and the same entity.

A protocol describes itself by a ``Vocabulary``: the kinds of faults that it carries out, and the names of its APIs and errors. A
name that is not in it is an error that says what is possible.

Pure; any thread.
"""

import difflib
from collections.abc import Callable, Mapping
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

_TEXTS = ("kind", "api", "client_id", "principal", "topic", "group", "transactional_id", "error")
# The least and the greatest value of each number.
_NUMBERS = {
    "partition": (0, NUMBER_MAX),
    "count": (1, NUMBER_MAX),
    "skip": (0, NUMBER_MAX),
    "seed": (-(2**63), 2**63 - 1),
    "delay_ms": (0, DELAY_MAX_MS),
    "jump_ms": (-JUMP_MAX_MS, JUMP_MAX_MS),
}
_SELECTORS = ("api", "client_id", "principal", "topic", "partition", "group", "transactional_id")
_OF_ENTITIES = ("topic", "partition", "group", "transactional_id")


class Entity(NamedTuple):
    """One thing that a request is about, as far as the request says: a partition of a produce, the group of a heartbeat."""

    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    transactional_id: str | None = None


@attrs.frozen
class Passing:
    """A request that comes by. ``entities``: at least one, which is empty if the request is about nothing in particular."""

    time_ms: int  # since 1970
    api: str
    client_id: str | None
    principal: str
    entities: tuple[Entity, ...] = (Entity(),)

    def as_json(self) -> dict[str, Any]:
        entities = [
            {name: value for name, value in each._asdict().items() if value is not None} for each in self.entities
        ]
        values = attrs.asdict(self, filter=attrs.filters.exclude("entities"))
        return {**values, "entities": [each for each in entities if each]}


@attrs.frozen
class Kind:
    """What a kind of fault needs. ``fields``: those of ``error``, ``delay_ms`` and ``jump_ms`` that it must have; it must not
    have others. ``passes``: it meets every request that matches, and other faults meet the request as well. ``of_machine``: it
    meets no requests, but what the broker has its machine do, and by default all of that until it is removed."""

    fields: frozenset[str] = frozenset()
    passes: bool = False
    of_machine: bool = False


# Of no protocol. Whoever starts the broker can carry them out (broker.server.machine), or cannot.
MACHINE_KINDS: Final[Mapping[str, Kind]] = {
    "restart": Kind(),
    "disk_full": Kind(of_machine=True),
    "slow_fsync": Kind(frozenset({"delay_ms"}), of_machine=True),
    "clock_jump": Kind(frozenset({"jump_ms"}), of_machine=True),
}


@attrs.frozen
class Vocabulary:
    """What is possible in a protocol, by name. APIs and errors are written as here, or as ``OffsetCommit`` for OFFSET_COMMIT."""

    kinds: Mapping[str, Kind]
    apis: tuple[str, ...]
    errors: tuple[str, ...]

    def checked(self, fault: "Fault") -> "Fault":
        """The fault with the names as they are in here. Raises ConfigError for one that cannot be carried out."""
        name = _known("kind", fault.kind, self.kinds)
        kind = self.kinds[name]
        for field in ("error", "delay_ms", "jump_ms"):
            is_given = getattr(fault, field) is not None
            if is_given != (field in kind.fields):
                raise ConfigError(
                    f"{'Leave out' if is_given else 'Give'} {field} for a fault of the kind {fault.kind!r}."
                )
        for field in _SELECTORS if kind.of_machine else ():
            if getattr(fault, field) is not None:
                raise ConfigError(f"Leave out {field} for a fault of the kind {fault.kind!r}: it meets no requests.")
        return attrs.evolve(
            fault,
            kind=name,
            api=None if fault.api is None else _known("api", fault.api, self.apis),
            error=None if fault.error is None else _known("error", fault.error, self.errors),
        )


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


_WITHOUT_COUNT = {_plain(name) for name, kind in MACHINE_KINDS.items() if kind.of_machine}


def _usual_count(fault: "Fault") -> int | None:
    return None if _plain(fault.kind) in _WITHOUT_COUNT else 1


_text: Any = attrs.validators.optional(_check_text)
_number: Any = attrs.validators.optional(_check_number)


@attrs.frozen(kw_only=True)
class Fault:
    """Raises ConfigError for a value of another type or beyond its bounds.

    Of the requests that match, the first ``skip`` pass, each of the others is taken with ``probability`` (drawn from ``seed``, so
    always in the same order), and the fault ends after ``count`` of these (None: it is in force until it is removed). A
    request is one of ``count``, however many of its entities match. Faults of the machine count writes, fsyncs and looks at the
    clock in place of requests, and their ``count`` is None unless it is given.

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
    count: int | None = attrs.field(default=attrs.Factory(_usual_count, takes_self=True), validator=_number)
    skip: int = attrs.field(default=0, validator=_check_number)
    probability: float = attrs.field(default=1.0, validator=_check_probability)
    seed: int = attrs.field(default=0, validator=_check_number)
    delay_ms: int | None = attrs.field(default=None, validator=_number)
    jump_ms: int | None = attrs.field(default=None, validator=_number)
    error: str | None = attrs.field(default=None, validator=_text)
    when: Callable[[Passing], bool] | None = None

    def matching(self, passing: Passing) -> tuple[Entity, ...]:
        """The entities of the request that the fault is about; none if it does not match. Does not ask ``when``."""
        for name in ("api", "client_id", "principal"):
            wanted = getattr(self, name)
            if wanted is not None and wanted != getattr(passing, name):
                return ()
        wanted_names = {name: getattr(self, name) for name in _OF_ENTITIES if getattr(self, name) is not None}
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
