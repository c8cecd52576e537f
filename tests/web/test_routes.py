"""The interface between the HTTP listeners and those who have routes."""

import json

import pytest

from broker.web.routes import NO_CONTENT, Route, Routes, json_answer


def test_routes_keep_their_order_and_are_unique() -> None:
    routes = Routes()
    first, second = (Route(method, "/a", lambda call: NO_CONTENT) for method in ("GET", "PUT"))
    routes.add(first, second)
    assert [first, second] == list(routes)
    with pytest.raises(AssertionError, match="two routes for GET /a"):
        routes.add(Route("GET", "/a", lambda call: NO_CONTENT))


def test_json_is_ascii_for_any_text() -> None:
    value = {"a": "é\ud800", "b": [1, None]}
    assert value == json.loads(json_answer(value).body.decode("ascii"))
