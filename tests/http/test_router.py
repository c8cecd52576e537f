"""Paths and the routes that take them."""

import pytest

from broker.http.router import MethodNotAllowed, Router
from broker.web.routes import NO_CONTENT, HttpError, Route


def router(*patterns: str) -> Router:
    return Router(Route(*pattern.split(" "), lambda call: NO_CONTENT) for pattern in patterns)  # type: ignore[call-arg, arg-type]


def found(routes: Router, method: str, path: str) -> tuple[str, dict[str, str]]:
    route, names = routes.match(method, path[1:].split("/"))
    return route.pattern, dict(names)


def test_a_word_comes_before_a_name() -> None:
    routes = router("GET /a/{x}", "GET /a/b", "GET /{x}/{y}/c", "GET /a/b/{z}")
    assert ("/a/b", {}) == found(routes, "GET", "/a/b")
    assert ("/a/{x}", {"x": "c"}) == found(routes, "GET", "/a/c")
    assert ("/a/b/{z}", {"z": "c"}) == found(routes, "GET", "/a/b/c")
    assert ("/{x}/{y}/c", {"x": "a", "y": "d"}) == found(routes, "GET", "/a/d/c")


def test_literal_without_the_method_leaves_path_to_name() -> None:
    routes = router("GET /a/b", "PUT /a/{x}", "POST /a/{x}")
    assert ("/a/{x}", {"x": "b"}) == found(routes, "PUT", "/a/b")
    with pytest.raises(MethodNotAllowed) as refused:
        found(routes, "DELETE", "/a/b")
    assert ["GET", "PUT", "POST", "HEAD"] == refused.value.allowed


def test_names_of_different_patterns_may_differ() -> None:
    routes = router("GET /{a}", "PUT /{b}")
    assert ("/{a}", {"a": "x"}) == found(routes, "GET", "/x")
    assert ("/{b}", {"b": "x"}) == found(routes, "PUT", "/x")


@pytest.mark.parametrize("path", ["/", "/a/", "/a//c", "/b", "/a/b/c/d"])
def test_empty_name_and_longer_path_match_nothing(path: str) -> None:
    with pytest.raises(HttpError) as refused:
        found(router("GET /a/{x}", "GET /a/{x}/c"), "GET", path)
    assert 404 == refused.value.status


def test_two_equal_routes_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="two routes for GET /"):
        router("GET /{a}", "GET /{b}")
