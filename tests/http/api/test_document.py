"""docs/HTTP.md has every call, and its examples have the form of the answers."""

import re
from collections.abc import Iterator

import pytest

from tests.http.api.harness import DOCUMENT, Api, api_broker, differences, documented

LISTENERS = ("kafka://127.0.0.1:0", "shuffle://127.0.0.1:0", "pulsar://127.0.0.1:0", "http://127.0.0.1:0")
TEXT = DOCUMENT.read_text("utf-8")
CALLS = re.findall(r"^(?:GET|POST|DELETE) (/\S+)$", TEXT, re.MULTILINE)
EXAMPLES = re.findall(r"^```\nGET (\S+)\n```\n+```json\n", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with api_broker(listeners=LISTENERS, faults_enabled=True) as made:
        made.kafka.logs.create_topic("orders", 3)
        made.produce("orders", *[b"value"] * 10)
        made.commit("billing", "orders", 4)
        with made.member("shipping", "orders"):
            made.broker.faults.add("observe", api="PRODUCE", topic="orders")
            made.produce("orders", b"value")
            yield made


def in_general(path: str) -> str:
    """The path with names of parameters in place of the example's."""
    path = path.replace("/topics/orders", "/topics/{topic}")
    path = path.replace("/faults/1", "/faults/{number}")
    return re.sub("/groups/(billing|shipping)$", "/groups/{group}", path)


def test_every_call_is_documented(api: Api) -> None:
    patterns = {each.pattern for each in api.http.routes() if each.pattern.startswith("/api/")}
    assert patterns == {in_general(path.partition("?")[0]) for path in CALLS}


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_example_has_the_form_of_the_answer(api: Api, path: str) -> None:
    status, answer = api.ask(path)
    assert (200, []) == (status, differences(documented(path), answer))


def test_every_call_says_which_rights_it_needs(api: Api) -> None:
    table = TEXT[TEXT.index("| call | needs |") : TEXT.index("## Overview")]
    for path in {path.partition("?")[0].removeprefix("/api/v1") for path in CALLS}:
        assert f"`{in_general(path)}`" in table, path
