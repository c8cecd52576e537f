"""``/api/v1/faults``: faults on demand, set and watched from another process, for tests in any language.

| call | what it does | answer |
|---|---|---|
| POST | adds the fault that the body describes, as `broker.faults.fault.fault_of` reads it | 201, and the fault |
| GET | lists the faults by number, in pages | 200 |
| DELETE | removes all | 204 |
| GET ``/{number}`` | shows one, with what it has met; with ``wait`` once it has as many hits | 200 |
| DELETE ``/{number}`` | removes one | 204 |
| POST ``/trigger`` | has the fault that the body describes happen at once, without a request | 204 when it is done |

Unless ``faults_enabled`` is set, all are answered with 403. Whoever may alter the cluster may call them. A request that waits
occupies no thread: the timer looks for the hits. What is triggered is carried out by a thread of its own, because it may take
long and may need handlers.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from broker.errors import BrokerError, ConfigError, StorageError
from broker.faults.fault import Fault, Passing, fault_of
from broker.faults.faults import PASSED_MAX, FaultHandle, Faults
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.limits import Allowance
from broker.runtime.threads import QueueEmpty, SimpleQueue
from broker.security.acl import Operation, ResourceType
from broker.web.callers import Callers
from broker.web.routes import (
    BAD_REQUEST,
    FORBIDDEN,
    LIMIT,
    NO_CONTENT,
    NOT_FOUND,
    UNAVAILABLE,
    UNPROCESSABLE,
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
# How many faults may wait to be triggered.
TRIGGERS_MAX: Final = 8
_NUMBER_MAX = 2**63 - 1
_OFF = "Faults are off: set faults_enabled to true to have requests of this broker fail on demand."


class _Trigger:
    """A fault that is to happen. Once ``is_done``, ``error`` says why it has not."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.error: Exception | None = None
        self.is_done = False


class Triggers:
    """The body of a thread that carries out what is triggered, one after the other."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._room = Allowance(TRIGGERS_MAX)
        self._queue: SimpleQueue[_Trigger | None] = SimpleQueue()

    def ask(self, fault: Fault) -> _Trigger | None:
        """Any thread. None if too many wait."""
        if not self._room.take(1):
            return None
        trigger = _Trigger(fault)
        self._queue.put(trigger)
        return trigger

    def step(self, timeout: float | None) -> bool:
        try:
            trigger = self._queue.get(timeout=timeout)
        except QueueEmpty:
            return False
        if trigger is None:
            return False
        try:
            self._faults.trigger(trigger.fault)
        except Exception as error:  # the seam: it is raised where the request is answered
            trigger.error = error
        trigger.is_done = True
        self._room.give_back(1)
        return True

    def wakeup(self) -> None:
        self._queue.put(None)


class FaultCalls:
    def __init__(self, faults: Faults, callers: Callers, clock: Clock, *, is_on: bool) -> None:
        self.triggers = Triggers(faults) if is_on else None
        self._faults = faults
        self._callers = callers
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            self._route("GET", "", self.page),
            self._route("POST", "", self.add),
            self._route("DELETE", "", self.clear),
            self._route("GET", "/{number}", self.show),
            self._route("DELETE", "/{number}", self.remove),
            self._route("POST", "/trigger", self.trigger),
        ]

    def _route(self, method: str, path: str, handler: Callable[[Call], Answer]) -> Route:
        def handle(call: Call) -> Answer:
            self._callers.require(call, Operation.ALTER, ResourceType.CLUSTER)
            if self.triggers is None:
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
        fault = _fault(call)
        try:
            handle = self._faults.add(fault)
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

    def trigger(self, call: Call) -> Answer:
        fault = _fault(call)
        assert self.triggers is not None
        trigger = self.triggers.ask(fault)
        if trigger is None:
            raise HttpError(UNAVAILABLE, "Too many faults wait to be triggered; try again later.")
        log.warning("fault_triggered", fault=json.dumps(fault.as_json()), **_caller(call))

        def later() -> Answer | None:
            if not trigger.is_done:
                return None
            if trigger.error is not None:
                raise _refused(trigger.error)
            return NO_CONTENT

        return Answer(later=later)

    def _handle(self, call: Call) -> FaultHandle:
        text = call.names["number"]
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_NUMBER_MAX))
        handle = self._faults.get(int(text)) if is_number else None
        if handle is None:
            raise HttpError(NOT_FOUND, f"There is no fault {text[:100]!r}; it may have been removed.")
        return handle


def _caller(call: Call) -> dict[str, str]:
    return {"principal": str(call.principal), "peer": call.peer.host}


def _fault(call: Call) -> Fault:
    """That which the body describes; its names are not checked yet. Raises HttpError."""
    if len(call.body) > BODY_MAX_BYTES:
        raise HttpError(413, f"A fault has at most {BODY_MAX_BYTES} bytes; this body has {len(call.body)}.")
    values = call.json()
    if not isinstance(values, dict):
        raise HttpError(BAD_REQUEST, 'Describe the fault as a JSON object, such as {"kind": "observe"}.')
    if "when" in values:
        raise HttpError(BAD_REQUEST, "A fault can have `when` in Python only.")
    try:
        return fault_of(values)
    except ConfigError as error:
        raise HttpError(BAD_REQUEST, str(error)) from None


def _refused(error: Exception) -> Exception:
    """The answer to a fault that could not be triggered; the machine's and the broker's own errors are left as they are."""
    if isinstance(error, ConfigError):
        return HttpError(BAD_REQUEST, str(error))
    if isinstance(error, BrokerError) and not isinstance(error, StorageError):
        return HttpError(UNPROCESSABLE, str(error))
    return error


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
