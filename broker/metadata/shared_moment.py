"""One moment of all nodes of one machine and of their catalogue, for a backup: led by the process that has the catalogue's file.

The node that was asked sends ``["backup", id, directory, path, count]``. Every node is told of it, and comes with a channel of
its own (``["pin", id, node]``; ``storage/backup/together.py``). Then, while no transaction of the catalogue begins:

| to each node | from it |
|---|---|
| ``["take"]`` | ``["taken"]``: nothing is appended to its logs any more, and it has read their ends |
| ``["release"]``, when all have said so | ``["released", held]``. Not ``held``: it went on before that, or an end has changed |

If all have held, there was an instant at which all logs ended where they were read, and the catalogue was what it was before the
first of them. So a record or a commit in the backup has everything in it that was acknowledged before it was sent. Otherwise it
is tried again. At the end nodes get ``["stage"]``: they pin their files, and send ``["staged", error]``.

The node that asked gets two answers: when the moment is over, and when all have staged and the catalogue as of the moment is at
``path``. If a node ends meanwhile, or stands still, it gets an error, and no node pins anything any more.

On the thread of the session of the node that asked. Tests: tests/metadata/test_shared_moment.py.
"""

from collections.abc import Callable
from typing import Any

from broker.errors import StorageError
from broker.metadata.shared_wire import decode, encode
from broker.runtime.channel import Channel, ChannelClosed
from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, Event

# How long (s) nodes may take to come, to answer while nothing may change, and to pin their files.
_COME_S = 10.0
_ANSWER_S = 5.0
_STAGE_S = 100.0
_TRIES = 10
_PAUSE_S = 0.2


class _TooLate(Exception):
    """A node did not hold its logs for long enough."""


class SharedMoment:
    """From ``lead`` until it returns; other sessions call ``join`` and ``lose``."""

    def __init__(self, backup_id: str, nodes: set[int], clock: Clock) -> None:
        self.backup_id = backup_id
        self._nodes = nodes
        self._clock = clock
        self._pause = Event()
        self._joined = Condition()  # guards what follows
        self._channels: dict[int, Channel] = {}
        self._lost: int | None = None
        self._is_over = False

    def join(self, node: int, channel: Channel) -> None:
        """The channel is this one's from now on. Raises ChannelClosed if it comes too late."""
        with self._joined:
            if self._is_over or node not in self._nodes or node in self._channels:
                raise ChannelClosed("nobody waits for it")
            self._channels[node] = channel
            self._joined.notify_all()

    def lose(self, node: int) -> None:
        """Its process has ended."""
        with self._joined:
            self._lost = node
            self._joined.notify_all()

    def lead(
        self,
        copy: Callable[[Callable[[], None]], Callable[[str], None]],
        path: str,
        asked: Channel,
        ended: Callable[[Channel], None],
    ) -> None:
        """``copy`` and ``path``: of the catalogue. ``ended``: is told of each channel. Raises StorageError, ChannelClosed if the
        node that asked has gone."""
        try:
            self._wait_for_all()
            save = self._take(copy)
            asked.send(encode(["done", None]))
            for node in self._channels:
                self._send(node, ["stage"])
            save(path)
            deadline = self._clock.monotonic() + _STAGE_S
            for node in self._channels:
                error = self._receive(node, deadline - self._clock.monotonic(), "staged")
                if error is not None:
                    raise StorageError(f"The files of node {node} could not be pinned: {error}")
            asked.send(encode(["done", None]))
        finally:
            with self._joined:
                self._is_over = True
            for channel in self._channels.values():
                ended(channel)

    def _wait_for_all(self) -> None:
        deadline = self._clock.monotonic() + _COME_S
        with self._joined:
            while len(self._channels) < len(self._nodes):
                left_s = deadline - self._clock.monotonic()
                if self._lost is not None:
                    raise _gone(self._lost)
                if left_s <= 0:
                    missing = min(self._nodes - set(self._channels))
                    raise StorageError(f"Node {missing} does not take part in the backup: run the command again")
                self._joined.wait(left_s)

    def _take(self, copy: Callable[[Callable[[], None]], Callable[[str], None]]) -> Callable[[str], None]:
        """A writer of the catalogue as of the moment."""
        for left in reversed(range(_TRIES)):
            try:
                return copy(self._moment)
            except _TooLate:
                if not left:
                    raise StorageError(
                        "The nodes are too busy to stand still together for a moment: run the command again"
                    ) from None
                self._pause.wait(_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _moment(self) -> None:
        for node in self._channels:
            self._send(node, ["take"])
        for node in self._channels:
            self._receive(node, _ANSWER_S, "taken")
        for node in self._channels:
            self._send(node, ["release"])
        held = [self._receive(node, _ANSWER_S, "released") is True for node in self._channels]
        if not all(held):
            raise _TooLate

    def _send(self, node: int, message: list[Any]) -> None:
        try:
            self._channels[node].send(encode(message))
        except ChannelClosed as error:
            raise _gone(node) from error

    def _receive(self, node: int, timeout_s: float, kind: str) -> Any:
        """What the message says."""
        try:
            received = self._channels[node].receive(max(0.0, timeout_s))
        except ChannelClosed as error:
            raise _gone(node) from error
        if received is None:
            raise StorageError(f"Node {node} stands still while a backup is made: run the command again")
        message = decode(received)
        if message[0] != kind:
            raise StorageError(f"Node {node} has sent {message[0]!r} instead of {kind!r}")
        return message[1] if len(message) > 1 else None


def _gone(node: int) -> StorageError:
    return StorageError(f"Node {node} has ended while the backup was made: run the command again")
