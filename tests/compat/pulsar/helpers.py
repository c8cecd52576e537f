"""What the tests with Pulsar's client say often."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pulsar

from tests.waiting import wait_for

# Far longer than it ever takes.
PATIENCE_MS = 30_000
# Waiting for what must not come: long enough for a broker that would send it.
SILENCE_MS = 300


def receive(consumer: Any, count: int) -> list[Any]:
    """The next messages, in the order they come. Also of a reader."""
    receive_next = getattr(consumer, "receive", None) or consumer.read_next
    return [receive_next(PATIENCE_MS) for _ in range(count)]


def texts(messages: Iterable[Any]) -> list[str]:
    return [message.data().decode() for message in messages]


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"message {number}" for number in range(start, start + count)]


def send(producer: Any, count: int, start: int = 0, **options: Any) -> list[Any]:
    """``message 0`` and so on, each when the one before has its receipt; their ids."""
    return [producer.send(text.encode(), **options) for text in numbered(count, start)]


def send_batch(producer: Any, values: Iterable[str], **options: Any) -> list[Any]:
    """All at once, in one batch if the producer makes such; their ids."""
    ids: dict[int, Any] = {}
    failures: list[Any] = []
    done = threading.Event()
    sent = list(values)

    def receipt(number: int) -> Callable[[Any, Any], None]:
        def called(result: Any, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                ids[number] = message_id
            else:
                failures.append(result)
            if len(ids) + len(failures) == len(sent):
                done.set()

        return called

    for number, value in enumerate(sent):
        producer.send_async(value.encode(), receipt(number), **options)
    producer.flush()
    assert done.wait(PATIENCE_MS / 1000), "no receipt"
    assert not failures, failures
    return [ids[number] for number in range(len(sent))]


def is_silent(consumer: Any, silence_ms: int = SILENCE_MS) -> bool:
    """Whether nothing more comes."""
    receive_next = getattr(consumer, "receive", None) or consumer.read_next
    try:
        message = receive_next(silence_ms)
    except pulsar.Timeout:
        return True
    raise AssertionError(f"{message.data()!r} came, {message.message_id()}")


def drain(consumer: Any, silence_ms: int = SILENCE_MS, *, acknowledge: bool = True) -> list[Any]:
    """Everything until nothing comes for a while."""
    messages = []
    while True:
        try:
            message = consumer.receive(silence_ms)
        except pulsar.Timeout:
            return messages
        messages.append(message)
        if acknowledge:
            consumer.acknowledge(message)


def share_out(consumers: Sequence[Any], count: int) -> list[list[Any]]:
    """What each of them gets of the next ``count`` messages, which are acknowledged."""
    received: list[list[Any]] = [[] for _ in consumers]

    def all_have_come() -> bool:
        for consumer, of in zip(consumers, received, strict=True):
            of += drain(consumer, 50)
        return sum(map(len, received)) >= count

    wait_for(all_have_come, f"not all of {count} came")
    return received


def subscribe_when_free(client: pulsar.Client, topic: str, subscription: str) -> Any:
    """As soon as the broker has heard that the consumers of another client have gone."""
    made: list[Any] = []

    def is_free() -> bool:
        try:
            made.append(client.subscribe(topic, subscription))
        except pulsar.ConsumerBusy:
            return False
        return True

    wait_for(is_free)
    return made[0]


def acknowledge(consumer: Any, messages: Iterable[Any]) -> None:
    for message in messages:
        consumer.acknowledge(message)


def wait_for_backlog(rest: "Admin", topic: str, subscription: str, count: int) -> None:
    """Until the broker has the acknowledgements, which clients send when it suits them."""
    path = f"/admin/v2/persistent/public/default/{topic}/stats"
    wait_for(lambda: rest.get(path)["subscriptions"][subscription]["msgBacklog"] == count)


class Admin:
    """Calls of Pulsar's REST API."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.url = url
        self.headers = {"Content-Type": "application/json", **(headers or {})}

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status, and the answer as JSON if it is some."""
        return self._call(method, f"{self.url}{path}", None if body is None else json.dumps(body).encode())

    def _call(self, method: str, url: str, data: bytes | None) -> tuple[int, Any]:
        request = urllib.request.Request(url, data, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_MS / 1000) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 307:  # to the node that has the topic; urllib follows it for GET only
                    return self._call(method, error.headers["location"], data)
                return error.code, _parsed(error.read())

    def put(self, path: str, body: Any = None) -> None:
        """Of something that may be there already."""
        status, answer = self.call("PUT", path, body)
        assert status in (204, 409), (status, answer)

    def post(self, path: str, body: Any = None) -> None:
        status, answer = self.call("POST", path, body)
        assert status in (200, 204), (status, answer)

    def get(self, path: str) -> Any:
        status, answer = self.call("GET", path)
        assert status == 200, (status, answer)
        return answer

    def partitions(self, topic: str, count: int, namespace: str = "public/default") -> str:
        """Make a partitioned topic; its name."""
        self.put(f"/admin/v2/persistent/{namespace}/{topic}/partitions", count)
        return f"persistent://{namespace}/{topic}"


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
