"""Faults by HTTP: real requests to a running broker whose clients meet them."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import log
from broker.client import Broker
from broker.faults.fault import Fault
from broker.faults.faults import Faults
from broker.http.api.faults import BODY_MAX_BYTES, TRIGGERS_MAX
from broker.http.service import WAITING_MAX
from broker.kafka.faulting.faulting import vocabulary
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from tests.http.api.harness import LISTENERS, Api, api_broker
from tests.http.api.test_rights import SECURED, as_user

PATH = "/api/v1/faults"


@pytest.fixture(scope="module")
def whole() -> Iterator[Api]:
    with api_broker(faults_enabled=True) as made:
        yield made


@pytest.fixture
def api(whole: Api) -> Iterator[Api]:
    yield whole
    whole.broker.faults.clear()


def call(
    api: Api, method: str, path: str = "", body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """The status, and the answer's JSON. ``body``: bytes, or something for JSON."""
    connection = api.connection()
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, PATH + path, body=data, headers=headers or {})
        reply = connection.getresponse()
        text = reply.read()
        return reply.status, json.loads(text) if text else None
    finally:
        connection.close()


def added(api: Api, /, **fields: Any) -> int:
    status, answer = call(api, "POST", body=fields)
    assert 201 == status, answer
    return int(answer["number"])


def sent(api: Api, topic: str, **client: Any) -> KafkaError | None:
    """What the producer says of one record."""
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": api.broker.bootstrap_servers, **client})
    producer.produce(topic, b"value", on_delivery=lambda error, _message: told.append(error))
    assert 0 == producer.flush(60)
    return told[0]


def test_client_meets_a_fault_that_was_added_by_http(api: Api) -> None:
    fields = {"kind": "error", "api": "Produce", "topic": "orders", "error": "TOPIC_AUTHORIZATION_FAILED"}
    status, answer = call(api, "POST", body=fields)
    number = answer["number"]
    assert (201, {**fields, "api": "PRODUCE"}, 0, 1, []) == (
        status,
        answer["fault"],
        answer["hits"],
        answer["left"],
        answer["passed"],
    )
    error = sent(api, "orders", **{"client.id": "shop"})
    assert error is not None
    assert KafkaError.TOPIC_AUTHORIZATION_FAILED == error.code()
    assert sent(api, "orders") is None, "it met one request"
    _, answer = call(api, "GET", f"/{number}")
    (passed,) = answer["passed"]
    assert (1, 0, "PRODUCE", "shop") == (answer["hits"], answer["left"], passed["api"], passed["client_id"])
    assert [{"topic": "orders", "partition": 0}] == passed["entities"]


def test_faults_are_listed_in_pages_and_removed(api: Api) -> None:
    numbers = [added(api, kind="observe", topic=f"topic-{index}") for index in range(5)]
    assert numbers == [each["number"] for each in call(api, "GET")[1]["faults"]]
    status, page = call(api, "GET", "?limit=2")
    assert (200, numbers[:2], numbers[1]) == (status, [each["number"] for each in page["faults"]], page["next"])
    _, page = call(api, "GET", f"?limit=3&after={page['next']}")
    assert (numbers[2:], None) == ([each["number"] for each in page["faults"]], page["next"])
    assert (204, None) == call(api, "DELETE", f"/{numbers[1]}")
    assert 404 == call(api, "DELETE", f"/{numbers[1]}")[0]
    assert 404 == call(api, "GET", f"/{numbers[1]}")[0]
    assert [numbers[0], *numbers[2:]] == [handle.number for handle in api.broker.faults.list()]
    assert (204, None) == call(api, "DELETE")
    assert ([], []) == (call(api, "GET")[1]["faults"], list(api.broker.faults.list()))


def test_only_the_last_requests_are_shown(api: Api) -> None:
    number = added(api, kind="observe", api="PRODUCE", topic="many", count=None)
    api.produce("many", b"0")
    producer = Producer({"bootstrap.servers": api.broker.bootstrap_servers, "linger.ms": 0})
    for index in range(4):
        producer.produce("many", f"{index}".encode())
        assert 0 == producer.flush(60)
    _, answer = call(api, "GET", f"/{number}?limit=2")
    assert (5, None, 2) == (answer["hits"], answer["left"], len(answer["passed"]))
    assert answer["passed"] == call(api, "GET", f"/{number}")[1]["passed"][-2:]


# -- waiting ----------------------------------------------------------------------------------------------------------


