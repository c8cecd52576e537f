"""Whatever is asked, the answer is JSON with a status that says whose fault it is, and never the broker's."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.api.harness import Api, api_broker

LISTENERS = ("kafka://127.0.0.1:0", "shuffle://127.0.0.1:0", "pulsar://127.0.0.1:0", "http://127.0.0.1:0")
_STREAMS = ("/live", "/tail")
_PARAMETERS = (
    *("limit", "after", "partition", "offset", "time", "last", "before", "key", "committed", "positions"),
    *("series", "since", "level", "topic", "all", "reactor"),
)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with api_broker(listeners=LISTENERS, faults_enabled=True) as made:
        made.kafka.logs.create_topic("orders", 3)
        made.produce("orders", *[b"value"] * 10)
        made.commit("billing", "orders", 4)
        made.broker.faults.add("observe")
        yield made


_numbers = st.integers(-2, 12).map(str) | st.integers(-(2**70), 2**70).map(str)
_words = st.sampled_from(
    ["true", "false", "orders", "billing", "0:1,1:2", "0:99999999999999999", "warning", "group:billing:lag", ""]
)
_values = _numbers | _words | st.text(max_size=20)


def encoded(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "replace"))


@settings(max_examples=200)
@given(data=st.data())
def test_no_call_fails(api: Api, data: Any) -> None:
    patterns = [
        each.pattern
        for each in api.http.routes()
        if each.method == "GET" and each.pattern.startswith("/api/") and not each.pattern.endswith(_STREAMS)
    ]
    path = data.draw(st.sampled_from(patterns))
    for name, usual in (("{topic}", "orders"), ("{group}", "billing"), ("{number}", "1")):
        if name in path:
            given_name = data.draw(st.just(usual) | st.just(usual) | st.text(min_size=1, max_size=30))
            path = path.replace(name, encoded(given_name))
    query = data.draw(st.dictionaries(st.sampled_from(_PARAMETERS), _values, max_size=4))
    path += "?" + "&".join(f"{name}={encoded(value)}" for name, value in query.items())
    status, answer = api.ask(path)
    assert status in (200, 400, 404, 503), (path, answer)
    if status != 200:
        assert isinstance(answer["reason"], str), path
