"""What a test does with its broker, beside starting and stopping it: topics, records, offsets of groups; and the same calls for
coroutines.

``BrokerCalls`` is the base of ``Broker``. Its methods go past the broker's listeners, so they need no login and no rights.

Tests: tests/client/test_embedded_calls.py.
"""

import functools
import importlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import attrs

from broker.client.kafka.record_encoder import Records, by_key, encode, encode_headers
from broker.errors import BrokerError, Refusal
from broker.runtime.clock import SystemClock
from broker.runtime.dial import pause
from broker.runtime.forks import in_thread

if TYPE_CHECKING:
    from broker.server import BrokerServer, contents
    from broker.server.contents import Extent, Shape, TopicPartition
    from broker.server.contents import Record as Record
else:

    class _Function:
        """Imports its module when it is called: pytest imports all test modules, also to run one test, and the server is most
        of the broker. A broker in another process only needs the name."""

        def __init__(self, name: str) -> None:
            self.__name__ = name

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module("broker.server.contents"), self.__name__)(*args, **kwargs)

    class _Contents:
        def __getattr__(self, name: str) -> Any:
            return _Function(name)

    contents = _Contents()

P = ParamSpec("P")
T = TypeVar("T")

Text = bytes | str | None
Headers = Mapping[str, Text] | Iterable[tuple[str, Text]]
# A value; (key, value); or a mapping with some of `_FIELDS`.
RecordLike = bytes | str | tuple[Text, Text] | Mapping[str, Any]

_FIELDS = ("key", "value", "headers", "partition", "timestamp")
# The largest batch, unless the topic allows only smaller ones; as the package's own producer.
_BATCH_BYTES = 1_000_000
# How often (s) ``wait_for`` looks, at first and later. A look costs some 10 us.
_LOOK_S, _LOOK_MAX_S = 0.001, 0.02
# How long (s) a coroutine that waits may keep its thread after it was cancelled.
_SLICE_S = 0.1


class NotRunning(BrokerError):
    """The broker is stopped, or was not started."""

    def __init__(
        self, message: str = "This broker is not running: use it in `with Broker() as broker:`, or call start() first."
    ) -> None:
        super().__init__(message)