def waiting(api: Api) -> int:
    return api.http.waiting.taken


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Waiter(threading.Thread):
    def __init__(self, api: Api, path: str, method: str = "GET", body: Any = None) -> None:
        super().__init__(daemon=True)
        self.api = api
        self.asked = (method, path, body)
        self.answer: tuple[int, Any] | None = None
        self.start()

    def run(self) -> None:
        self.answer = call(self.api, *self.asked)

    def result(self) -> tuple[int, Any]:
        self.join(120)
        assert self.answer is not None
        return self.answer


def test_a_request_waits_for_hits(api: Api) -> None:
    api.produce("waited", b"the topic exists")
    number = added(api, kind="observe", api="PRODUCE", topic="waited", count=2)
    waiter = Waiter(api, f"/{number}?wait=2&timeout_ms=60000")
    until(lambda: waiting(api) == 1)
    sent(api, "waited")
    assert waiter.answer is None
    sent(api, "waited")
    status, answer = waiter.result()
    assert (200, 2, 2) == (status, answer["hits"], len(answer["passed"]))
    until(lambda: waiting(api) == 0)


@pytest.mark.parametrize("end", ["timeout", "used_up", "removed"])
def test_a_request_does_not_wait_for_hits_that_cannot_come(api: Api, end: str) -> None:
    number = added(api, kind="observe", api="PRODUCE", topic="ended")
    if end == "timeout":
        waiter = Waiter(api, f"/{number}?wait=1&timeout_ms=1")
    else:
        waiter = Waiter(api, f"/{number}?wait=2&timeout_ms=60000")
        until(lambda: waiting(api) == 1)
        if end == "removed":
            call(api, "DELETE", f"/{number}")
        else:
            sent(api, "ended")
    status, answer = waiter.result()
    assert (200, 1 if end == "used_up" else 0) == (status, answer["hits"])


def test_requests_that_wait_occupy_no_thread_and_are_bounded(api: Api) -> None:
    number = added(api, kind="observe", api="PRODUCE", topic="crowd", count=None)
    waiters = [Waiter(api, f"/{number}?wait=1&timeout_ms=60000") for _ in range(WAITING_MAX)]
    until(lambda: waiting(api) == WAITING_MAX)
    assert 503 == call(api, "GET", f"/{number}?wait=1")[0]
    # More than there are handlers and processors wait, and the broker goes on.
    assert 200 == call(api, "GET")[0]
    assert sent(api, "crowd") is None
    assert {(200, 1)} == {(status, answer["hits"]) for status, answer in (waiter.result() for waiter in waiters)}


def test_a_broker_stops_while_a_request_waits() -> None:
    with api_broker(faults_enabled=True) as api:
        number = added(api, kind="observe")
        connection = api.connection()
        connection.request("GET", f"{PATH}/{number}?wait=9&timeout_ms=60000")
        until(lambda: waiting(api) == 1)
        assert api.broker.server.stop(30), "nothing is in flight any more"
        connection.close()


@pytest.mark.slow  # the broker looks for such clients every 10 s
def test_a_client_that_leaves_does_not_keep_its_place(api: Api) -> None:
    number = added(api, kind="observe", api="PRODUCE", topic="left", count=None)
    connection = api.connection()
    connection.request("GET", f"{PATH}/{number}?wait=1&timeout_ms=60000")
    until(lambda: waiting(api) == 1)
    connection.close()
    until(lambda: waiting(api) == 0)


# -- triggering -------------------------------------------------------------------------------------------------------


def partitions(api: Api, topic: str) -> int | None:
    info = api.kafka.logs.topic(topic)
    return None if info is None else info.partitions


def test_a_fault_is_triggered(api: Api) -> None:
    api.kafka.logs.create_topic("grows", 1)
    assert (204, None) == call(api, "POST", "/trigger", {"kind": "partitions_added", "topic": "grows", "partitions": 2})
    assert 3 == partitions(api, "grows")
    assert (204, None) == call(api, "POST", "/trigger", {"kind": "topic_deleted", "topic": "grows"})
    assert partitions(api, "grows") is None
    assert [] == api.broker.faults.list()
    event = [event for event in log.recent() if event.event == "fault_triggered"][-1]
    assert ('{"kind": "topic_deleted", "topic": "grows"}', "User:ANONYMOUS") == (
        event.fields["fault"],
        event.fields["principal"],
    )


