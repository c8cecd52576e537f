"""Where a client is sent that asks a node for what another one has."""

from typing import Any

import pytest

from broker.cluster.nodes import Node
from broker.config import Listener
from broker.network.service import Peer
from broker.network.work import Work
from broker.other_nodes import sent_to, url_of
from broker.security.principal import ANONYMOUS
from broker.web.routes import Call, HttpError

LISTENERS = [Listener("http", "http", "0.0.0.0", 8080, 8080), Listener("web", "http", "", 8443, 8443, ssl=True)]
THERE = Node(2, {"http": ("0.0.0.0", 8081), "web": ("b2.example", 8444)})


def call(listener: str = "http", names: Any = None, query: Any = None) -> Call:
    peer = Peer("10.0.0.9", 40000, listener, ("10.0.0.1", 8080))
    return Call("GET", names or {}, query or {}, {}, b"", peer, ANONYMOUS, 0.0, Work(lambda: False))


def location(pattern: str, asked: Call) -> str:
    answer = sent_to(THERE, LISTENERS, pattern, asked)
    assert 307 == answer.status
    return dict(answer.headers)["location"]


def test_a_client_stays_with_the_listener_and_the_address_that_it_can_reach() -> None:
    assert "http://10.0.0.1:8081/a?authoritative=true" == location("/a", call())
    assert "https://b2.example:8444/a?authoritative=true" == location("/a", call("web"))


def test_the_call_is_repeated_as_it_was() -> None:
    asked = call(names={"topic": "a/b é?"}, query={"partition": "3", "filter": "x y&z"})
    assert "http://10.0.0.1:8081/t/a%2Fb%20%C3%A9%3F/r?partition=3&filter=x%20y%26z&authoritative=true" == location(
        "/t/{topic}/r", asked
    )


@pytest.mark.parametrize(
    ("node", "asked"),
    [
        (None, call()),  # it is being started again
        (Node(2, {"kafka": ("b2", 9092)}), call()),
        (THERE, call(query={"authoritative": "true"})),  # it was sent here by another node
    ],
)
def test_a_client_that_cannot_be_sent_on_tries_again(node: Node | None, asked: Call) -> None:
    with pytest.raises(HttpError) as raised:
        sent_to(node, LISTENERS, "/a", asked)
    assert 503 == raised.value.status


def test_an_address_of_version_6_is_in_brackets() -> None:
    assert "http://[::2]:1" == url_of(Node(2, {"http": ("::2", 1)}), LISTENERS, call())