class BrokerCalls:
    """The calls of a broker that runs; before ``start`` and after ``stop`` they raise NotRunning, which is a BrokerError.

    Text is sent as UTF-8. Offsets are numbers within a partition, from 0 on. ``aio`` has the same calls for coroutines.
    """

    @abstractmethod
    def start(self) -> "BrokerCalls":
        """Start the broker."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the broker."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the broker."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Keep the broker's state."""

    @abstractmethod
    def reset(self, snapshot: Any = None) -> None:
        """Go back to a state."""

    @abstractmethod
    def _ask(self, function: "Callable[Concatenate[BrokerServer, P], T]", *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of ``broker.server.contents``. Raises NotRunning."""

    @property
    def aio(self) -> "AsyncCalls":
        """The same calls for coroutines: ``await broker.aio.produce("orders", ["one"])`` does not block the event loop."""
        return AsyncCalls(self)

    @abstractmethod
    def restart(self) -> None:
        """Stop and start the broker."""

    def create_topic(self, name: str, /, partitions: int = 1, **configs: object) -> None:
        """Make a topic. ``configs``: its settings by Kafka's names, with ``_`` for ``.``:
        ``create_topic("users", 3, cleanup_policy="compact", retention_ms=60_000)``. Raises BrokerError (``Refusal``) for a name
        that exists or is not allowed, and for a wrong setting."""
        self._ask(contents.create_topic, name, partitions, {_dotted(key): _setting(configs[key]) for key in configs})

    def produce(self, topic: str, records: Iterable[RecordLike], *, partition: int | None = None) -> list[int]:
        """Write these records, in this order, and wait until they are durable. Returns the offset of each.

        A record is its value, or ``(key, value)``, or a mapping with any of ``key``, ``value``, ``headers`` (a mapping, or pairs
        of name and value), ``partition`` and ``timestamp`` (ms). Without ``partition`` the key decides, as with Kafka's Java
        client; records without a key take turns, from partition 0 on. A topic that does not exist is made with the broker's
        defaults. Raises TypeError for what is no record, BrokerError (``Refusal``) for a batch that the topic refuses: an
        earlier part of the records may then be written.
        """
        if isinstance(records, bytes | str | Mapping):
            raise TypeError(f"produce() takes several records: write produce({topic!r}, [...]).")
        taken = [_Fields.of(record, partition) for record in records]
        shape = self._ask(contents.shape, topic)
        by_partition: dict[int, list[int]] = {}
        for number, chosen in enumerate(_partitions(taken, shape.partitions)):
            by_partition.setdefault(chosen, []).append(number)
        batches: list[tuple[int, bytearray]] = []
        numbers: list[list[int]] = []  # of the records in each batch
        for chosen, rows in by_partition.items():
            left = iter(rows)
            for batch, size in _encoded([taken[row] for row in rows], shape):
                batches.append((chosen, batch))
                numbers.append([next(left) for _ in range(size)])
        offsets = [-1] * len(taken)
        for base, rows in zip(self._ask(contents.append, topic, batches), numbers, strict=True):
            for row, offset in zip(rows, count(base), strict=False):
                offsets[row] = offset
        return offsets

    def records(self, topic: str) -> "list[Record]":
        """All records of a topic that a consumer of committed records could read now, by partition and offset. Those of open and
        aborted transactions are not among them. Raises BrokerError if there is no such topic."""
        return self._ask(contents.records, topic)

    def wait_for(self, topic: str, n: int = 1, *, timeout: float = 10.0) -> "list[Record]":
        """Wait until the topic has at least ``n`` committed records, and return all of them. The topic need not exist yet, and
        another thread may restart the broker meanwhile. Raises TimeoutError after ``timeout`` s; it says how many came."""
        waiting = _Waiting(self, topic, n, timeout)
        while (found := waiting.go_on(timeout)) is None:
            pass
        return found

    def committed(self, group: str) -> "dict[TopicPartition, int]":
        """The offsets that the group has committed, by (topic, partition). Empty for a group that does not exist."""
        return self._ask(contents.committed, group)

    def lag(self, group: str, topic: str | None = None) -> int:
        """How many records the group has still to read in this topic, or in all topics for which it has committed an offset. A
        partition without a commit counts whole. Markers of transactions count, as in Kafka's tools. Raises BrokerError if the
        group has committed nothing and no topic is named: 0 would say that it is done."""
        return self._ask(contents.lag, group, topic)

    def reset_topics(self) -> None:
        """Delete all records, and the offsets that groups have committed, while the broker runs. Topics, their settings and
        the clients stay as they are, and offsets go on from where they are. Takes an fsync, and another for each partition with
        records that are not durable yet."""
        self._ask(contents.reset_topics)

    def add_user(self, name: str, password: str) -> None:
        """Add a user that logs in at ``+sasl`` listeners, with SCRAM, or with PLAIN where the listener allows it. An
        existing user gets the new password. Raises ConfigError for an invalid name or password."""
        self._ask(contents.add_user, name, password)


class _Waiting:
    """A ``wait_for`` under way, by any thread at a time."""

    def __init__(self, broker: BrokerCalls, topic: str, n: int, timeout: float) -> None:
        self._broker = broker
        self._topic = topic
        self._n = n
        self._timeout = timeout
        self._clock = SystemClock()
        self._deadline = self._clock.monotonic() + timeout
        self._look_s = _LOOK_S
        self._seen: Extent | None = None
        self._was_running = False

    def go_on(self, seconds: float) -> "list[Record] | None":
        """The records; None if they have not come within ``seconds``. Raises TimeoutError at the deadline."""
        until = self._clock.monotonic() + seconds
        while True:
            found = self._look()
            if found is not None:
                return found
            now = self._clock.monotonic()
            if now >= self._deadline:
                raise TimeoutError(self._said())
            if now >= until:
                return None
            pause(min(self._look_s, self._deadline - now))
            self._look_s = min(2 * self._look_s, _LOOK_MAX_S)

    def _look(self) -> "list[Record] | None":
        try:
            self._seen, found = self._broker._ask(contents.arrived, self._topic, self._n, self._seen)
        except NotRunning:
            if not self._was_running:
                raise
            self._seen = found = None
        self._was_running = True
        return found

    def _said(self) -> str:
        within = f"within {self._timeout:g} s"
        try:
            came = len(self._broker.records(self._topic))
        except NotRunning:
            return f"The broker is stopped, and fewer than {self._n} records had come to {self._topic!r} before."
        except Refusal:
            return f"The topic {self._topic!r} was not made {within}; {self._n} records were awaited."
        return f"{came} of {self._n} records came to {self._topic!r} {within}."


class _Twin(Generic[P, T]):
    """``await broker.aio.method(...)``: the method on a thread of asyncio's pool."""

    def __init__(self, method: Callable[Concatenate[Any, P], T]) -> None:
        self._method = method

    def __get__(self, calls: "AsyncCalls", _owner: type) -> Callable[P, Awaitable[T]]:
        method = getattr(calls.broker, self._method.__name__)

        @functools.wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
            return in_thread(functools.partial(method, *args, **kwargs))

        return call


class AsyncCalls:
    """The calls of ``BrokerCalls`` for coroutines, with the same arguments, results and errors. A cancelled call still goes on to
    its end, except ``wait_for``."""

    def __init__(self, broker: BrokerCalls) -> None:
        self.broker = broker

    start = _Twin(BrokerCalls.start)
    stop = _Twin(BrokerCalls.stop)
    kill = _Twin(BrokerCalls.kill)
    restart = _Twin(BrokerCalls.restart)
    create_topic = _Twin(BrokerCalls.create_topic)
    produce = _Twin(BrokerCalls.produce)
    records = _Twin(BrokerCalls.records)
    committed = _Twin(BrokerCalls.committed)
    lag = _Twin(BrokerCalls.lag)
    snapshot = _Twin(BrokerCalls.snapshot)
    reset = _Twin(BrokerCalls.reset)
    reset_topics = _Twin(BrokerCalls.reset_topics)
    add_user = _Twin(BrokerCalls.add_user)

    async def wait_for(self, topic: str, n: int = 1, *, timeout: float = 10.0) -> "list[Record]":
        """See ``BrokerCalls.wait_for``."""
        waiting = _Waiting(self.broker, topic, n, timeout)
        while (found := await in_thread(lambda: waiting.go_on(_SLICE_S))) is None:
            pass
        return found


@attrs.frozen
class _Fields:
    """A record that is to be written."""

    key: bytes | None
    value: bytes | None
    headers: bytes  # encoded
    partition: int | None
    timestamp: int | None

    @classmethod
    def of(cls, record: RecordLike, partition: int | None) -> "_Fields":
        """Raises TypeError."""
        if isinstance(record, Mapping):
            unknown = [name for name in record if name not in _FIELDS]
            if unknown:
                raise TypeError(f"A record has {', '.join(_FIELDS)}, not {unknown[0]!r}. A value is bytes or str.")
            fields = dict(record)
        elif isinstance(record, tuple):
            if len(record) != 2:
                raise TypeError(f"A record that is a tuple is (key, value), not {len(record)} items.")
            fields = {"key": record[0], "value": record[1]}
        else:
            fields = {"value": record}
        headers = fields.get("headers") or ()
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        encoded = encode_headers([(_bytes("header", name) or b"", _bytes("header", value)) for name, value in pairs])
        chosen = fields.get("partition")
        return cls(
            _bytes("key", fields.get("key")),
            _bytes("value", fields.get("value")),
            encoded,
            partition if chosen is None else chosen,
            fields.get("timestamp"),
        )


def _bytes(what: str, data: object) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"A {what} is bytes, str or None, not {type(data).__name__}.")


def _partitions(records: Sequence[_Fields], total: int) -> Iterable[int]:
    """The partition of each record."""
    of_key, turns = by_key(total), count()
    for record in records:
        if record.partition is not None:
            yield record.partition
        elif record.key is not None:
            yield of_key(record.key)
        else:
            yield next(turns) % total


def _encoded(records: Sequence[_Fields], shape: "Shape") -> Iterable[tuple[bytearray, int]]:
    columns = Records(
        [record.value for record in records],
        [record.key for record in records],
        [record.headers for record in records],
        [shape.now_ms if record.timestamp is None else record.timestamp for record in records],
    )
    return encode(columns, min(shape.max_bytes, _BATCH_BYTES), now_ms=shape.now_ms)


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
