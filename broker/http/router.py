"""Finds the route of a request in a tree of the routes' patterns, segment by segment. Pure; built once.

If a segment matches a word of a pattern and a {name} of another, the word is tried first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from broker.web.routes import NOT_ALLOWED, NOT_FOUND, HttpError, Route

NOT_IMPLEMENTED = 501
NO_ROUTE = "There is nothing under this path."
# All other methods are unknown (501). These may not be allowed for a path (405).
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"}


class MethodNotAllowed(HttpError):
    """``allowed``: the methods that the path has."""

    def __init__(self, allowed: Sequence[str]) -> None:
        super().__init__(NOT_ALLOWED, f"This path takes {', '.join(allowed)}.")
        self.allowed = allowed


@attrs.define(eq=False)
class _Node:
    words: dict[str, "_Node"] = attrs.Factory(dict)
    name: "_Node | None" = None
    routes: dict[str, Route] = attrs.Factory(dict)  # by method, of the patterns that end here


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._names: dict[Route, list[tuple[int, str]]] = {}
        for route in routes:
            self._add(route)

    def match(self, method: str, segments: Sequence[str]) -> tuple[Route, Mapping[str, str]]:
        """The route, and the segments for the names of its pattern. HEAD takes the route of GET. Raises HttpError."""
        if method not in _METHODS:
            raise HttpError(NOT_IMPLEMENTED, "This method is unknown.")
        wanted = "GET" if method == "HEAD" else method
        allowed: list[str] = []
        for node in _ends(self._root, segments, 0):
            route = node.routes.get(wanted)
            if route is not None:
                return route, {name: segments[index] for index, name in self._names[route]}
            allowed += node.routes
        if not allowed:
            raise HttpError(NOT_FOUND, NO_ROUTE)
        raise MethodNotAllowed([*dict.fromkeys(allowed), *(["HEAD"] if "GET" in allowed else [])])

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        for index, segment in enumerate(route.pattern[1:].split("/")):
            if segment.startswith("{"):
                names.append((index, segment[1:-1]))
                if node.name is None:
                    node.name = _Node()
                node = node.name
            else:
                node = node.words.setdefault(segment, _Node())
        assert route.method not in node.routes, f"two routes for {route.method} {route.pattern}"
        node.routes[route.method] = route
        self._names[route] = names


def _ends(node: _Node, segments: Sequence[str], index: int) -> Iterator[_Node]:
    """The nodes at which patterns that match the segments end, the best first."""
    if index == len(segments):
        yield node
        return
    segment = segments[index]
    word = node.words.get(segment)
    if word is not None:
        yield from _ends(word, segments, index + 1)
    if node.name is not None and segment:
        yield from _ends(node.name, segments, index + 1)