def test_a_fault_that_needs_handlers_is_triggered_where_there_is_one() -> None:
    with api_broker(faults_enabled=True, io_threads=1) as api:
        api.produce("orders", b"one")
        with api.member("billing", "orders"):
            assert (204, None) == call(api, "POST", "/trigger", {"kind": "rebalance", "group": "billing"})
            assert (204, None) == call(api, "POST", "/trigger", {"kind": "session_expired", "group": "billing"})
        assert 422 == call(api, "POST", "/trigger", {"kind": "rebalance", "group": "no-such"})[0]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"kind": "observe"}, 400, "Possible by hand"),
        ({"kind": "topic_deleted"}, 400, "Give topic"),
        ({"kind": "topic_deleted", "topic": "no-such"}, 422, "There is no topic 'no-such'"),
        ({"kind": "topic_deleted", "topic": "t", "count": 2}, 400, "Leave out count"),
        ({"kind": "partitions_added", "topic": "many", "partitions": 2**31 - 1}, 422, "not be an increase"),
        ({"kind": "topic_deleted", "when": 1}, 400, "in Python only"),
        (b"{", 400, "JSON"),
    ],
)
def test_what_cannot_be_triggered_is_refused(api: Api, body: Any, status: int, says: str) -> None:
    if partitions(api, "many") is None:
        api.kafka.logs.create_topic("many", 1)
    found, answer = call(api, "POST", "/trigger", body)
    assert status == found, answer
    assert says in answer["reason"]


