"""Lets the nodes of one machine use one catalogue: this process has the file, and runs their transactions one at a time.

SQLite before 3.51.3 may damage a database in WAL mode that several processes write, and most systems have an older one. So one
process opens the file, and the others ask it (``shared_database.py``); ``shared_wire.py`` has the messages.

It also tells each node what the others have changed (the tables of each committed transaction; of documents, which kinds), and
knows when all nodes have taken that in. A node that begins to watch is told to look at everything: something may have changed
since it has read the catalogue. A thread accepts, one serves each channel, and one sends to all watchers.

A node that stops in the middle of a transaction would hold up all others: after ``PATIENCE_S`` its transaction is undone, and its
channel closed; it goes on over a new one. A transaction whose node has closed the channel meanwhile is not begun.

``shared_moment.py`` has the moment of a backup, of which there is one at a time.

Tests: tests/metadata/test_shared_database.py.
"""

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from broker.errors import StorageError, UnknownOutcome
from broker.log import get_logger
from broker.metadata.shared_moment import SharedMoment
from broker.metadata.shared_wire import CHANGES_KEPT, changed_names, changed_table, decode, encode, topic_of
from broker.metadata.sql import Statements
from broker.metadata.sqlite_database import SqliteDatabase
from broker.runtime.channel import Channel, ChannelClosed, ChannelListener
from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, run_aside

log = get_logger("cluster")

# How long a transaction may wait for the next statements of its node.
PATIENCE_S = 5.0


class _Undone(Exception):
    """The node wants the transaction undone, or it has gone."""


@attrs.define(eq=False)
class _Watcher:
    channel: Channel
    node: int
    about: dict[str, Any]
    tables: frozenset[str]
    applied: int


class DatabaseServer:
    """From ``start`` to ``close``. ``on_stuck(node)`` is called when a watching node does not take in what others have changed,
    on a thread that may wait; that node is not waited for any more."""

    def __init__(
        self,
        database: SqliteDatabase,
        path: str,
        clock: Clock,
        on_stuck: Callable[[int], None] = lambda _node: None,
        secret: str = "",
    ) -> None:
        """``path``: of the socket. ``secret``: told to every node, and to nobody else. Raises OSError."""
        self.secret = secret
        self._clock = clock
        self._database = database
        self._listener = ChannelListener(path)
        self._on_stuck = on_stuck
        self._changed = Condition()  # guards what follows
        self._version = 0
        self._topics: dict[str, int] = {}  # the latest changes: the version of each, in their order
        self._forgotten = 0  # the latest version of those that are not kept
        self._watchers: dict[int, _Watcher] = {}
        self._channels: set[Channel] = set()
        self._backup: SharedMoment | None = None
        self._closed = False

    def start(self) -> None:
        run_aside("catalogue-acceptor", self._accept)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            channels = list(self._channels)
            self._changed.notify_all()
        self._listener.close()
        for channel in channels:
            channel.close()

    @property
    def nodes(self) -> dict[int, dict[str, Any]]:
        """The nodes that watch, with what they have said about themselves."""
        with self._changed:
            return {node: watcher.about for node, watcher in sorted(self._watchers.items())}

    def _accept(self) -> None:
        while True:
            try:
                channel = self._listener.accept()
            except ChannelClosed:
                return
            with self._changed:
                if self._closed:
                    channel.close()
                    return
                self._channels.add(channel)
            run_aside("catalogue-session", _Session(self, channel).serve)

    # -- for the sessions -----------------------------------------------------------------------------------------------

    def write(self, change: Callable[[Statements], Iterable[str]]) -> None:
        """Run a transaction. ``change`` returns the tables that it has changed."""
        tables = sorted(set(self._database.write(change)))
        if tables:
            self._tell(tables)

    def read(self, sql: str, values: list[Any]) -> list[tuple[Any, ...]]:
        return self._database.read(sql, values)

    def watch(self, channel: Channel, node: int, about: dict[str, Any], tables: Iterable[str]) -> None:
        """Raises ChannelClosed."""
        with self._changed:
            before = self._watchers.get(node)
            self._watchers[node] = _Watcher(channel, node, about, frozenset(tables), -1)
            if before is not None:
                before.channel.close()
            channel.send(encode(["changed", self._version, None]))
            self._send_all(["nodes", {str(each.node): each.about for each in self._watchers.values()}])

    def applied(self, channel: Channel, version: int) -> None:
        with self._changed:
            for watcher in self._watchers.values():
                if watcher.channel is channel:
                    watcher.applied = max(watcher.applied, version)
            self._changed.notify_all()

    def settle(self, timeout_s: float, node: int) -> bool:
        """Wait until all watchers but this node's have applied what is committed now. False: some have not."""
        deadline = self._clock.monotonic() + timeout_s
        with self._changed:
            version = self._version
            while behind := [each for each in self._watchers.values() if each.node != node and each.applied < version]:
                left_s = deadline - self._clock.monotonic()
                if self._closed or left_s <= 0:
                    break
                self._changed.wait(left_s)
        for watcher in behind:
            log.error("node_stuck", node=watcher.node)
            watcher.channel.close()
            self._on_stuck(watcher.node)
        return not behind

    def copy(self, path: str) -> None:
        self._database.copy(lambda: None)(path)

    def back_up(self, asked: Channel, backup_id: str, directory: str, path: str, count: int) -> None:
        """``path``: of the copy of the catalogue. Raises StorageError, ChannelClosed."""
        with self._changed:
            if self._backup is not None:
                raise StorageError("Another backup is being made: wait until it is finished")
            if len(self._watchers) != count:
                raise StorageError(
                    f"Of {count} nodes {len(self._watchers)} are there, and a backup needs all of them: try again in a second"
                )
            self._backup = SharedMoment(backup_id, set(self._watchers), self._clock)
            self._send_all(["backup", backup_id, directory])
        try:
            self._backup.lead(self._database.copy, path, asked, self.ended)
        finally:
            with self._changed:
                self._backup = None

    def join_backup(self, channel: Channel, backup_id: str, node: int) -> None:
        """Raises ChannelClosed."""
        with self._changed:
            backup = self._backup
        if backup is None or backup.backup_id != backup_id:
            raise ChannelClosed("the backup is over")
        backup.join(node, channel)

    def ended(self, channel: Channel) -> None:
        with self._changed:
            self._channels.discard(channel)
            lost = [node for node, watcher in self._watchers.items() if watcher.channel is channel]
            for node in lost:
                del self._watchers[node]
                if self._backup is not None:
                    self._backup.lose(node)
            if lost:
                self._send_all(["nodes", {str(each.node): each.about for each in self._watchers.values()}])
            self._changed.notify_all()
        channel.close()

    def _tell(self, tables: list[str]) -> None:
        topics = [topic for topic in map(topic_of, tables) if topic is not None]
        with self._changed:
            if not topics and not any(each.tables.intersection(tables) for each in self._watchers.values()):
                return
            self._version += 1
            for topic in topics:
                self._topics.pop(topic, None)
                self._topics[topic] = self._version
            while len(self._topics) > CHANGES_KEPT:
                self._forgotten = self._topics.pop(next(iter(self._topics)))
            self._send_all(["changed", self._version, [table for table in tables if topic_of(table) is None]])

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        """``cluster.nodes.Settling``."""
        with self._changed:
            if since < self._forgotten:
                return self._version, None
            return self._version, [topic for topic, version in self._topics.items() if version > since]

    def _send_all(self, message: list[Any]) -> None:
        encoded = encode(message)
        for watcher in self._watchers.values():
            try:
                watcher.channel.send(encoded)
            except ChannelClosed:
                pass  # its session will notice


