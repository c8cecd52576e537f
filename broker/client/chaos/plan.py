"""A plan: a few faults, drawn from a seed and from what the test allows. The same seed and the same ``faults=`` give the same
plan.

What a test allows are *templates*: the name of a kind, or a mapping of some fields of a fault. A value that is a list stands
for one of its items. What a template leaves open is drawn: the API and a retriable error for it, the delay, ``skip`` and
``count``.

Pure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

from broker.errors import ConfigError
from broker.faults.fault import ENTITY_FIELDS, Fault, Vocabularies, fault_of
from broker.faults.faults import drawn

Choose = Callable[[Sequence[Any]], Any]
Template = str | Mapping[str, Any]

# The plan is shrunk in the end, so it may have more faults than a reader wants to see.
FAULTS_MAX: Final = 4

# Errors that a client is expected to survive, by the APIs that clients use. An API is drawn as often as it is listed in `_APIS`:
# most tests produce, fetch and commit, and few have transactions.
_NOT_COORDINATOR: Final = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
_ERRORS: Final[Mapping[str, Sequence[str]]] = {
    "PRODUCE": ("NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS"),
    "FETCH": ("NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE"),
    "LIST_OFFSETS": ("NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE"),
    "METADATA": ("LEADER_NOT_AVAILABLE",),
    "FIND_COORDINATOR": ("COORDINATOR_NOT_AVAILABLE",),
    "OFFSET_COMMIT": _NOT_COORDINATOR,
    # librdkafka does not ask again for a long time after the errors of coordinators.
    "OFFSET_FETCH": ("UNSTABLE_OFFSET_COMMIT",),
    "JOIN_GROUP": _NOT_COORDINATOR,
    "SYNC_GROUP": _NOT_COORDINATOR,
    "HEARTBEAT": _NOT_COORDINATOR,
    "INIT_PRODUCER_ID": _NOT_COORDINATOR,
    "ADD_PARTITIONS_TO_TXN": (*_NOT_COORDINATOR, "CONCURRENT_TRANSACTIONS"),
    "ADD_OFFSETS_TO_TXN": (*_NOT_COORDINATOR, "CONCURRENT_TRANSACTIONS"),
    "TXN_OFFSET_COMMIT": _NOT_COORDINATOR,
    "END_TXN": (*_NOT_COORDINATOR, "CONCURRENT_TRANSACTIONS"),
}
_APIS: Final = (*_ERRORS, *("PRODUCE", "FETCH", "OFFSET_COMMIT") * 3)
# Kinds that are about requests of an API: without one they would meet the first requests of a client, whatever these are.
_ABOUT_REQUESTS: Final = ("delay", "throttle", "error", "error_after", "lost", "reset", "reset_after", "restart")
# What is not drawn, but may be given. For the answer to JoinGroup, clients wait as long as a rebalance may take: five minutes.
# After errors in several answers about metadata, librdkafka may not find its topic for as long.
_NEVER: Final = {"lost": ("JOIN_GROUP",), "error": ("METADATA",), "error_after": ("METADATA",)}
# When the broker is changed, by what is changed: at a request that names it, in the midst of what a client is doing.
_APIS_OF: Final[Mapping[str, Sequence[str]]] = {
    "group": ("OFFSET_COMMIT", "OFFSET_COMMIT", "HEARTBEAT", "SYNC_GROUP", "OFFSET_FETCH"),
    "transactional_id": ("ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN", "TXN_OFFSET_COMMIT", "END_TXN"),
    "topic": ("PRODUCE", "FETCH", "OFFSET_COMMIT"),
}
# If the test names no faults: what happens to every client sooner or later.
DEFAULT: Final[Sequence[Template]] = ("lost", "reset", "reset_after", "error", "error_after", "delay")
_DELAYS_MS: Final = (10, 50, 200)
# An hour, as when summer time is done wrong, and a little.
_JUMPS_MS: Final = (-3_600_000, -1000, 1000, 3_600_000)
# Small numbers often: a short test makes few requests of most APIs.
_SKIPS: Final = (0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 6, 9)
_COUNTS: Final = (1, 1, 1, 2)


def plan_of(seed: int, templates: Sequence[Template], vocabulary: Vocabularies) -> tuple[Fault, ...]:
    """At least one fault. Raises ConfigError for templates that are none, or of which a fault cannot be made."""
    numbers = count(1)

    def choose(items: Sequence[Any]) -> Any:
        return items[int(drawn(seed, next(numbers)) * len(items))]

    return tuple(_fault(choose, choose(templates), vocabulary) for _ in range(choose(range(FAULTS_MAX)) + 1))


def check(templates: Sequence[Template], vocabulary: Vocabularies) -> None:
    """Raises ConfigError, as ``plan_of`` might for some seed."""
    if isinstance(templates, str | Mapping) or not templates:
        raise ConfigError(
            "Give faults as a list, of names of kinds or of mappings such as {'kind': 'lost', 'api': 'PRODUCE'}."
        )
    for template in templates:
        # With the first item of each list, then with the second of each, and so on: every item is seen.
        for turn in range(max(map(_choices, _fields(template).values()), default=1)):
            _fault(partial(_nth, turn), template, vocabulary)


def _nth(turn: int, items: Sequence[Any]) -> Any:
    return items[turn % len(items)]


def _choices(value: object) -> int:
    return len(value) if isinstance(value, list | tuple) else 1


def as_code(fault: Fault) -> str:
    """The call that adds the fault."""
    fields = fault.as_json()
    kind = fields.pop("kind")
    # What happens, then to what, then how often.
    names = sorted(
        fields,
        key=lambda name: (
            name in ("skip", "count", "probability", "seed", "after_ms", "for_ms"),
            name != "api",
            name != "error",
        ),
    )
    given = [_literal(kind), *(f"{name}={_literal(fields[name])}" for name in names)]
    if fault.when is not None:
        given.append(f"when={getattr(fault.when, '__qualname__', 'when')}")
    return f"broker.faults.add({', '.join(given)})"


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _fields(template: Template) -> Mapping[str, Any]:
    if isinstance(template, str):
        return {"kind": template}
    if not isinstance(template, Mapping):
        raise ConfigError(f"A fault of a plan is the name of a kind or a mapping, not {type(template).__name__}.")
    return template


def _fault(choose: Choose, template: Template, vocabulary: Vocabularies) -> Fault:
    fields: dict[str, Any] = {}
    for name, value in _fields(template).items():
        if isinstance(value, list | tuple):
            if not value:
                raise ConfigError(f"Give {name} of a fault of a plan at least one value.")
            value = choose(value)
        fields[name] = value
    known = vocabulary.kinds.get(fields.get("kind", ""))
    needs = known.fields if known is not None else frozenset()
    if fields.get("kind") in _ABOUT_REQUESTS and "api" not in fields:
        fields["api"] = choose(_fitting(_apis_for(fields["kind"], fields.get("error")), fields, vocabulary))
    if known is not None and known.thing is not None and known.thing in _APIS_OF and "api" not in fields:
        fields["api"] = choose(_fitting(_APIS_OF[known.thing], fields, vocabulary))
    if "error" in needs and "error" not in fields:
        fields["error"] = choose(_errors_of(fields.get("api")))
    if "delay_ms" in needs and "delay_ms" not in fields:
        fields["delay_ms"] = choose(_DELAYS_MS)
    if "jump_ms" in needs and "jump_ms" not in fields:
        fields["jump_ms"] = choose(_JUMPS_MS)
    drawn_skip, drawn_count = choose(_SKIPS), choose(_COUNTS)
    return vocabulary.checked(fault_of({"skip": drawn_skip, "count": drawn_count, **fields}))


def _apis_for(kind: str, error: str | None) -> Sequence[str]:
    """Those for which the error is drawn; all if it is not drawn for any."""
    apis = [api for api in _APIS if error in _ERRORS[api]] or _APIS
    return [api for api in apis if api not in _NEVER.get(kind, ())] or apis


def _fitting(apis: Sequence[str], fields: Mapping[str, Any], vocabulary: Vocabularies) -> Sequence[str]:
    """Those whose requests say what the template asks for. All if there are none: the check then says so."""
    asked = {name for name in ENTITY_FIELDS if fields.get(name) is not None}
    return [api for api in apis if asked <= {*vocabulary.names_of(api)}] or apis


def _errors_of(api: object) -> Sequence[str]:
    plain = str(api).replace("_", "").lower()  # OffsetCommit is OFFSET_COMMIT
    found = (errors for name, errors in _ERRORS.items() if name.replace("_", "").lower() == plain)
    return next(found, ("UNKNOWN_SERVER_ERROR",))
