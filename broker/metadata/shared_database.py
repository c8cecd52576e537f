"""A catalogue whose file another process has (``database_server.py``): ``Transactions`` over a channel.

A transaction's statements are sent together, when it ends or when the rows of one of them are asked for. Any thread may call;
transactions take turns. Waiting for other nodes has a channel of its own: meanwhile this one has to read what they have changed.

If the channel ends, the process that has the file has gone. Nothing can be changed any more, and this node ends, too.

Tests: tests/metadata/test_shared_database.py.
"""

from collections.abc import Callable, Sequence
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

    def __init__(self, channel: Channel, settling: Channel | None = None) -> None:
        """``settling``: for ``settle``."""
        self._channel = channel
        self._lock = Lock()
        self._settling = settling
        self._settling_lock = Lock()

    def write(self, change: Callable[[Statements], T]) -> T:
        with self._lock:
            transaction = _Transaction(self._ask)
            try:
                result = change(transaction)
            except BaseException:
                transaction.undo()
                raise
            transaction.commit()
            return result

    def read(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return [tuple(row) for row in self._ask(["read", sql, list(values)])]

    def settle(self, timeout_s: float, node: int) -> bool:
        """Wait until every node but this one has in force what is committed now. False: not within this time. Raises
        StorageError."""
        assert self._settling is not None
        with self._settling_lock:
            return bool(_ask(self._settling, ["settle", timeout_s, node]))

    def changed_topics(self, since: int) -> tuple[int, list[str] | None]:
        """``cluster.nodes.Settling``."""
        with self._lock:
            version, names = self._ask(["topics", since])
            return int(version), names

    def secret(self) -> str:
        """By which nodes log in with each other. It is in no file, no argument and no variable of a process. Raises
        StorageError."""
        with self._lock:
            return str(self._ask(["secret"]))

    def copy_to(self, path: str) -> None:
        """Have the process with the file write what is committed now to this path, which may take long. Raises StorageError."""
        with self._lock:
            _ask(self._channel, ["copy", path], wait_s=COPY_S)

    def copy(self, moment: Callable[[], None]) -> Callable[[str], None]:
        raise StorageError("A catalogue that several nodes share is copied by the process that has its file")

    def close(self) -> None:
        self._channel.close()
        if self._settling is not None:
            self._settling.close()

    def _ask(self, message: list[Any], unknown: bool = False) -> Any:
        """``_lock`` is held."""
        return _ask(self._channel, message, unknown)


def _ask(channel: Channel, message: list[Any], unknown: bool = False, wait_s: float = ANSWER_S) -> Any:
    """``unknown``: without an answer, the outcome is unknown. Raises StorageError."""
    error = UnknownOutcome if unknown else StorageError
    try:
        channel.send(encode(message))
        received = channel.receive(wait_s)
    except ChannelClosed as closed:
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

    def __init__(self, path: str, channel: Channel, settling: Channel | None = None) -> None:
        self.shared = SharedDatabase(channel, settling)
        timed = Timed(self.shared)
        super().__init__(path, timed)
        self.seconds = timed.seconds