class _Session:
    """One channel: reads, transactions, or a watcher."""

    def __init__(self, server: DatabaseServer, channel: Channel) -> None:
        self._server = server
        self._channel = channel

    def serve(self) -> None:
        try:
            while True:
                received = self._channel.receive()
                assert received is not None
                message = decode(received)
                if message[0] == "pin":
                    self._server.join_backup(self._channel, str(message[1]), int(message[2]))
                    return
                self._handle(message)
        except ChannelClosed:
            pass
        except (ValueError, TypeError, IndexError) as error:
            log.error("catalogue_message_refused", error=str(error))
        self._server.ended(self._channel)

    def _handle(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == "applied":
            self._server.applied(self._channel, int(message[1]))
            return
        if kind == "watch":
            self._server.watch(self._channel, int(message[1]), dict(message[2]), message[3])
            return
        try:
            if kind == "read":
                answer: Any = self._server.read(message[1], message[2])
            elif kind == "run":
                self._run(message)
                answer = None
            elif kind == "backup":
                _, backup_id, directory, path, count = message
                self._server.back_up(self._channel, str(backup_id), str(directory), str(path), int(count))
                return
            elif kind == "copy":
                self._server.copy(str(message[1]))
                answer = None
            elif kind == "secret":
                answer = self._server.secret
            elif kind == "topics":
                answer = self._server.changed_topics(int(message[1]))
            elif kind == "settle":
                answer = self._server.settle(float(message[1]), int(message[2]))
            else:
                raise ValueError(f"there is no message {kind!r}")
        except UnknownOutcome as error:
            self._channel.send(encode(["failed", "unknown", str(error)]))
        except StorageError as error:
            self._channel.send(encode(["failed", "storage", str(error)]))
        except _Undone:
            self._channel.send(encode(["done", None]))
        else:
            self._channel.send(encode(["done", answer]))

    def _run(self, message: list[Any]) -> None:
        """A transaction, which is run whole while the database's lock is held. Raises StorageError, _Undone."""
        first = [message]

        def change(connection: Statements) -> Iterable[str]:
            if not first:  # the database tries again: the statements are with the node
                raise StorageError("The catalogue could not be written: its disk was full for a moment")
            if self._channel.is_ended():  # the node has given it up, and goes on over another one: this comes too late
                raise ChannelClosed("the node does not wait for its transaction any more")
            message = first.pop()
            tables: list[str] = []
            while True:
                _, statements, then = message
                rows = [self._execute(connection, tables, *statement) for statement in statements]
                if then == "commit":
                    return tables
                if then == "undo":
                    raise _Undone
                self._channel.send(encode(["done", rows[-1]]))
                received = self._channel.receive(PATIENCE_S)
                if received is None:
                    raise ChannelClosed("it has not gone on with its transaction")
                message = decode(received)

        self._server.write(change)

    @staticmethod
    def _execute(connection: Statements, tables: list[str], sql: str, values: list[Any], kind: str) -> Any:
        changed = changed_table(sql)
        if changed is not None:
            tables += changed_names(changed, values if kind == "many" else [values])
        try:
            if kind == "many":
                connection.executemany(sql, values)
                return None
            rows = connection.execute(sql, values)
        except (ValueError, OverflowError) as error:  # a string that is no Unicode, a number of more than 64 bits
            raise StorageError(f"The catalogue cannot have a value: {error}") from error
        return rows.fetchall() if kind == "rows" else None
