"""A catalogue whose file another process has (``database_server.py``): ``Transactions`` over a channel.

A transaction's statements are sent together, when it ends or when the rows of one of them are asked for. Any thread may call;
transactions take turns. Waiting for other nodes has a channel of its own: meanwhile this one has to read what they have changed.

A channel is given up if it has no answer for a long time, because the disk or the other process stood still, and the other
process ends that of a node which stood still in a transaction. What comes next goes over a new one. What was sent over the old
one is carried out before that, or never (``_Session._run`` in database_server.py).

Tests: tests/metadata/test_shared_database.py.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from broker.errors import StorageError, UnknownOutcome
from broker.metadata.shared_wire import ERRORS, decode, encode
from broker.metadata.sql import Statements, Timed
from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.channel import Channel, ChannelClosed
from broker.runtime.threads import Lock

T = TypeVar("T")

# The longest wait for an answer: other nodes' transactions come first.
ANSWER_S = 30.0
# Copying 1 GB at 10 MB/s takes 100 s.
COPY_S = 600.0


class SharedDatabase:
    """``Transactions``."""

    def __init__(self, connect: Callable[[], Channel]) -> None:
        """``connect``: to the process that has the file. Raises StorageError."""
        self._line = _Line(connect)
        self._settling = _Line(connect)

    def write(self, change: Callable[[Statements], T]) -> T:
        with self._line as channel:
            transaction = _Transaction(partial(_ask, channel))
            try:
                result = change(transaction)
            except BaseException:
                transaction.undo()
                raise
            transaction.commit()
            return result

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._line as channel:
            return [tuple(row) for row in _ask(channel, ["read", sql, list(values)])]

    def settle(self, timeout_s: float, node: int) -> bool:
        """Wait until every node but this one has in force what is committed now. False: not within this time. Raises
        StorageError."""
        with self._settling as channel:
            return bool(_ask(channel, ["settle", timeout_s, node]))

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        """``cluster.nodes.Settling``."""
        with self._line as channel:
            version, names = _ask(channel, ["topics", since])
            return int(version), names

    def secret(self) -> str:
        """By which nodes log in with each other. It is in no file, no argument and no variable of a process. Raises
        StorageError."""
        with self._line as channel:
            return str(_ask(channel, ["secret"]))

    def copy_to(self, path: str) -> None:
        """Have the process with the file write what is committed now to this path, which may take long. Raises StorageError."""
        with self._line as channel:
            _ask(channel, ["copy", path], wait_s=COPY_S)

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        raise StorageError("A catalogue that several nodes share is copied by the process that has its file")

    def close(self) -> None:
        self._line.close()
        self._settling.close()


class _Line:
    """A context manager: the channel, for one thread at a time. It is opened when it is needed, and again if it was closed."""

    def __init__(self, connect: Callable[[], Channel]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._channel: Channel | None = None
        self._is_over = False

    def __enter__(self) -> Channel:
        self._lock.acquire()
        try:
            if self._is_over:
                raise StorageError("The catalogue is closed")
            if self._channel is None or self._channel.closed:
                self._channel = self._connect()
            return self._channel
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def close(self) -> None:
        """From any thread."""
        self._is_over = True
        if self._channel is not None:
            self._channel.close()


def _ask(channel: Channel, message: list[Any], unknown: bool = False, wait_s: float | None = None) -> Any:
    """``unknown``: without an answer, the outcome is unknown. ``wait_s``: None is ``ANSWER_S``. Raises StorageError."""
    error = UnknownOutcome if unknown else StorageError
    wait_s = ANSWER_S if wait_s is None else wait_s
    try:
        channel.send(encode(message))
        received = channel.receive(wait_s)
    except ChannelClosed as closed:
        channel.close()
        raise error(f"The process that has the catalogue is gone: {closed}") from closed
    if received is None:
        channel.close()  # a later answer would be taken for that of the next question
        raise error(f"The process that has the catalogue has not answered for {wait_s:g} s")
    answer = decode(received)
    if answer[0] == "failed":
        raise ERRORS[answer[1]](answer[2])
    return answer[1]


class _Transaction:
    """``Statements``. It begins with its first statement; without one there is none."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._statements: list[list[Any]] = []
        self._begun = False
        self._ended = False

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> "_Rows":
        self._statements.append([sql, list(values), "one"])
        return _Rows(self, len(self._statements) - 1)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> object:
        self._statements.append([sql, [list(row) for row in rows], "many"])
        return None

    def rows(self, index: int) -> list[tuple[Any, ...]]:
        statements, self._statements = self._statements, []
        assert index == len(statements) - 1, "its rows are asked for before the next statement"
        statements[index][2] = "rows"
        try:
            rows = self._ask(["run", statements, "go on"])
        except StorageError:
            self._ended = True  # the other side has undone it
            raise
        self._begun = True
        return [tuple(row) for row in cast("list[list[Any]]", rows)]

    def commit(self) -> None:
        if self._begun or self._statements:
            self._ended = True
            self._ask(["run", self._statements, "commit"], unknown=True)

    def undo(self) -> None:
        if self._begun and not self._ended:
            self._ended = True
            try:
                self._ask(["run", [], "undo"])
            except StorageError:
                pass  # without the channel it is undone


class _Rows:
    def __init__(self, transaction: _Transaction, index: int) -> None:
        self._transaction = transaction
        self._index = index

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._transaction.rows(self._index)


class SharedCatalogue(SqliteCatalogue):
    """``Catalogue``, for a node. ``path``: of the file, which another process has."""

    def __init__(self, path: str, connect: Callable[[], Channel]) -> None:
        self.shared = SharedDatabase(connect)
        timed = Timed(self.shared)
        super().__init__(path, timed)
        self.seconds = timed.seconds
