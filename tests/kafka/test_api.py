"""The one reply of a control request: sent, dropped, or refused because it is too long or nobody waits for it."""

from collections.abc import Sequence
from typing import Any

import pytest

from broker.kafka import api as module
from broker.kafka.api import Api, Call, KafkaRequest
from broker.kafka.metering import AnsweredErrors
from broker.network.service import Peer
from broker.network.work import CHECK_EVERY
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control


class Connection:
    peer = Peer("10.0.0.9", 40_000, "kafka", ("10.0.0.1", 9092))

    def __init__(self) -> None:
        self.closed = False


class Outbox:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = 0

    def send(self, request: Any, parts: Sequence[Any]) -> None:
        self.sent.append(b"".join(parts))

    def close(self, request: Any) -> None:
        self.closed += 1


class Context:
    stopping = False
    nodes = None

    def __init__(self) -> None:
        self.errors = AnsweredErrors()


def call(key: ApiKey = ApiKey.HEARTBEAT) -> tuple[Call, Connection, Outbox, Context]:
    request, outbox, context = KafkaRequest(), Outbox(), Context()
    connection: Any = Connection()
    request.connection = connection
    request.api = Api(key, 0, 5, handle=lambda *_: None)
    request.api_version, request.correlation_id, request.client_id = 1, 7, "me"
    request.received_at = 3.0
    return Call(context, request, outbox, None), connection, outbox, context  # type: ignore[arg-type]


HEARTBEAT = {"throttle_time": 0, "error_code": 0}


def test_reply_is_encoded_for_its_requests_version() -> None:
    made, _, outbox, _ = call()
    made.reply(HEARTBEAT)
    (reply,) = outbox.sent
    correlation_id, answer = control.parse_response(ApiKey.HEARTBEAT, 1, reply)
    assert (correlation_id, answer.error_code) == (7, 0)
    assert (made.api_version, made.client_id, made.client_host, made.received_at) == (1, "me", "10.0.0.9", 3.0)


def test_a_call_is_answered_once() -> None:
    made, _, _, _ = call()
    made.reply(HEARTBEAT)
    with pytest.raises(AssertionError, match="twice"):
        made.reply(HEARTBEAT)


def test_reply_to_a_closed_connection_is_dropped() -> None:
    made, connection, outbox, _ = call()
    connection.closed = True
    made.reply(HEARTBEAT)
    assert (outbox.sent, outbox.closed) == ([], 0)


def test_too_long_reply_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESPONSE_MAX_BYTES", 4)
    made, _, outbox, _ = call(ApiKey.LIST_GROUPS)
    groups = [{"group_id": str(number), "protocol_type": ""} for number in range(1000)]
    made.reply({"throttle_time": 0, "error_code": 0, "groups": groups})
    assert (outbox.sent, outbox.closed) == ([], 1)


def test_slow_reply_is_given_up_at_a_stop() -> None:
    made, _, outbox, context = call(ApiKey.LIST_GROUPS)
    written = []

    def group(number: int) -> dict[str, str]:
        written.append(number)
        context.stopping = True
        return {"group_id": str(number), "protocol_type": ""}

    made.reply({"throttle_time": 0, "error_code": 0, "groups": made.array(range(10 * CHECK_EVERY), group)})
    assert (outbox.sent, outbox.closed) == ([], 1)
    assert len(written) < CHECK_EVERY


def test_advertised_minimum_version_may_be_lower() -> None:
    assert Api(ApiKey.PRODUCE, 3, 9, handle_raw=lambda *_: None).advertised == (3, 9)
    assert Api(ApiKey.PRODUCE, 3, 9, handle_raw=lambda *_: None, advertised_min=0).advertised == (0, 9)


def test_an_api_has_one_way_to_answer() -> None:
    with pytest.raises(AssertionError):
        Api(ApiKey.PRODUCE, 3, 9)
    with pytest.raises(AssertionError):
        Api(ApiKey.PRODUCE, 3, 9, handle=lambda *_: None, handle_raw=lambda *_: None)
