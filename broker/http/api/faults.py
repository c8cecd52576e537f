"""``/api/v1/faults``: faults on demand, set and watched from another process, for tests in any language.

| call | what it does | answer |
|---|---|---|
| POST | adds the fault that the body describes, as `broker.faults.fault.fault_of` reads it | 201, and the fault |
| GET | lists the faults by number, in pages | 200 |
| DELETE | removes all | 204 |
| GET ``/{number}`` | shows one, with what it has met; with ``wait`` once it has as many hits | 200 |
| DELETE ``/{number}`` | removes one | 204 |

Unless ``faults_enabled`` is set, all are answered with 403. Whoever may alter the cluster may call them. A request that waits
occupies no thread: the timer looks for the hits.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.errors import ConfigError
from broker.faults.fault import Passing, fault_of
from broker.faults.faults import PASSED_MAX, FaultHandle, Faults
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.security.acl import Operation, ResourceType
from broker.web.callers import Callers
from broker.web.routes import (
    BAD_REQUEST,
    FORBIDDEN,
    LIMIT,
    NO_CONTENT,
    NOT_FOUND,
    Answer,
    Call,
    HttpError,
    Route,
    json_answer,
    limit_of,
    number_of,
)

log = get_logger("http")

# All texts of a fault at their longest, each character written as \uXXXX, are 48 KiB.
BODY_MAX_BYTES: Final = 64 * 1024
WAIT_MAX_MS: Final = 60_000
_WAIT_MS = 10_000
# Of the requests in one answer, so that it is made within some ms.
_ENTITIES_MAX = 1000
_NUMBER_MAX = 2**63 - 1
_OFF = "Faults are off: set faults_enabled to true to have requests of this broker fail on demand."


class FaultCalls:
    def __init__(self, faults: Faults, callers: Callers, clock: Clock, *, is_on: bool) -> None:
        self._faults = faults
        self._callers = callers
        self._clock = clock
        self._is_on = is_on

    def routes(self) -> list[Route]:
        return [
            self._route("GET", "", self.page),
            self._route("POST", "", self.add),
            self._route("DELETE", "", self.clear),
            self._route("GET", "/{number}", self.show),
            self._route("DELETE", "/{number}", self.remove),
        ]

    def _route(self, method: str, path: str, handler: Callable[[Call], Answer]) -> Route:
        def handle(call: Call) -> Answer:
            self._callers.require(call, Operation.ALTER, ResourceType.CLUSTER)
            if not self._is_on:
                raise HttpError(FORBIDDEN, _OFF)
            return handler(call)

        return Route(method, f"/api/v1/faults{path}", handle)

    # -- calls --------------------------------------------------------------------------------------------------------

    def page(self, call: Call) -> Answer:
        limit, after = limit_of(call), number_of(call, "after", 0)
        assert after is not None
        following = [handle for handle in self._faults.list() if handle.number > after][: limit + 1]
        page = following[:limit]
        return json_answer(
            {
                "faults": [_summary(handle) for handle in page],
                "next": page[-1].number if len(following) > limit else None,
            }
        )

    def add(self, call: Call) -> Answer:
        try:
            handle = self._faults.add(fault_of(_fields(call)))
        except ConfigError as error:
            raise HttpError(BAD_REQUEST, str(error)) from None
        log.warning("fault_added", number=handle.number, fault=json.dumps(handle.fault.as_json()), **_caller(call))
        return json_answer(_whole(handle, LIMIT), 201)

    def clear(self, call: Call) -> Answer:
        self._faults.clear()
        log.warning("faults_cleared", **_caller(call))
        return NO_CONTENT

    def show(self, call: Call) -> Answer:
        """With ``wait``: once the fault has as many hits, or can have no more, or after ``timeout_ms``, whichever is first."""
        handle = self._handle(call)
        limit = limit_of(call, most=PASSED_MAX)
        wanted = number_of(call, "wait", 0)
        timeout_ms = number_of(call, "timeout_ms", _WAIT_MS, most=WAIT_MAX_MS)
        assert wanted is not None
        assert timeout_ms is not None
        deadline = self._clock.monotonic() + timeout_ms / 1000

        def later() -> Answer | None:
            if handle.hits < wanted and handle.left != 0 and self._clock.monotonic() < deadline:
                return None
            return json_answer(_whole(handle, limit))

        return later() or Answer(later=later)

    def remove(self, call: Call) -> Answer:
        handle = self._handle(call)
        handle.remove()
        log.warning("fault_removed", number=handle.number, hits=handle.hits, **_caller(call))
        return NO_CONTENT

    def _handle(self, call: Call) -> FaultHandle:
        text = call.names["number"]
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_NUMBER_MAX))
        handle = self._faults.get(int(text)) if is_number else None
        if handle is None:
            raise HttpError(NOT_FOUND, f"There is no fault {text[:100]!r}; it may have been removed.")
        return handle


def _caller(call: Call) -> dict[str, str]:
    return {"principal": str(call.principal), "peer": call.peer.host}


def _fields(call: Call) -> Mapping[str, Any]:
    if len(call.body) > BODY_MAX_BYTES:
        raise HttpError(413, f"A fault has at most {BODY_MAX_BYTES} bytes; this body has {len(call.body)}.")
    values = call.json()
    if not isinstance(values, dict):
        raise HttpError(BAD_REQUEST, 'Describe the fault as a JSON object, such as {"kind": "observe"}.')
    if "when" in values:
        raise HttpError(BAD_REQUEST, "A fault can have `when` in Python only.")
    return values


def _summary(handle: FaultHandle) -> dict[str, Any]:
    return {
        "number": handle.number,
        "fault": handle.fault.as_json(),
        "hits": handle.hits,
        "left": handle.left,
    }


def _whole(handle: FaultHandle, limit: int) -> dict[str, Any]:
    """``passed``: the last requests that have met it, ``limit`` at most, and fewer if they are about very many things."""
    summary = _summary(handle)  # first, so that the requests of all these hits are there
    newest: list[Passing] = []
    entities = 0
    for passing in reversed(handle.passed[-limit:]):
        entities += len(passing.entities)
        if entities > _ENTITIES_MAX and newest:
            break
        newest.append(passing)
    return {**summary, "passed": [passing.as_json() for passing in reversed(newest)]}