class Slow(Faults):
    """Faults of which each takes until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__(vocabulary)
        self.go = threading.Event()

    def trigger(self, kind: str | Fault, **fields: Any) -> None:
        assert self.go.wait(60)


def test_what_is_triggered_is_bounded_and_keeps_no_handler() -> None:
    slow = Slow()
    body = {"kind": "topic_deleted", "topic": "t"}
    broker = Broker(listeners=LISTENERS, faults_enabled=True, io_threads=1)
    broker._faults = slow
    with broker:
        api = Api(broker)
        waiters = [Waiter(api, "/trigger", "POST", body) for _ in range(TRIGGERS_MAX)]
        until(lambda: waiting(api) == TRIGGERS_MAX)
        assert 503 == call(api, "POST", "/trigger", body)[0]
        assert 200 == call(api, "GET")[0], "the only handler is free"
        slow.go.set()
        assert [(204, None)] * TRIGGERS_MAX == [waiter.result() for waiter in waiters]


# -- who may, and when ------------------------------------------------------------------------------------------------

CALLS = [
    ("GET", ""),
    ("POST", ""),
    ("DELETE", ""),
    ("GET", "/1"),
    ("DELETE", "/1"),
    ("POST", "/trigger"),
]


def test_all_calls_are_tried(api: Api) -> None:
    routes = {(each.method, each.pattern) for each in api.http.routes() if each.pattern.startswith(PATH)}
    assert routes == {(method, f"{PATH}{path.replace('/1', '/{number}')}") for method, path in CALLS}


def test_faults_are_off_unless_the_setting_says_so() -> None:
    with api_broker() as api:
        for method, path in CALLS:
            status, answer = call(api, method, path, {"kind": "observe"} if method == "POST" else None)
            assert 403 == status
            assert "faults_enabled" in answer["reason"]
        assert [] == api.broker.faults.list()


def test_only_who_may_alter_the_cluster_may_call() -> None:
    with api_broker(**SECURED, sasl_enabled_mechanisms="PLAIN") as api:
        for user in ("root", "alice", "tester"):
            api.broker.add_user(user, "secret")
        authorizer = api.broker.server.security.authorizer
        assert isinstance(authorizer, AclAuthorizer)
        acls = [
            Acl(
                ResourceType.CLUSTER,
                "kafka-cluster",
                PatternType.LITERAL,
                f"User:{user}",
                "*",
                operation,
                Permission.ALLOW,
            )
            for user, operation in [
                ("tester", Operation.ALTER),
                ("alice", Operation.DESCRIBE),
                ("alice", Operation.CREATE),
            ]
        ]
        assert [None] * len(acls) == authorizer.create(acls)
        api.broker.faults.add("observe")
        for method, path in CALLS:
            body = {"kind": "observe"} if method == "POST" else None
            assert 401 == call(api, method, path, body)[0], (method, path)
            assert 403 == call(api, method, path, body, as_user("alice"))[0], (method, path)
        assert [1] == [handle.number for handle in api.broker.faults.list()]
        for method, path in CALLS:
            body = {"kind": "observe"} if method == "POST" else None
            status = call(api, method, path, body, as_user("tester"))[0]
            # DELETE of all comes before those of one.
            # And what cannot be triggered has passed the question of rights.
            special = {"/1": 404, "/trigger": 400}
            assert status == special.get(path, {"GET": 200, "POST": 201, "DELETE": 204}[method]), (method, path)


def test_the_log_says_who_has_done_what(api: Api) -> None:
    number = added(api, kind="observe", topic="noted")
    call(api, "DELETE", f"/{number}")
    call(api, "DELETE")
    events = [(event.event, event.fields) for event in log.recent() if event.event.startswith("fault")]
    names = [name for name, _ in events]
    assert ["fault_added", "fault_removed", "faults_cleared"] == names[-3:]
    fields = events[-3][1]
    assert (number, "User:ANONYMOUS", "127.0.0.1") == (fields["number"], fields["principal"], fields["peer"])
    assert '{"kind": "observe", "topic": "noted"}' == fields["fault"]


# -- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "JSON object"),
        (b"{}", "kind"),
        (b'{"kind": NaN}', "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 10_000, "JSON"),
        ({"kind": "nothing"}, "Possible: "),
        ({"kind": "error", "error": "NOT_LEADER"}, "Did you mean NOT_LEADER_OR_FOLLOWER?"),
        ({"kind": "error"}, "Give error"),
        ({"kind": "delay", "delay_ms": -1}, "from 0 to"),
        ({"kind": "observe", "topik": "orders"}, "Did you mean topic?"),
        ({"kind": "observe", "when": None}, "in Python only"),
        ({"kind": "observe", "topic": "t" * 2000}, "at most 1000"),
    ],
)
def test_a_wrong_body_is_refused_with_a_sentence(api: Api, body: Any, says: str) -> None:
    status, answer = call(api, "POST", body=body)
    assert 400 == status, answer
    assert says in answer["reason"]
    assert [] == api.broker.faults.list()


def test_a_body_that_is_too_long_is_refused(api: Api) -> None:
    body = b'{"kind": "observe", "topic": "' + b" " * BODY_MAX_BYTES + b'"}'
    assert 413 == call(api, "POST", body=body)[0]
    assert 413 == call(api, "POST", body=b" " * (2 << 20))[0]


def test_the_longest_fault_fits(api: Api) -> None:
    names = ("client_id", "principal", "topic", "group", "transactional_id")
    assert 201 == call(api, "POST", body={"kind": "observe", **dict.fromkeys(names, "\x7f" * 1000)})[0]


@pytest.mark.parametrize("path", ["/x", "/0", "/-1", "/1.0", f"/{10**30}", "/%E0%B9%91", "/trigger"])
def test_a_number_that_no_fault_has(api: Api, path: str) -> None:
    for method in ("GET", "DELETE"):
        assert 404 == call(api, method, path)[0], method


@pytest.mark.parametrize(
    "query", ["wait=x", "wait=-1", "wait=1&timeout_ms=60001", "wait=1&timeout_ms=-1", "limit=1001"]
)
def test_a_parameter_that_is_out_of_bounds(api: Api, query: str) -> None:
    assert 400 == call(api, "GET", f"/{added(api, kind='observe')}?{query}")[0]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_fields = st.fixed_dictionaries(
    {"kind": st.sampled_from(["observe", "delay", "error", "lost", "partitions_added", "topic_deleted"]) | _json},
    optional={
        "api": st.sampled_from(["PRODUCE", "OffsetCommit"]) | _json,
        "error": st.sampled_from(["NOT_LEADER_OR_FOLLOWER", "fenced_instance_id"]) | _json,
        **dict.fromkeys(["client_id", "principal", "topic", "group", "transactional_id"], st.text() | _json),
        **dict.fromkeys(
            ["partition", "count", "skip", "seed", "delay_ms", "offset", "partitions", "after_ms", "for_ms"],
            st.integers(-1, 9) | _json,
        ),
        "probability": st.floats(0, 1) | _json,
        "when": _json,
    },
)
_odd = _json.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=50)


@settings(max_examples=200)
@given(body=_fields.map(lambda value: json.dumps(value).encode()) | _odd)
def test_no_body_fails(whole: Api, body: bytes) -> None:
    status, answer = call(whole, "POST", body=body)
    assert status in (201, 400), (body, answer)
    if status == 201:
        same = whole.broker.faults.get(answer["number"])
        assert same is not None
        assert answer["fault"] == same.fault.as_json()
        assert answer == call(whole, "GET", f"/{answer['number']}")[1]
        # What a fault says of itself makes it again.
        assert answer["fault"] == call(whole, "POST", body=answer["fault"])[1]["fault"]
    else:
        assert isinstance(answer["reason"], str)
    whole.broker.faults.clear()


@settings(max_examples=100)
@given(body=_fields.map(lambda value: json.dumps(value).encode()) | _odd)
def test_nothing_that_is_triggered_fails(whole: Api, body: bytes) -> None:
    status, answer = call(whole, "POST", "/trigger", body)
    assert status in (204, 400, 422), (body, answer)
    assert (answer is None) == (status == 204)
