"""Share sessions: the partitions that a member fetches from, so that a request names only changes.

A session belongs to a member of a group and has an epoch:

| epoch of a request | session | answer | the session then |
|---|---|---|---|
| 0 | any | NONE | is new, with the epoch 1 |
| -1 | none | SHARE_SESSION_NOT_FOUND | - |
| -1 | one | NONE | is closed |
| its own | one | NONE | has the next epoch |
| any other | none | SHARE_SESSION_NOT_FOUND | - |
| any other | one | INVALID_SHARE_SESSION_EPOCH | stays |

After 2147483647 comes 1. A ShareAcknowledge cannot open a session: its epoch 0 is INVALID_SHARE_SESSION_EPOCH. A session ends
with the connection on which it was opened; its member's records then go to others, as when it is closed. A new session of the
same member keeps the member's records.

Bounds: ``max_sessions`` in all and ``CONNECTION_MAX`` on a connection (a consumer opens one), beyond which a new session is
SHARE_SESSION_LIMIT_REACHED; ``PARTITIONS_MAX`` in a session, and ``ALL_PARTITIONS_MAX`` in all.

Any thread; the lock guards the tables, the epochs and the counts. Only its requests change a session's own partitions. They come
one at a time; a client that sends several at once harms only itself.
"""

from collections import deque
from typing import Any

import attrs

from broker.errors import RequestError
from broker.kafka.share.partition_entry import Link, PartitionEntry, Waiter
from broker.runtime.limits import Allowance
from broker.runtime.threads import Lock
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import TopicPartition

OPEN_EPOCH, CLOSE_EPOCH = 0, -1
MAX_SESSIONS = 2_000
CONNECTION_MAX = 50
PARTITIONS_MAX = 10_000
ALL_PARTITIONS_MAX = 200_000

_LAST_EPOCH = 2**31 - 1


@attrs.define(eq=False)
class ShareSession:
    group_id: str
    member_id: str
    connection: Any  # its identity
    epoch: int = 1  # of the next request
    links: dict[TopicPartition, Link] = attrs.field(factory=dict, repr=False)
    # Partitions that cannot be fetched now, because the topic is missing or the client may not read it: checked each time.
    refused: dict[TopicPartition, None] = attrs.field(factory=dict, repr=False)
    # Partitions that it no longer fetches from, and of which the member may still hold records.
    left: dict[PartitionEntry, None] = attrs.field(factory=dict, repr=False)
    # Partitions without a known begin of the group.
    unbegun: list[PartitionEntry] = attrs.field(factory=list, repr=False)
    ready: deque[Link] = attrs.field(factory=deque, repr=False)
    waiter: Waiter | None = attrs.field(default=None, repr=False)
    closed: bool = False
    # Partitions that are counted for it, in ``ShareSessions.partitions``. Guarded by the lock of the sessions.
    counted: int = 0

    @property
    def has_unseen(self) -> bool:
        """Whether the queue has links that the session's fetch has not looked at."""
        try:
            return any(not link.was_seen for link in tuple(self.ready))
        except RuntimeError:  # another thread appends just now
            return True


def next_epoch(epoch: int) -> int:
    return 1 if epoch == _LAST_EPOCH else epoch + 1


class ShareSessions:
    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self.max_sessions = max_sessions
        self.partitions = Allowance(ALL_PARTITIONS_MAX)
        self._lock = Lock()
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of_connection: dict[Any, dict[ShareSession, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, group_id: str, member_id: str, connection: Any) -> tuple[ShareSession, ShareSession | None]:
        """A new session, and the session that it replaces. Raises RequestError."""
        key = group_id, member_id
        with self._lock:
            old = self._sessions.get(key)
            if old is None and len(self._sessions) >= self.max_sessions:
                raise RequestError(
                    ErrorCode.share_session_limit_reached,
                    f"The broker has {len(self._sessions)} share sessions already.",
                )
            of_connection = self._of_connection.get(connection, {})
            if len(of_connection) >= CONNECTION_MAX and old not in of_connection:
                raise RequestError(
                    ErrorCode.share_session_limit_reached,
                    f"The connection has {CONNECTION_MAX} share sessions already.",
                )
            if old is not None:
                self._remove(old)
            session = self._sessions[key] = ShareSession(group_id, member_id, connection)
            self._of_connection.setdefault(connection, {})[session] = None
        return session, old

    def use(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session of a request that does not open it. A request that closes it calls ``close``. Raises RequestError."""
        with self._lock:
            session = self._sessions.get((group_id, member_id))
            if session is None:
                raise RequestError(ErrorCode.share_session_not_found, "There is no share session of this member.")
            if epoch == CLOSE_EPOCH:
                return session
            if epoch != session.epoch:
                raise RequestError(
                    ErrorCode.invalid_share_session_epoch,
                    f"The epoch of the share session is {session.epoch}, not {epoch}.",
                )
            session.epoch = next_epoch(epoch)
            return session

    def close(self, session: ShareSession) -> bool:
        """False if it was closed before."""
        with self._lock:
            return self._remove(session)

    def _remove(self, session: ShareSession) -> bool:
        if session.closed:
            return False
        session.closed = True
        self.partitions.give_back(session.counted)
        session.counted = 0
        del self._sessions[session.group_id, session.member_id]
        others = self._of_connection.get(session.connection)
        if others is not None:
            others.pop(session, None)
            if not others:
                del self._of_connection[session.connection]
        return True

    def of_member(self, group_id: str, member_id: str) -> ShareSession | None:
        return self._sessions.get((group_id, member_id))

    def of_connection(self, connection: Any) -> list[ShareSession]:
        with self._lock:
            return list(self._of_connection.get(connection, ()))

    def has_any(self, connection: Any) -> bool:
        return connection in self._of_connection

    def all(self) -> list[ShareSession]:
        with self._lock:
            return list(self._sessions.values())

    def make_room(self, session: ShareSession, partitions: int) -> None:
        """Count new partitions of the session. Raises RequestError."""
        with self._lock:
            if session.closed:  # meanwhile, on another thread: the count would never be given back
                raise RequestError(ErrorCode.share_session_not_found, "The share session has just been closed.")
            if session.counted + partitions > PARTITIONS_MAX:
                raise RequestError(
                    ErrorCode.invalid_request, f"A share session has at most {PARTITIONS_MAX} partitions."
                )
            if not self.partitions.take(partitions):
                raise RequestError(
                    ErrorCode.share_session_limit_reached, "The share sessions have too many partitions."
                )
            session.counted += partitions

    def give_back(self, session: ShareSession) -> None:
        """A partition has left the session."""
        with self._lock:
            if session.counted:
                session.counted -= 1
                self.partitions.give_back(1)
