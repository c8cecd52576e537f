"""Each way to answer submits one verb to the connection's own processor."""

from typing import Any

from broker.network.mute import MuteEvent
from broker.network.sending import ProcessorOutbox
from broker.network.service import Request


class Recorder:
    """A mailbox that notes what is submitted. Its verbs are their names."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Any, Any, Any]] = []

    def submit(self, verb: Any, target: Any, argument: Any) -> None:
        self.submitted.append((verb, target, argument))

    def __getattr__(self, name: str) -> Any:
        return name


class StubConnection:
    def __init__(self) -> None:
        self.processor = Recorder()


def setting() -> tuple[Any, Any, Recorder]:
    connection = StubConnection()
    request: Any = Request()
    request.connection = connection
    return request, connection, connection.processor


def test_answers_are_submitted_with_their_request() -> None:
    request, _, mailbox = setting()
    outbox = ProcessorOutbox()
    outbox.send(request, [b"answer"])
    outbox.no_op(request)
    outbox.close(request)
    assert mailbox.submitted == [
        ("send", request, [b"answer"]),
        ("no_op", request, None),
        ("close_connection", request, None),
    ]


def test_what_concerns_a_connection_is_submitted_with_it() -> None:
    _, connection, mailbox = setting()
    outbox = ProcessorOutbox()

    def work() -> None:
        raise NotImplementedError

    outbox.push(connection, [b"data"])
    outbox.call(connection, work)
    outbox.start_throttling(connection)
    outbox.end_throttling(connection)
    assert mailbox.submitted == [
        ("push", connection, [b"data"]),
        ("call", connection, work),
        ("throttle", connection, MuteEvent.THROTTLE_STARTED),
        ("throttle", connection, MuteEvent.THROTTLE_ENDED),
    ]
