"""Routes: the interface between an ``http://`` listener and the services that answer over HTTP. Pure.

A service adds its routes to `Surroundings.routes` while it is assembled. The HTTP service opens last and serves all of
them, so that neither knows the other. A handler is called with a `Call` and returns an `Answer`, or raises:

- ``HttpError``: the client is at fault;
- ``StorageError``: the machine is at fault, and the status is 500.

A *blocking* route runs on a handler, usually of the admin lane. Any other runs on the connection's processor and must be done
within microseconds. A GET must not change anything: any web page can make a browser send one.

Lists of the HTTP API share the parameters ``limit``, ``after`` and ``filter``. A list is sorted by name and given in
pages: ``next`` is the name to pass as ``after`` for the following page, and null at the end. ``filter`` keeps only
names that contain it, in upper or lower case.

Tests: tests/web/test_routes.py,
tests/web/test_routes_pages.py.
"""

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import attrs

from broker.errors import Refusal
from broker.network.service import Peer
from broker.network.work import ADMIN, Work
from broker.security.principal import ANONYMOUS, Principal

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream"

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED = 400, 401, 403, 404, 405
UNPROCESSABLE, TOO_MANY, UNAVAILABLE = 422, 429, 503


class HttpError(Refusal):
    """Refuses the request with this status and tells the client the reason, after ``delay_s``."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.delay_s = 0.0


class EventStream(Protocol):
    """Server-sent events to one client. For any thread; no method waits for the client."""

    @property
    def closed(self) -> bool:
        """True once no client reads the stream: the source forgets it."""

    def send(self, event: str, data: str) -> bool:
        """``data`` is JSON. False if the event was skipped, because the client does not read."""

    def close(self) -> None: ...


@attrs.frozen
class Answer:
    """A response. ``headers``: those that the service adds, besides those about body and connection, names in lower
    case.

    With ``stream`` the response goes on with server-sent events: the callable is given the stream once the response has
    begun, on the connection's processor, which it must not keep busy. ``watcher``: the principal that reads the
    stream."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0  # before it is sent, so that guessing is slow, and for quotas
    stream: Callable[[EventStream], None] | None = None
    watcher: Principal = ANONYMOUS
    of_cluster: bool = False  # a stream that needs the right to describe the cluster
    # Given, the answer waits: this is asked again and again, on the timer's thread, for the answer to send in place of this one;
    # None: not yet. It must be done within microseconds, and end by itself. Raises HttpError.
    later: "Callable[[], Answer | None] | None" = None


NO_CONTENT = Answer(204)


def stream_answer(start: Callable[[EventStream], None], watcher: Principal, *, of_cluster: bool = False) -> Answer:
    return Answer(content_type=EVENTS, stream=start, watcher=watcher, of_cluster=of_cluster)


def json_answer(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value, separators=(",", ":")).encode())


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


@attrs.frozen
class Call:
    """One request, as its route's handler gets it."""

    method: str
    names: Mapping[str, str]  # the segments of the path for the pattern's {names}, decoded
    query: Mapping[str, str]  # decoded; the last value of a repeated name
    headers: Mapping[str, str]  # names in lower case; the values of a repeated name are joined by ", "
    body: bytes
    peer: Peer
    principal: Principal
    received_at: float  # Clock.monotonic(), s
    work: Work  # raises Abandoned from its checkpoint when the client has gone

    def json(self) -> Any:
        """The body as JSON. Raises HttpError if it is not JSON."""
        try:
            return json.loads(self.body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise HttpError(BAD_REQUEST, "The body is not JSON.") from None

    def flag(self, name: str, default: bool = False) -> bool:
        """A parameter that is ``true`` or ``false``. Raises HttpError for other values."""
        text = self.query.get(name, "").lower()
        if text not in ("", "true", "false"):
            raise HttpError(BAD_REQUEST, f"Set the parameter {name} to true or false.")
        return text == "true" if text else default


@attrs.frozen
class Route:
    """``pattern``: a path such as ``/admin/v2/tenants/{tenant}``; a name in braces stands for one segment."""

    method: str
    pattern: str
    handler: Callable[[Call], Answer]
    blocking: bool = True
    lane: str = ADMIN
    fetches: bool = False  # it answers with records, which count for the client's consumer_byte_rate


class Routes:
    """The routes of the whole broker. Filled on the thread that starts it, before the first request."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], Route] = {}

    def add(self, *routes: Route) -> None:
        for route in routes:
            key = route.method, route.pattern
            assert key not in self._routes, f"two routes for {route.method} {route.pattern}"
            self._routes[key] = route

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())


LIMIT: Final = 100
LIMIT_MAX: Final = 1000
_DIGITS_MAX = 19


def number_of(
    call: Call, name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1
) -> int | None:
    """A parameter that is a whole number. Raises HttpError."""
    text = call.query.get(name, "")
    if not text:
        return default
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX and least <= int(text) <= most:
        return int(text)
    raise HttpError(BAD_REQUEST, f"The parameter {name} has to be a whole number from {least} to {most}.")


def limit_of(call: Call, default: int = LIMIT, most: int = LIMIT_MAX) -> int:
    """The maximum number of items of the page. Raises HttpError."""
    limit = number_of(call, "limit", default, least=1, most=most)
    assert limit is not None
    return limit


def page_of(call: Call, names: Iterable[str]) -> tuple[list[str], str | None]:
    """The names of the page, and the value of ``next``. Raises HttpError."""
    after, part, limit = call.query.get("after", ""), call.query.get("filter", "").lower(), limit_of(call)
    wanted = (name for name in call.work.each(names) if name > after and part in name.lower())
    page = heapq.nsmallest(limit + 1, wanted)
    return (page[:limit], page[limit - 1]) if len(page) > limit else (page, None)
