"""An HTTP service on a processor that the test steps itself, with a few routes of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import h11

from broker.errors import StorageError
from broker.http.router import Router
from broker.http.service import WAITING_MAX, HttpService, HttpServiceSettings
from broker.http.streams import Streams
from broker.runtime import Runtime, system_runtime
from broker.runtime.limits import Allowance
from broker.runtime.threads import Event
from broker.runtime.timers import Timer
from broker.security.principal import ANONYMOUS, Principal
from broker.web.routes import NO_CONTENT, Answer, Call, EventStream, HttpError, Route, json_answer, stream_answer
from tests.network.harness import Bench, Client, Stage

BODY_MAX = 4096
TIMEOUT_S = 30.0


def echo(call: Call) -> Answer:
    """What the handler has been given."""
    return json_answer(
        {
            "names": dict(call.names),
            "query": dict(call.query),
            "body": call.body.decode("latin-1"),
            "principal": str(call.principal),
        }
    )


def refuse(call: Call) -> Answer:
    raise HttpError(409, "It is there already.")


def broken(call: Call) -> Answer:
    raise ZeroDivisionError("a secret")


def disk(call: Call) -> Answer:
    raise StorageError("disk full")


def parse(call: Call) -> Answer:
    return json_answer({"got": call.json(), "force": call.flag("force")})


def endless(call: Call) -> Answer:
    while True:
        call.work.checkpoint()


ROUTES = [
    Route("GET", "/quick", echo, blocking=False),
    Route("POST", "/quick", echo, blocking=False),
    Route("GET", "/things/{name}", echo),
    Route("PUT", "/things/{name}", echo),
    Route("GET", "/things/special", lambda call: json_answer("special")),
    Route("DELETE", "/things/{name}/parts/{part}", lambda call: NO_CONTENT),
    Route("POST", "/refused", refuse),
    Route("GET", "/broken", broken),
    Route("GET", "/disk", disk),
    Route("POST", "/json", parse),
    Route("GET", "/long", lambda call: Answer(200, b"x" * 3_000_000, "text/plain")),
    Route("GET", "/endless", endless),
]


def watcher(call: Call) -> Principal:
    name = call.query.get("user")
    return ANONYMOUS if name is None else Principal("User", name)


def quick_stream(opened: list[EventStream]) -> list[Route]:
    """Routes whose streams the test feeds."""
    return [
        Route(
            "GET", "/events", lambda call: stream_answer(opened.append, watcher(call), of_cluster=call.flag("cluster"))
        ),
        Route("GET", "/events/inline", lambda call: stream_answer(opened.append, watcher(call)), blocking=False),
    ]


class HttpBench(Bench):
    def __init__(self, **settings: Any) -> None:
        stage = Stage()
        self.timer = Timer(stage.clock)
        self.stopping = Event()
        self.streams = Streams(stage.clock, most=8)
        self.opened: list[EventStream] = []
        runtime: Runtime = attrs.evolve(system_runtime(), clock=stage.clock)
        allowed = HttpServiceSettings(BODY_MAX, TIMEOUT_S, {"broker.example"})
        router = Router([*ROUTES, *quick_stream(self.opened)])
        service = HttpService(router, allowed, runtime, self.timer, self.stopping, self.streams, Allowance(WAITING_MAX))
        super().__init__(service, stage=stage, **settings)

    def ask(self, client: Client, data: bytes, *methods: str) -> list["Reply"]:
        """Send, and wait for the answer to each of these methods, one GET by default."""
        client.send(data)
        asked = methods or ("GET",)
        self.until(lambda: client.eof or len(list(replies(client.received, asked))) >= len(asked))
        return list(replies(client.received, asked))

    def get(self, path: str, *, method: str = "GET", headers: str = "", body: bytes = b"") -> "Reply":
        """The answer to one request on a connection of its own."""
        client = self.connect()
        length = f"content-length: {len(body)}\r\n" if body else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost:8080\r\n{headers}{length}\r\n"
        (reply,) = self.ask(client, head.encode("latin-1") + body, method)
        client.close()
        return reply

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.timer.step(0)
        self.settle()


@attrs.frozen
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


def replies(data: bytes | bytearray, methods: tuple[str, ...]) -> Iterator[Reply]:
    """The answers in ``data`` that are whole, as another party's parser reads them."""
    parser = None
    for method in methods:
        rest = bytes(data) if parser is None else parser.trailing_data[0]
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        if not rest:
            return
        parser.receive_data(rest)
        response, body = None, b""
        while True:
            event = parser.next_event()
            if isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert response is not None
                headers = {name.decode(): value.decode() for name, value in response.headers}
                yield Reply(response.status_code, headers, body)
                break
            elif event is h11.NEED_DATA:
                return


@contextmanager
def http_bench(**settings: Any) -> Iterator[HttpBench]:
    bench = HttpBench(**settings)
    try:
        yield bench
    finally:
        bench.close()
