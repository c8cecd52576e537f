"""Whatever is asked of whichever path, the answer is a refusal or a result, and the broker lives."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.pulsar.assembly import admin_routes
from broker.web.routes import Route
from tests.pulsar.admin.harness import PERSISTENT, Admin, admin_broker

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=10), inner, max_size=4)
        | st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                (
                    "ledgerId",
                    "entryId",
                    "partitions",
                    "properties",
                    "policy",
                    "limitSize",
                    "type",
                    "schema",
                    "replication_clusters",
                    "allowedClusters",
                    "adminRoles",
                    "active",
                    "tickTime",
                    "retentionTimeInMinutes",
                    "retentionSizeInMB",
                    "allowAutoTopicCreation",
                    "defaultNumPartitions",
                    "deleteWhileInactive",
                    "maxInactiveDurationSeconds",
                    "managedLedgerMaxMarkDeleteRate",
                    "subscribeThrottlingRatePerConsumer",
                ),
                inner,
            ),
        )
    ),
    max_leaves=8,
)
# Most names exist; some are arbitrary.
_NAMES = {
    "{tenant}": st.sampled_from(["public", "public", "lab"]),
    "{namespace}": st.sampled_from(["default", "default", "other"]),
    "{topic}": st.sampled_from(["t", "t", "parts", "parts-partition-1", "new", "x-partition-1"]),
    "{subscription}": st.sampled_from(["s", "s", "new"]),
}
_FILLED = {
    "{tenant}": "public",
    "{namespace}": "default",
    "{key}": "k",
    "{value}": "v",
    "{count}": "1",
    "{seconds}": "1",
}
_QUERIES = st.sampled_from(
    ["", "?force=true", "?applied=true", "?force=x", "?backlogQuotaType=message_age", "?%ff", "?="]
)


@pytest.fixture(scope="module")
def admin() -> Iterator[Admin]:
    with admin_broker(connections_max_idle_ms=600_000) as made:
        made.do("PUT", f"{PERSISTENT}/t/subscription/s")
        made.do("PUT", f"{PERSISTENT}/parts/partitions", 2)
        yield made


@settings(max_examples=400)
@given(data=st.data())
def test_no_call_fails(admin: Admin, data: Any) -> None:
    route: Route = data.draw(st.sampled_from(admin_routes(admin.context)))
    path = ""
    for segment in route.pattern.split("/")[1:]:
        if segment.startswith("{"):
            usual = _NAMES.get(segment, st.integers(-1, 12).map(str))
            text = data.draw(usual | usual | st.text(min_size=1, max_size=30))
            segment = "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "replace"))
        path += f"/{segment}"
    body = data.draw(st.none() | _VALUES)
    status, answer = admin.ask(route.method, path + data.draw(_QUERIES), body)
    assert status < 500 or status == 503, (route.method, path, body, answer)
    if status >= 400:
        assert answer["reason"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"-1",
        b"9" * 400,
        b'"quoted"',
        b"\xff\xfe",
        b"[" * 5_000,
        b'{"a":' * 5_000,
        b"null",
        b'{"ledgerId": -1e999, "entryId": 1e30}',
        b'{"ledgerId": 1.5, "entryId": NaN}',
    ],
)
def test_bodies_that_make_no_sense_fail_nothing(admin: Admin, body: bytes) -> None:
    for route in admin_routes(admin.context):
        path = route.pattern
        for name, value in {**_FILLED, "{topic}": "t", "{subscription}": "s"}.items():
            path = path.replace(name, value)
        if route.method in ("PUT", "POST") and "{" not in path:
            status, _, content = admin.raw(route.method, path, body)
            assert status < 500, (route.method, path, body, content)


@pytest.mark.parametrize("topic", ["none", "parts", "parts-partition-1", "parts-partition-7"])
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_topics_of_other_kinds_fail_nothing(admin: Admin, topic: str, domain: str) -> None:
    for route in admin_routes(admin.context):
        path = route.pattern.replace("/persistent/", f"/{domain}/")
        for name, value in {**_FILLED, "{topic}": topic, "{subscription}": "s"}.items():
            path = path.replace(name, value)
        if "{" not in path and "{topic}" in route.pattern and route.method != "DELETE":
            status, answer = admin.ask(route.method, path)
            assert status < 500, (route.method, path, answer)
