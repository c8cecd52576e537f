"""Admin calls about a partitioned topic whose partitions are on several nodes: the node that is asked asks for each partition, in
itself or at the node that has it, as the client could, and makes one answer of all.

The other nodes are asked at the listener that the client has used, with the client's own proof of who it is. So this is not done
on TLS listeners, where that may be a certificate. As in Pulsar, a call that fails for a partition may have had its effect on
others.

One call at a time: each keeps a handler waiting, and if all handlers of two nodes waited for each other, nobody would answer.

On a handler, which blocks.

Tests: tests/process/test_nodes_pulsar.py.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import h11

from broker.cluster.nodes import Node, Nodes
from broker.errors import Refusal
from broker.other_nodes import encoded, is_ssl, sent_to
from broker.part import as_reached
from broker.pulsar.admin.calls import Scattered, status_of
from broker.pulsar.admin.non_persistent import summed_passing
from broker.pulsar.admin.stats import summed
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import ConsumerBusy, Elsewhere
from broker.pulsar.topic_names import TopicName
from broker.runtime.dial import dial
from broker.runtime.http_call import exchange
from broker.runtime.limits import Allowance
from broker.web.routes import NO_CONTENT, UNAVAILABLE, Answer, Call, HttpError, Route, json_answer

_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 10.0
_ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
# Of one call: each takes a request.
_GATHERED_MAX: Final = 1000
_TOPIC: Final = "/{topic}"
# Statuses of a partition that do not count if another partition has done what was asked for.
_OF_SOME: Final = frozenset({404, 409})


Ask = Callable[[str], list[Any]]


class Gathering:
    def __init__(self, context: PulsarContext, nodes: Nodes, routes: Iterable[Route]) -> None:
        self._context = context
        self._nodes = nodes
        self._handlers = {(route.method, route.pattern): route.handler for route in routes}
        self._allowance = Allowance(1)

    def routes(self, routes: Iterable[Route]) -> list[Route]:
        """The same for clients that may be at any node. Those that do not block are the same everywhere."""
        return [self._of_all_nodes(route) if route.blocking else route for route in routes]

    def _of_all_nodes(self, route: Route) -> Route:
        def handle(call: Call) -> Answer:
            try:
                return route.handler(call)
            except Elsewhere as elsewhere:
                owner = self._nodes.owner_of(elsewhere.topic, elsewhere.partition)
                return sent_to(owner, self._context.config.listeners, route.pattern, call)
            except Scattered as scattered:
                return self._of_parts(route, call, scattered)

        return attrs.evolve(route, handler=handle)

    def _of_parts(self, route: Route, call: Call, scattered: Scattered) -> Answer:
        """What the route answers about the whole topic. Raises HttpError."""
        parts = scattered.parts
        if (
            "topic" not in call.names
            or not 0 < len(parts) <= _GATHERED_MAX
            or is_ssl(self._context.config.listeners, call)
        ):
            raise scattered
        if not self._allowance.take(1):
            raise HttpError(UNAVAILABLE, "Another call about partitions of several nodes is under way; try again.")
        try:
            return self._gather(route, call, parts)
        except (Elsewhere, Scattered):
            raise HttpError(UNAVAILABLE, "The topic has just been changed; try again.") from None
        except HttpError:
            raise
        except Refusal as error:
            raise HttpError(status_of(error), error.message) from None
        finally:
            self._allowance.give_back(1)

    def _gather(self, route: Route, call: Call, parts: Sequence[TopicName]) -> Answer:
        places = [(part, self._place(part)) for part in parts]

        def ask(method: str, pattern: str) -> list[Any]:
            """The answers of all partitions."""
            found, refused = [], []
            for part, node in call.work.each(places):
                try:
                    found.append(self._ask(method, pattern, call, part, node))
                except HttpError as error:
                    if error.status not in _OF_SOME or method == "GET":
                        raise
                    refused.append(error)
            if not found:
                raise refused[0]
            return found

        base, topic, rest = route.pattern.partition(_TOPIC)
        gather = _GATHERED.get((route.method, rest))
        if gather is not None:
            return gather(self, route, call, parts, partial(_asked, ask, base + topic))
        if route.method == "GET":
            raise HttpError(501, "The partitions are on several nodes: ask for one at a time.")
        ask(route.method, route.pattern)
        return NO_CONTENT

    def _place(self, part: TopicName) -> Node | None:
        """The node that has it; None: this one. Raises HttpError."""
        topic, partition = self._context.of_domain(part).partition_of(part)
        if self._nodes.has_partition(topic, partition):
            return None
        node = self._nodes.owner_of(topic, partition)
        if node is None:
            raise HttpError(UNAVAILABLE, f"The node of {part} is not there now; try again.")
        return node

    def _ask(self, method: str, pattern: str, call: Call, part: TopicName, node: Node | None) -> Any:
        """Raises HttpError."""
        names = {**call.names, "topic": part.as_local.local}
        if node is None:
            answer = self._handlers[method, pattern](attrs.evolve(call, method=method, names=names))
            return json.loads(answer.body) if answer.body else None
        path = pattern.format_map({name: encoded(value) for name, value in names.items()})
        query = "&".join(f"{encoded(name)}={encoded(value)}" for name, value in call.query.items())
        try:
            status, body = self._ask_other(method, f"{path}?{query}" if query else path, call, node)
        except (OSError, h11.RemoteProtocolError) as error:
            raise HttpError(UNAVAILABLE, f"The node of {part} does not answer ({error}); try again.") from error
        try:
            value = json.loads(body) if body else None
        except ValueError:
            raise HttpError(UNAVAILABLE, f"The answer of the node of {part} cannot be read.") from None
        if status >= 300:
            reason = value.get("reason") if isinstance(value, dict) else None
            raise HttpError(UNAVAILABLE if status < 400 else status, str(reason or f"Its node has answered {status}."))
        return value

    def _ask_other(self, method: str, path: str, call: Call, node: Node) -> tuple[int, bytes]:
        host, port = as_reached(node.endpoints[call.peer.listener], call.peer)
        headers = [
            ("host", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"),
            ("content-length", str(len(call.body))),
            ("connection", "close"),
            *((name, call.headers[name]) for name in ("authorization", "content-type") if name in call.headers),
        ]
        connection = dial(host, port, _CONNECT_S)
        try:
            status, body, _ = exchange(connection, method, path, headers, call.body, _ANSWER_S, _ANSWER_MAX_BYTES)
        finally:
            connection.close()
        return status, body

    # -- one answer of many -----------------------------------------------------------------------------------------------
    # ``ask``: gets what comes behind the topic in the path, and returns the partitions' answers.

    def _stats(self, route: Route, call: Call, parts: Sequence[TopicName], ask: Ask) -> Answer:
        of_parts = {str(part): stats for part, stats in zip(parts, ask("/stats"), strict=True)}
        total = summed([*of_parts.values()]) if parts[0].persistent else summed_passing([*of_parts.values()])
        total["metadata"] = {"partitions": len(parts), "deleted": False}
        total["partitions"] = of_parts if call.flag("perPartition", True) else {}
        return json_answer(total)

    def _internal(self, route: Route, call: Call, parts: Sequence[TopicName], ask: Ask) -> Answer:
        of_parts = {str(part): stats for part, stats in zip(parts, ask("/internalStats"), strict=True)}
        return json_answer({"metadata": {"partitions": len(parts)}, "partitions": of_parts})

    def _subscriptions(self, route: Route, call: Call, parts: Sequence[TopicName], ask: Ask) -> Answer:
        return json_answer([*dict.fromkeys(name for names in ask("/subscriptions") for name in names)])

    def _properties(self, route: Route, call: Call, parts: Sequence[TopicName], ask: Ask) -> Answer:
        return json_answer(ask(_PROPERTIES)[0])

    def _terminated(self, route: Route, call: Call, parts: Sequence[TopicName], ask: Ask) -> Answer:
        raise HttpError(501, "A topic with partitions on several nodes cannot be terminated.")

    def _deleted(self, route: Route, call: Call, parts: Sequence[TopicName], ask: Ask) -> Answer:
        """Delete the topic, unless one of its partitions is used."""
        for stats in ask("/stats"):
            used = [each["consumers"] for each in stats["subscriptions"].values()]
            if stats["publishers"] or stats["waitingPublishers"] or any(used):
                raise ConsumerBusy("Topic has active producers/subscriptions")
        return self._handlers[route.method, route.pattern](attrs.evolve(call, query={**call.query, "force": "true"}))


def _asked(ask: Callable[[str, str], list[Any]], topic: str, rest: str) -> list[Any]:
    return ask("GET", topic + rest)


_PROPERTIES: Final = "/subscription/{subscription}/properties"
# By method, and what comes behind the topic in the path. Other calls that change something are just made for each partition.
_GATHERED: Final[Mapping[tuple[str, str], Callable[..., Answer]]] = {
    ("GET", "/partitioned-stats"): Gathering._stats,
    ("GET", "/partitioned-internalStats"): Gathering._internal,
    ("GET", "/subscriptions"): Gathering._subscriptions,
    ("GET", _PROPERTIES): Gathering._properties,
    ("POST", "/terminate/partitions"): Gathering._terminated,
    ("DELETE", "/partitions"): Gathering._deleted,
}
